// What plans say of delta codecs: the first visit of each sample is a key frame.
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Two daemons on a slow link; 1000 steps of 16 samples of 128 bytes, micro-batches of 4.
class PlannerVisitsTest : public ::testing::Test {
 protected:
  PlannerVisitsTest() {
    in_.job_id = "bible-1";
    in_.job = MakeJob(6, 128, 128);
    in_.job.mutable_recipe()->set_steps(1000);
    in_.job.mutable_recipe()->set_global_batch(16);
    in_.job.mutable_strategy()->set_stages(2);
    in_.job.mutable_compression()->set_forward("delta(quant(3))");
    in_.job.mutable_compression()->set_backward("quant(8)");
    in_.job.mutable_compression()->set_tied("bf16");
    in_.generation = 3;
    Passes(1.04);
  }
  // So many passes of the whole job over the text.
  void Passes(double passes) {
    in_.topology.Clear();
    const auto bytes = static_cast<int64_t>(16000 / passes / 0.95 * 128) + 2;
    for (const char* name : {"a", "b"})
      *in_.topology.add_nodes() = MakeNode(name, 20, int64_t{8} << 30, int64_t{50} << 30, bytes);
    JoinAll(&in_.topology, 5, 20);
  }
  PlannedJob Plan() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? *planned : PlannedJob();
  }
  double StepSeconds(const std::string& forward) {
    in_.job.mutable_compression()->set_forward(forward);
    return Plan().plan.predicted_step_s();
  }

  PlannerInput in_;
};

TEST_F(PlannerVisitsTest, LittleMoreThanAPassIsMostlyKeyFrames) {
  const PlannedJob p = Plan();
  EXPECT_NEAR(p.plan.first_visits(), 1 / 1.04, 1e-3);
  EXPECT_THAT(p.plan.explanation(),
              Contains(HasSubstr("delta(quant(3)) as the job says (256 KiB on a first visit, "
                                 "25.0 KiB after; 96 % of visits are first ones)")));
  EXPECT_THAT(p.warnings,
              Contains(AllOf(HasSubstr("boundary b0: delta coding gains little here"),
                             HasSubstr("a micro-batch takes 247 KiB in the mean"),
                             HasSubstr("Use delta(quant(3), cold=quant(8)), or predict(CODEC)"),
                             HasSubstr("more passes"))));
  // Between the codec of its first visits and that of the later ones, and close to the former.
  const double none = StepSeconds("none"), quant = StepSeconds("quant(3)");
  ASSERT_GT(none, 2 * quant);
  EXPECT_LT(p.plan.predicted_step_s(), none);
  EXPECT_GT(p.plan.predicted_step_s(), none - 0.05 * (none - quant));
}

TEST_F(PlannerVisitsTest, TenPassesAreMostlyDifferences) {
  Passes(10);
  const PlannedJob p = Plan();
  EXPECT_NEAR(p.plan.first_visits(), 0.1, 1e-3);
  EXPECT_THAT(p.warnings, Not(Contains(HasSubstr("delta coding"))));
  const double none = StepSeconds("none"), quant = StepSeconds("quant(3)");
  EXPECT_GT(p.plan.predicted_step_s(), quant + 0.05 * (none - quant));
  EXPECT_LT(p.plan.predicted_step_s(), quant + 0.15 * (none - quant));
}

TEST_F(PlannerVisitsTest, TheWarningStartsAtHalfAndNamesWhatWouldHelp) {
  const auto warns = HasSubstr("delta coding gains");
  Passes(2.1);
  EXPECT_THAT(Plan().warnings, Not(Contains(warns)));
  Passes(1.9);
  EXPECT_THAT(Plan().warnings, Contains(warns));
  in_.job.mutable_compression()->set_forward("delta(quant(3), cold=quant(8))");
  EXPECT_THAT(Plan().warnings, Contains(AllOf(warns, HasSubstr("Use predict(CODEC)"))));
  in_.job.mutable_compression()->set_forward("delta(quant(3), cold=predict(quant(4)))");
  EXPECT_THAT(Plan().warnings, Contains(AllOf(warns, HasSubstr("Use more passes"))));
  Passes(0.5);
  EXPECT_THAT(Plan().warnings, Contains(HasSubstr("delta coding gains nothing")));
  in_.job.mutable_compression()->set_forward("quant(3)");
  EXPECT_THAT(Plan().warnings, Not(Contains(warns)));
  EXPECT_EQ(Plan().plan.first_visits(), 0) << "no delta codec";
}

TEST_F(PlannerVisitsTest, WithoutAListOfDataAllVisitsAreFirstOnes) {
  Passes(10);
  for (NodeInfo& n : *in_.topology.mutable_nodes()) {
    n.set_data_listed(false);
    n.clear_data_files();
  }
  const PlannedJob p = Plan();
  EXPECT_EQ(p.plan.first_visits(), 1);
  EXPECT_THAT(p.warnings, Contains(HasSubstr("all visits of samples are counted as first ones")));
}

TEST_F(PlannerVisitsTest, AResumeCountsOnBuffersOfTheSamePlanOnly) {
  Passes(2);
  const isthmus::Plan before = Plan().plan;
  in_.start_step = 500;
  in_.from_checkpoint = true;
  EXPECT_EQ(Plan().plan.first_visits(), 1) << "one pass is left, and nothing of the first is known";
  in_.previous = before;
  const PlannedJob kept = Plan();
  EXPECT_LT(kept.plan.first_visits(), 0.01);
  EXPECT_THAT(kept.warnings, Not(Contains(HasSubstr("delta coding"))));
  EXPECT_THAT(kept.plan.explanation(),
              Contains(HasSubstr("resumed at step 500: its daemons keep the delta buffers of "
                                 "samples visited since step 0")));
  EXPECT_LT(kept.plan.predicted_step_s(), before.predicted_step_s());
  in_.previous.set_start_step(450);  // that plan began with nothing, as far as is known
  EXPECT_NEAR(Plan().plan.first_visits(), 0.9, 0.01);
  in_.previous.set_start_step(0);
  in_.job.mutable_compression()->set_forward("delta(quant(4))");  // other buffers
  const PlannedJob other = Plan();
  EXPECT_EQ(other.plan.first_visits(), 1);
  EXPECT_THAT(other.plan.explanation(),
              Contains(HasSubstr("no delta buffers of the steps before")));
  in_.job.mutable_compression()->set_forward("delta(quant(3))");
  in_.job.mutable_recipe()->set_global_batch(8);  // another order of samples
  EXPECT_THAT(Plan().plan.explanation(),
              Contains(HasSubstr("no delta buffers of the steps before")));
}

}  // namespace
}  // namespace isthmus::coordinator
