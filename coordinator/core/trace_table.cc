#include "coordinator/core/trace_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace isthmus::coordinator {
namespace {

constexpr int kSpareSteps = 2;      // a rank begins with the step after the one that it is in
constexpr int kMostSpare = 400;     // of steps much shorter than a round trip
constexpr double kUnknownTrip = 1;  // seconds, of a daemon whose clock is not known

}  // namespace

absl::StatusOr<Commands> TraceTable::Begin(const Plan& plan, int steps, uint64_t now_ns) {
  if (steps < 1 || steps > kMaxTraceSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("a trace is of 1 to ", kMaxTraceSteps, " steps, not of ", steps));
  }
  if (Find(plan.job_id()) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", plan.job_id(), " is being traced for somebody else: try again when that is done"));
  }
  Trace& trace = traces_[plan.job_id()];
  trace.plan = plan;
  trace.steps = steps;
  trace.ranks.resize(plan.ranks_size());
  Commands out;
  for (int r = 0; r < plan.ranks_size(); ++r)
    out.push_back(Reading(plan.ranks(r), &trace.ranks[r], now_ns));
  return out;
}

Command TraceTable::Reading(const RankPlan& at, Rank* rank, uint64_t now_ns) {
  rank->asked_ns = now_ns;
  Command command;
  command.node_id = at.node_id();
  command.message.mutable_clock()->set_coordinator_ns(now_ns);
  return command;
}

Commands TraceTable::OnClock(const std::string& node_id, const ClockReading& reading,
                             uint64_t now_ns) {
  int r = 0;
  Trace* trace = Of(node_id, &r);
  if (trace == nullptr) return {};
  Rank& rank = trace->ranks[r];
  if (rank.asked_ns == 0 || reading.coordinator_ns() != rank.asked_ns) return {};
  rank.asked_ns = 0;
  rank.clock.Add(reading.coordinator_ns(), reading.daemon_ns(), now_ns);
  if (rank.clock.readings() >= kClockReadings) return {};
  return {Reading(trace->plan.ranks(r), &rank, now_ns)};
}

bool TraceTable::ClocksRead(const std::string& job_id) const {
  const Trace* trace = Find(job_id);
  return trace != nullptr &&
         std::all_of(trace->ranks.begin(), trace->ranks.end(),
                     [](const Rank& r) { return r.clock.readings() >= kClockReadings; });
}

Commands TraceTable::Ask(const std::string& job_id, absl::Duration step) {
  const Trace* trace = Find(job_id);
  if (trace == nullptr) return {};
  double trip = 0;
  for (const Rank& r : trace->ranks) {
    const RankClock& clock = r.clock.best();
    trip =
        std::max(trip, clock.known() ? 2e-9 * static_cast<double>(clock.error_ns()) : kUnknownTrip);
  }
  const double apart = std::ceil(trip / std::max(absl::ToDoubleSeconds(step), 1e-6));
  const int spare = kSpareSteps + static_cast<int>(std::min<double>(apart, kMostSpare));
  Commands out;
  for (const RankPlan& rank : trace->plan.ranks()) {
    Command command;
    command.node_id = rank.node_id();
    TraceSteps* ask = command.message.mutable_trace();
    ask->set_job_id(job_id);
    ask->set_generation(trace->plan.generation());
    ask->set_steps(trace->steps + spare);
    out.push_back(std::move(command));
  }
  return out;
}

void TraceTable::OnTrace(const std::string& node_id, const StepTrace& step) {
  int r = 0;
  Trace* trace = Of(node_id, &r);
  if (trace == nullptr || trace->full || step.job_id() != trace->plan.job_id() ||
      step.generation() != trace->plan.generation() || step.rank() != r ||
      trace->ranks[r].steps.count(step.step()) > 0) {
    return;
  }
  const auto bytes = static_cast<int64_t>(step.ByteSizeLong());
  if (trace->bytes + bytes > kMaxTraceBytes) {
    trace->full = true;
    return;
  }
  trace->bytes += bytes;
  ++trace->heard;
  trace->ranks[r].steps[step.step()] = step;
}

std::vector<int64_t> TraceTable::Common(const Trace& trace) {
  std::map<int64_t, int> told;  // by how many
  int ranks = 0;
  for (const Rank& r : trace.ranks) {
    ranks += !r.steps.empty();
    for (const auto& [step, t] : r.steps) ++told[step];
  }
  std::vector<int64_t> common;
  for (const auto& [step, by] : told) {
    if (by == ranks && static_cast<int>(common.size()) < trace.steps) common.push_back(step);
  }
  return common;
}

bool TraceTable::Done(const std::string& job_id) const {
  const Trace* trace = Find(job_id);
  if (trace == nullptr || trace->full) return true;
  const bool all = std::none_of(trace->ranks.begin(), trace->ranks.end(),
                                [](const Rank& r) { return r.steps.empty(); });
  return all && static_cast<int>(Common(*trace).size()) >= trace->steps;
}

int64_t TraceTable::heard(const std::string& job_id) const {
  const Trace* trace = Find(job_id);
  return trace == nullptr ? 0 : trace->heard;
}

TraceJobReply TraceTable::End(const std::string& job_id) {
  TraceJobReply reply;
  const auto it = traces_.find(job_id);
  if (it == traces_.end()) return reply;
  Trace& trace = it->second;
  for (const int64_t step : Common(trace)) {
    for (Rank& r : trace.ranks) {
      if (const auto told = r.steps.find(step); told != r.steps.end())
        *reply.add_traces() = std::move(told->second);
    }
  }
  for (const Rank& r : trace.ranks) *reply.add_clocks() = r.clock.best();
  *reply.mutable_plan() = std::move(trace.plan);
  for (RankPlan& rank : *reply.mutable_plan()->mutable_ranks()) {  // nobody follows them there
    rank.clear_train();
    rank.clear_eval();
    rank.clear_agree();
  }
  traces_.erase(it);
  return reply;
}

const TraceTable::Trace* TraceTable::Find(const std::string& job_id) const {
  const auto it = traces_.find(job_id);
  return it == traces_.end() ? nullptr : &it->second;
}

TraceTable::Trace* TraceTable::Of(const std::string& node_id, int* rank) {
  for (auto& [id, trace] : traces_) {
    for (*rank = 0; *rank < trace.plan.ranks_size(); ++*rank) {
      if (trace.plan.ranks(*rank).node_id() == node_id) return &trace;
    }
  }
  return nullptr;
}

}  // namespace isthmus::coordinator
