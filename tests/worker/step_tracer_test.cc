#include "worker/step_tracer.h"

#include <gtest/gtest.h>

#include <vector>

namespace isthmus::worker {
namespace {

Plan TwoLinks() {
  Plan plan;
  plan.set_job_id("bible-1");
  plan.set_generation(3);
  plan.add_links();
  plan.add_links();
  return plan;
}

void RunStep(StepTracer* tracer, const Plan& plan, int64_t step) {
  tracer->BeginStep(step);
  for (int micro = 0; micro < 10; ++micro) {
    const TraceScope compute(tracer, step, {TraceSpan::FORWARD, micro});
    TraceScope send(tracer, step, {TraceSpan::SEND, micro, &plan.links(1), -1});
    if (send.on()) send.set_bytes(100);
  }
}

// What an untraced step pays: no look at a clock, nothing kept.
TEST(StepTracer, ReadsNoClockUntilItIsAsked) {
  const Plan plan = TwoLinks();
  StepTracer tracer(plan, 1);
  for (int step = 0; step < 5; ++step) {
    RunStep(&tracer, plan, step);
    EXPECT_FALSE(tracer.Take(step).has_value());
  }
  EXPECT_EQ(tracer.clock_readings(), 0);
  const TraceScope of_none(nullptr, 0, {});
  EXPECT_FALSE(of_none.on());
}

TEST(StepTracer, RecordsTheNextStepsAndNoOthers) {
  const Plan plan = TwoLinks();
  StepTracer tracer(plan, 1);
  RunStep(&tracer, plan, 0);
  tracer.Request(2);
  std::vector<int64_t> steps;
  for (int step = 1; step < 6; ++step) {
    RunStep(&tracer, plan, step);
    const auto trace = tracer.Take(step);
    if (!trace.has_value()) continue;
    steps.push_back(trace->step());
    EXPECT_EQ(trace->job_id(), "bible-1");
    EXPECT_EQ(trace->generation(), 3);
    EXPECT_EQ(trace->rank(), 1);
    ASSERT_EQ(trace->spans_size(), 20);
    EXPECT_EQ(trace->spans(0).kind(), TraceSpan::SEND) << "the inner one ends first";
    EXPECT_EQ(trace->spans(0).link(), 1);
    EXPECT_EQ(trace->spans(0).bytes(), 100);
    EXPECT_EQ(trace->spans(1).kind(), TraceSpan::FORWARD);
    EXPECT_EQ(trace->spans(1).link(), -1);
    EXPECT_LE(trace->spans(1).begin_ns(), trace->spans(0).begin_ns());
    EXPECT_GE(trace->spans(1).duration_ns(), trace->spans(0).duration_ns());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 3})) << "step 1 had begun";
  EXPECT_EQ(tracer.clock_readings(), 2 * 2 * 20);
}

// The step under way was lost where a second trace followed a first one at once.
TEST(StepTracer, ASecondRequestLeavesNoGap) {
  const Plan plan = TwoLinks();
  StepTracer tracer(plan, 0);
  std::vector<int64_t> steps;
  for (int step = 0; step < 9; ++step) {
    if (step == 0) tracer.Request(3);
    if (step == 3) tracer.Request(2);
    if (step == 4) tracer.Request(1);
    RunStep(&tracer, plan, step);
    if (const auto trace = tracer.Take(step); trace.has_value()) steps.push_back(trace->step());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5}));
}

TEST(StepTracer, CountsWhatIsBeyondItsBound) {
  const Plan plan = TwoLinks();
  StepTracer tracer(plan, 0);
  tracer.Request(1 << 30);
  tracer.BeginStep(0);
  for (int i = 0; i < StepTracer::kMaxSpans + 7; ++i) {
    const TraceScope span(&tracer, 1, {});
  }
  const StepTrace trace = tracer.Take(1).value();
  EXPECT_EQ(trace.spans_size(), StepTracer::kMaxSpans);
  EXPECT_EQ(trace.dropped(), 7);
  EXPECT_LT(trace.ByteSizeLong(), 1 << 20) << "a message of the control stream";
  EXPECT_TRUE(tracer.Wants(StepTracer::kMaxSteps));
  EXPECT_FALSE(tracer.Wants(StepTracer::kMaxSteps + 1));
}

}  // namespace
}  // namespace isthmus::worker
