// recipe.recompute in a plan: memory and time are counted with it, and its words say what it saves.
#include "absl/strings/str_join.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan PlanOf(bool recompute) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.job = MakeJob();
  for (int n : {3, 3}) in.job.mutable_strategy()->add_layers_per_stage(n);
  in.job.mutable_strategy()->set_stages(2);
  in.job.mutable_recipe()->set_recompute(recompute);
  in.generation = 3;
  *in.topology.add_nodes() = MakeNode("lab", 20);
  *in.topology.add_nodes() = MakeNode("home", 20);
  JoinAll(&in.topology, 18.2, 40);
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? planned->plan : Plan();
}

TEST(PlannerRecompute, IsCountedAndSaid) {
  const Plan kept = PlanOf(false), again = PlanOf(true);
  EXPECT_THAT(absl::StrJoin(kept.explanation(), "\n"), Not(HasSubstr("recompute")));
  const std::string words = absl::StrJoin(again.explanation(), "\n");
  EXPECT_THAT(words, HasSubstr("recomputes: of a micro-batch under way a stage keeps the inputs of "
                               "its layers, and computes a layer again in its backward pass: stage "
                               "0 needs "));
  EXPECT_THAT(words, HasSubstr(" less and "));
  EXPECT_THAT(words, HasSubstr(" more a micro-batch, stage 1 needs "));
  ASSERT_EQ(again.ranks_size(), 2);
  for (int s = 0; s < 2; ++s) {
    EXPECT_LT(again.ranks(s).memory_bytes(), kept.ranks(s).memory_bytes());
    const double more = again.ranks(s).predicted_step_s() / kept.ranks(s).predicted_step_s();
    EXPECT_GT(more, 1.2);
    EXPECT_LT(more, 1.4);
  }
  EXPECT_GT(again.predicted_step_s(), kept.predicted_step_s());
}

}  // namespace
}  // namespace isthmus::coordinator
