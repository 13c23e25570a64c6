#include "coordinator/planner/phase_words.h"

#include <string>

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/phases.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

JobSpec Cycle() {
  JobSpec job = MakeJob(4, 256);
  job.mutable_recipe()->clear_steps();
  job.mutable_recipe()->clear_warmup_steps();
  job.mutable_recipe()->clear_min_learning_rate();
  for (int64_t steps : {20, 160, 140}) job.add_phases()->set_steps(steps);
  job.mutable_phases(1)->set_layers(2);
  job.mutable_phases(1)->set_heads(2);
  for (const char* name : {"a", "b"}) job.mutable_strategy()->add_nodes(name);
  job.mutable_compression()->set_forward("none");
  job.mutable_compression()->set_backward("bf16");
  job.mutable_compression()->set_tied("none");
  FillDefaults(&job);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  return job;
}

Plan PlanOf(const JobSpec& job, int phase) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.job = PhaseJob(job, phase);
  in.phases = {job.phases().begin(), job.phases().end()};
  in.phase = phase;
  in.phase_start = in.start_step = PhaseStart(job, phase);
  in.from_checkpoint = in.start_step > 0;
  for (const char* name : {"a", "b"}) *in.topology.add_nodes() = MakeNode(name, 10);
  JoinAll(&in.topology, 100, 20);
  const auto planned = MakePlan(in);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? planned->plan : Plan();
}

TEST(PhaseWords, APlanIsOfOnePhaseAndKnowsTheOthers) {
  const JobSpec job = Cycle();
  const Plan plan = PlanOf(job, 1);
  EXPECT_EQ(plan.phase(), 1);
  EXPECT_EQ(plan.phase_start(), 20);
  EXPECT_EQ(plan.start_step(), 20);
  EXPECT_EQ(plan.job().recipe().steps(), 180);
  EXPECT_EQ(plan.job().model().layers(), 2);
  EXPECT_EQ(plan.job().model().hidden(), 128);
  EXPECT_EQ(plan.job().phases_size(), 3);
  EXPECT_EQ(plan.ranks(1).end_layer(), 2);
}

TEST(PhaseWords, BytesOfAStepAreThoseOfBoundariesAndGroups) {
  const JobSpec job = Cycle();
  const double samples = 32, context = 128;
  // Activations in fp32, gradients in bf16, the embedding's gradient in fp32 both ways.
  EXPECT_DOUBLE_EQ(StepBytes(PlanOf(job, 0)),
                   samples * context * 256 * (4 + 2) + 2 * 256 * 256 * 4);
  EXPECT_DOUBLE_EQ(StepBytes(PlanOf(job, 1)),
                   samples * context * 128 * (4 + 2) + 2 * 256 * 128 * 4);
}

// Slices that change hands at the end of a round were counted as an exchange of all at every step.
TEST(PhaseWords, BytesOfSubnetworksAreThoseOfARound) {
  JobSpec job = Cycle();
  StrategySpec* s = job.mutable_strategy();
  s->set_stages(1);
  s->set_replicas(2);
  s->set_local_steps(20);
  s->set_subnetworks("units");
  s->set_outer_learning_rate(1);
  s->set_outer_momentum(0);
  job.mutable_compression()->set_gradients("none");
  job.mutable_checkpoint()->set_every(0);
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  const Plan plan = PlanOf(job, 0);
  ASSERT_EQ(plan.replicas_size(), 2);
  double shared = 0, dealt = 0;
  for (const GroupPlan& group : plan.groups()) {
    const double bytes = 4.0 * static_cast<double>(group.rows() * group.width());
    (group.value() == GroupPlan::SLICE ? dealt : shared) += bytes;
  }
  // The shared ones to whoever sums them up and back; of a slice, which is half, half goes.
  const double expected = (2 * shared + dealt) / 20;
  EXPECT_NEAR(StepBytes(plan), expected, 0.03 * expected);
  job.mutable_checkpoint()->set_every(20);
  const double merged = (2 * shared + 1.5 * dealt) / 20;
  EXPECT_NEAR(StepBytes(PlanOf(job, 0)), merged, 0.03 * merged);
}

TEST(PhaseWords, ALineSaysAllOfAPhase) {
  const JobSpec job = Cycle();
  const std::string line = PhaseLine(job, PlanOf(job, 1));
  EXPECT_THAT(line, HasSubstr("phase 2 of 3: steps 21 to 180, 2 layers x 128, "));
  EXPECT_THAT(line, HasSubstr(" parameters, 2 stages on a, b: none and bf16, predicted "));
  EXPECT_THAT(line, HasSubstr(" and 3.25 MiB a step"));
}

TEST(PhaseWords, WorkIsComparedWithTheLargestShape) {
  EXPECT_THAT(WorkWords(Cycle()), HasSubstr("phases: all 320 steps take "));
  EXPECT_THAT(WorkWords(Cycle()),
              HasSubstr(" of the operations of as many steps of 4 layers x 256"));
  JobSpec job = Cycle();  // the small phase counts for less than an eighth, beside the head
  for (int p = 0; p < 3; ++p) job.mutable_phases(p)->set_steps(p == 1 ? 1000 : 1);
  job.mutable_recipe()->set_steps(1002);
  EXPECT_THAT(WorkWords(job), HasSubstr("take 1"));
}

}  // namespace
}  // namespace isthmus::coordinator
