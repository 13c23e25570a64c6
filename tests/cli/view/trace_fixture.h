// A trace as the coordinator gives one, for tests of what is made of it. Thread: pure functions.
#ifndef ISTHMUS_TESTS_CLI_VIEW_TRACE_FIXTURE_H_
#define ISTHMUS_TESTS_CLI_VIEW_TRACE_FIXTURE_H_

#include <string>

#include "proto/control.pb.h"

namespace isthmus::cli {

struct SpanSpec {
  TraceSpan::Kind kind;
  int64_t begin_us, duration_us;
  int micro = -1;
  int link = -1;
  FrameHeader::Kind frame = FrameHeader::ACTIVATION;
  int group = -1;
  int64_t bytes = 0;
};

inline void AddSpan(StepTrace* trace, const SpanSpec& spec) {
  TraceSpan* span = trace->add_spans();
  span->set_kind(spec.kind);
  span->set_begin_ns(1000 * spec.begin_us);
  span->set_duration_ns(1000 * spec.duration_us);
  span->set_micro(spec.micro);
  span->set_link(spec.link);
  span->set_frame(spec.frame);
  span->set_group(spec.group);
  span->set_bytes(spec.bytes);
}

// One step of two stages. The upper one's clock is 10 s behind, to 250 us.
inline TraceJobReply TwoStageTrace() {
  TraceJobReply reply;
  Plan* plan = reply.mutable_plan();
  plan->set_job_id("bible-1");
  plan->set_generation(3);
  for (int stage = 0; stage < 2; ++stage) {
    RankPlan* rank = plan->add_ranks();
    rank->set_stage(stage);
    rank->set_node_name(stage == 0 ? "n1" : "n\"2");
    reply.add_clocks()->set_known(true);
  }
  plan->add_links()->set_upper(1);
  plan->add_groups()->set_id("tied");
  reply.mutable_clocks(1)->set_offset_ns(int64_t{10'000'000'000});
  reply.mutable_clocks(1)->set_error_ns(250'000);
  constexpr int64_t kStart = 50'000'000;
  StepTrace* lower = reply.add_traces();
  lower->set_step(6);
  AddSpan(lower, {TraceSpan::FORWARD, kStart, 2000, 0});
  AddSpan(lower, {TraceSpan::ENCODE, kStart + 2000, 100, 0, 0, FrameHeader::ACTIVATION});
  AddSpan(lower, {TraceSpan::SEND, kStart + 2100, 900, 0, 0, FrameHeader::ACTIVATION, -1, 512});
  AddSpan(lower, {TraceSpan::WAIT, kStart + 2000, 5000, 0, 0, FrameHeader::GRADIENT});
  AddSpan(lower, {TraceSpan::BACKWARD, kStart + 7000, 2500, 0});
  AddSpan(lower, {TraceSpan::WAIT, kStart + 9600, 200, 0, 0, FrameHeader::CONTRIBUTION});
  AddSpan(lower, {TraceSpan::REDUCE, kStart + 9500, 400, -1, -1, FrameHeader::ACTIVATION, 0});
  AddSpan(lower, {TraceSpan::OPTIMISER, kStart + 9900, 100});
  StepTrace* upper = reply.add_traces();
  upper->set_step(6);
  upper->set_rank(1);
  constexpr int64_t kBehind = kStart - 10'000'000;
  AddSpan(upper, {TraceSpan::RECEIVE, kBehind + 2200, 850, 0, 0, FrameHeader::ACTIVATION, -1, 512});
  AddSpan(upper, {TraceSpan::DECODE, kBehind + 3050, 50, 0, 0, FrameHeader::ACTIVATION});
  AddSpan(upper, {TraceSpan::WAIT, kBehind + 100, 3000, 0, 0, FrameHeader::ACTIVATION});
  AddSpan(upper, {TraceSpan::FORWARD, kBehind + 3100, 1900, 0});
  return reply;
}

}  // namespace isthmus::cli

#endif  // ISTHMUS_TESTS_CLI_VIEW_TRACE_FIXTURE_H_
