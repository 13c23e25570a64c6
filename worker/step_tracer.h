// What the threads of a session do in a few steps, and when: for `isthmus trace`. Off until a trace
// is asked for; then a step is recorded whole, from the first frame of it that arrives.
//
// A scope that is not recorded looks at two atomics and at no clock. Thread: any; BeginStep on the
// compute thread. Bounds: kMaxSteps of one request, kMaxSpans of one step (what is beyond is
// counted), and the steps of which frames are still to be sent (the outlets' queues).
#ifndef ISTHMUS_WORKER_STEP_TRACER_H_
#define ISTHMUS_WORKER_STEP_TRACER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "base/mutex.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::worker {

// What a span is of; -1: of none.
struct SpanOf {
  TraceSpan::Kind kind = TraceSpan::FORWARD;
  int micro = -1;
  const LinkPlan* link = nullptr;  // of plan.links
  int group = -1;                  // index in plan.groups
  FrameHeader::Kind frame = FrameHeader::ACTIVATION;
};

class StepTracer {
 public:
  static constexpr int kMaxSteps = 1000;
  static constexpr int kMaxSpans = 20'000;  // of a step, under 1 MB
  using Time = std::chrono::steady_clock::time_point;

  // `plan` outlives the tracer.
  StepTracer(const Plan& plan, int rank) : plan_(plan), rank_(rank) {}

  // Records so many steps from the next one on.
  void Request(int steps) { requested_ = steps; }
  void BeginStep(int64_t step);

  bool Wants(int64_t step) const {
    return step < end_.load(std::memory_order_relaxed) &&
           step >= first_.load(std::memory_order_relaxed);
  }
  // Of a step that it wants.
  Time Now() {
    ++clock_readings_;
    return std::chrono::steady_clock::now();
  }
  void Add(int64_t step, const SpanOf& what, Time begin, Time end, int64_t bytes);

  // The step is over: what was recorded of it. Nothing: it was not wanted.
  std::optional<StepTrace> Take(int64_t step);

  int64_t clock_readings() const { return clock_readings_; }

 private:
  const Plan& plan_;
  const int rank_;
  std::atomic<int> requested_{0};
  std::atomic<int64_t> first_{0}, end_{0};
  std::atomic<int64_t> clock_readings_{0};
  Mutex mutex_;
  std::map<int64_t, StepTrace> steps_ ABSL_GUARDED_BY(mutex_);
};

// The time it lives, as a span of the tracer, if there is one that wants the step.
class TraceScope {
 public:
  TraceScope(StepTracer* tracer, int64_t step, const SpanOf& what)
      : tracer_(tracer != nullptr && tracer->Wants(step) ? tracer : nullptr), step_(step) {
    if (tracer_ == nullptr) return;
    what_ = what;
    begin_ = tracer_->Now();
  }
  ~TraceScope() {
    if (tracer_ != nullptr) tracer_->Add(step_, what_, begin_, tracer_->Now(), bytes_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  bool on() const { return tracer_ != nullptr; }
  void set_bytes(int64_t bytes) { bytes_ = bytes; }

 private:
  StepTracer* const tracer_;
  const int64_t step_;
  SpanOf what_;
  StepTracer::Time begin_;
  int64_t bytes_ = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_STEP_TRACER_H_
