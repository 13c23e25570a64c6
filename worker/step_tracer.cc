#include "worker/step_tracer.h"

#include <algorithm>
#include <utility>

namespace isthmus::worker {
namespace {

int64_t Nanoseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

int IndexOf(const Plan& plan, const LinkPlan* link) {
  for (int l = 0; l < plan.links_size(); ++l) {
    if (&plan.links(l) == link) return l;
  }
  return -1;
}

}  // namespace

// From the next step on: frames of this one may have come already. What is recorded for an earlier
// request goes on without a gap.
void StepTracer::BeginStep(int64_t step) {
  const int steps = std::min(requested_.exchange(0), kMaxSteps);
  if (steps <= 0) return;
  if (!Wants(step)) {
    end_ = 0;
    first_ = step + 1;
  }
  end_ = std::max(end_.load(), step + 1 + steps);
}

void StepTracer::Add(int64_t step, const SpanOf& what, Time begin, Time end, int64_t bytes) {
  MutexLock lock(&mutex_);
  StepTrace& trace = steps_[step];
  if (trace.spans_size() >= kMaxSpans) {
    trace.set_dropped(trace.dropped() + 1);
    return;
  }
  TraceSpan* span = trace.add_spans();
  span->set_kind(what.kind);
  span->set_micro(what.micro);
  span->set_link(IndexOf(plan_, what.link));
  span->set_group(what.group);
  span->set_frame(what.frame);
  span->set_begin_ns(Nanoseconds(begin.time_since_epoch()));
  span->set_duration_ns(Nanoseconds(end - begin));
  span->set_bytes(bytes);
}

std::optional<StepTrace> StepTracer::Take(int64_t step) {
  if (!Wants(step)) return std::nullopt;
  MutexLock lock(&mutex_);
  StepTrace trace = std::move(steps_[step]);
  steps_.erase(steps_.begin(), steps_.upper_bound(step));
  trace.set_job_id(plan_.job_id());
  trace.set_generation(plan_.generation());
  trace.set_rank(rank_);
  trace.set_step(step);
  return trace;
}

}  // namespace isthmus::worker
