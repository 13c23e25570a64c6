// Plans of the MLP family: rows in place of text, and what follows from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_join.h"
#include "coordinator/planner/codec_choice.h"
#include "coordinator/planner/planner.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"
#include "proto/plan/action_check.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class PlannerMlpTest : public ::testing::Test {
 protected:
  PlannerMlpTest() {
    in_.job_id = "digits-1";
    in_.generation = 1;
    in_.job.set_name("digits");
    ModelSpec* m = in_.job.mutable_model();
    m->set_family("mlp");
    m->set_layers(3);
    m->set_hidden(256);
    m->set_inputs(784);
    m->set_classes(10);
    in_.job.mutable_data()->set_path("mnist.bin");
    RecipeSpec* r = in_.job.mutable_recipe();
    r->set_steps(1000);
    r->set_global_batch(64);
    r->set_micro_batch(16);
    r->set_learning_rate(1e-3);
    FillDefaults(&in_.job);
    for (const char* name : {"a", "b", "c", "d"}) {
      NodeInfo node = MakeNode(name, 20);
      DataFile* file = node.add_data_files();
      file->set_path("mnist.bin");
      file->set_format("uint16");
      file->set_bytes(5000 * 785 * 2);
      file->set_tokens(5000 * 785);
      file->set_highest_id(255);
      *in_.topology.add_nodes() = std::move(node);
    }
    JoinAll(&in_.topology, 5, 20);
  }
  Plan Make() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? planned->plan : Plan();
  }

  PlannerInput in_;
};

TEST_F(PlannerMlpTest, AnyNumberOfStagesAndReplicasIsPlanned) {
  for (const int replicas : {1, 2}) {
    for (const int stages : {1, 2}) {
      in_.job.mutable_strategy()->set_replicas(replicas);
      in_.job.mutable_strategy()->set_stages(stages);
      const Plan plan = Make();
      ASSERT_THAT(plan.ranks(), SizeIs(replicas * stages));
      EXPECT_TRUE(CheckActions(plan).ok()) << CheckActions(plan);
      EXPECT_EQ(plan.ranks(replicas * stages - 1).end_layer(), 3);
      EXPECT_THAT(plan.explanation(), Contains(HasSubstr("784 values, 3 hidden layers x 256 units, "
                                                         "10 classes, 335")));
      EXPECT_THAT(plan.explanation(), Contains(HasSubstr("16 samples")));
      EXPECT_THAT(plan.explanation(), Not(Contains(HasSubstr("positions"))));
      EXPECT_THAT(plan.explanation(), Contains(HasSubstr("4750 training samples")));
    }
  }
}

// Rows have no token ids to predict from.
TEST_F(PlannerMlpTest, AutoPredictsNothing) {
  in_.job.mutable_strategy()->set_stages(3);
  const Plan plan = Make();
  for (const LinkPlan& link : plan.links()) {
    EXPECT_FALSE(NeedsTokenIds(link.forward())) << FormatCodec(link.forward());
    EXPECT_FALSE(NeedsTokenIds(link.backward())) << FormatCodec(link.backward());
  }
  CodecQuestion question;
  question.rate_bits_per_s = 1e6;
  question.dims = {16, 1, 256};
  question.token_ids = false;
  EXPECT_THAT(LeftOut(question), HasSubstr("no predict: rows have no token ids"));
  for (const CodecOption& option : CodecOptions(question)) EXPECT_FALSE(option.tokens);
}

// By hand: 2 operations a weight and sample forward, twice that backward, but no gradient of rows.
TEST_F(PlannerMlpTest, CostsAreThoseOfTheProducts) {
  const ModelSpec& m = in_.job.model();
  const PartCost whole = StageCost(m, 0, 3, 16);
  const double first = 784.0 * 256, middle = 256.0 * 256, last = 2560;
  EXPECT_NEAR(whole.forward_flops, 16 * 2 * (first + 2 * middle + last),
              0.03 * whole.forward_flops);
  EXPECT_NEAR(whole.backward_flops, 16 * (2 * first + 4 * (2 * middle + last)),
              0.03 * whole.backward_flops);
  PartCost sum = StageCost(m, 0, 1, 16);
  sum += StageCost(m, 1, 3, 16);
  EXPECT_DOUBLE_EQ(sum.flops(), whole.flops());
  EXPECT_EQ(sum.parameters, whole.parameters);
  EXPECT_EQ(whole.parameters, 785 * 256 + 2 * 257 * 256 + 2570);
  EXPECT_EQ(BoundaryElements(m, 16), 16 * 256);
  EXPECT_GE(StageMemoryBytes(m, 0, 3, 16, 1), 16 * whole.parameters);
  EXPECT_GE(CardMemoryBytes(m, true, 0, 3, 16, 1), 20 * whole.parameters);
}

}  // namespace
}  // namespace isthmus::coordinator
