#include "proto/plan/schedule.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace isthmus {
namespace {

Action Make(Action::Op op, int micro) {
  Action action;
  action.set_op(op);
  action.set_micro(micro);
  return action;
}

void AddForward(int stage, int stages, int micro, StageActions* out) {
  if (stage > 0) out->push_back(Make(Action::RECV_ACT, micro));
  out->push_back(Make(Action::FWD, micro));
  if (stage + 1 < stages) out->push_back(Make(Action::SEND_ACT, micro));
}

void AddBackward(int stage, int stages, int micro, StageActions* out) {
  if (stage + 1 < stages) out->push_back(Make(Action::RECV_GRAD, micro));
  out->push_back(Make(Action::BWD, micro));
  if (stage > 0) out->push_back(Make(Action::SEND_GRAD, micro));
}

// One direction of a boundary: what is under way, and when slots became free.
struct Channel {
  struct Message {
    int micro;
    double arrival_s;
  };
  std::deque<Message> queue;
  std::vector<double> popped_s;  // time of the k-th receive
  int sent = 0;
  double link_free_s = 0;
};

class Simulator {
 public:
  Simulator(const std::vector<StageActions>& schedule, int queue_limit, const ScheduleCosts& costs)
      : schedule_(schedule),
        limit_(std::max(1, queue_limit)),
        costs_(costs),
        stages_(schedule.size()) {
    next_.resize(stages_);
    clock_.resize(stages_);
    up_.resize(stages_);
    down_.resize(stages_);
    result_.stages.resize(stages_);
    result_.busy_s.resize(stages_);
  }

  absl::StatusOr<Simulation> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < stages_; ++s) {
        for (;;) {
          ASSIGN_OR_RETURN(bool done, Try(s));
          if (!done) break;
          moved = true;
        }
      }
    }
    RETURN_IF_ERROR(Finished());
    return std::move(result_);
  }

 private:
  // True if the stage's next action could run; false if it has to wait or there is none.
  absl::StatusOr<bool> Try(int s) {
    if (next_[s] == schedule_[s].size()) return false;
    const Action& a = schedule_[s][next_[s]];
    const double start = clock_[s];
    switch (a.op()) {
      case Action::RECV_ACT:
      case Action::RECV_GRAD: {
        const bool up = a.op() == Action::RECV_ACT;
        if (up ? s == 0 : s + 1 == stages_)
          return Broken(s, a, "there is no stage to receive from");
        Channel& channel = up ? up_[s - 1] : down_[s];
        if (channel.queue.empty()) return false;
        if (channel.queue.front().micro != a.micro()) {
          return Broken(s, a,
                        absl::StrCat("micro-batch ", channel.queue.front().micro, " comes next"));
        }
        clock_[s] = std::max(clock_[s], channel.queue.front().arrival_s);
        channel.queue.pop_front();
        channel.popped_s.push_back(clock_[s]);
        break;
      }
      case Action::SEND_ACT:
      case Action::SEND_GRAD: {
        const bool up = a.op() == Action::SEND_ACT;
        if (up ? s + 1 == stages_ : s == 0) return Broken(s, a, "there is no stage to send to");
        Channel& channel = up ? up_[s] : down_[s - 1];
        const int freed_by = channel.sent - limit_;
        if (freed_by >= static_cast<int>(channel.popped_s.size())) return false;
        if (freed_by >= 0) clock_[s] = std::max(clock_[s], channel.popped_s[freed_by]);
        const int boundary = up ? s : s - 1;
        channel.link_free_s =
            std::max(channel.link_free_s, clock_[s]) + (up ? costs_.up_s : costs_.down_s)[boundary];
        channel.queue.push_back({a.micro(), channel.link_free_s + costs_.latency_s[boundary]});
        ++channel.sent;
        break;
      }
      case Action::FWD:
      case Action::BWD: {
        const double cost = (a.op() == Action::FWD ? costs_.forward_s : costs_.backward_s)[s];
        clock_[s] += cost;
        result_.busy_s[s] += cost;
        result_.makespan_s = std::max(result_.makespan_s, clock_[s]);
        break;
      }
      default:
        break;
    }
    result_.stages[s].push_back({a, start, clock_[s]});
    ++next_[s];
    return true;
  }

  absl::Status Broken(int s, const Action& a, absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("schedule: stage ", s, ", action ", next_[s],
                                                      " (", ActionName(a), "): ", why));
  }

  absl::Status Finished() {
    for (int s = 0; s < stages_; ++s) {
      if (next_[s] < schedule_[s].size()) {
        return Broken(s, schedule_[s][next_[s]], absl::StrCat("deadlock at queue limit ", limit_));
      }
      if (!up_[s].queue.empty() || !down_[s].queue.empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat("schedule: boundary ", s, ": a send has no receive"));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<StageActions>& schedule_;
  const int limit_;
  const ScheduleCosts& costs_;
  const int stages_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::vector<Channel> up_;    // [b]: stage b -> b + 1
  std::vector<Channel> down_;  // [b]: stage b + 1 -> b
  Simulation result_;
};

// Each stage: FWD and BWD of each micro-batch once, a receive before the pass that needs it, a send
// after the pass that makes it.
absl::Status CheckOrder(int s, int stages, const StageActions& actions, int micros) {
  std::vector<int> done(micros, 0);  // bits of Action::Op
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    auto broken = [&](absl::string_view why) {
      return absl::FailedPreconditionError(
          absl::StrCat("schedule: stage ", s, ", action ", i, " (", ActionName(a), "): ", why));
    };
    if (a.op() == Action::SYNC || a.op() == Action::STEP) {
      if (i + 2 < actions.size()) return broken("SYNC and STEP end a step");
      continue;
    }
    if (a.micro() < 0 || a.micro() >= micros)
      return broken(absl::StrCat("there are ", micros, " micro-batches"));
    int& bits = done[a.micro()];
    auto has = [&](Action::Op op) { return (bits >> op) & 1; };
    if (has(a.op())) return broken("for the second time");
    const bool first = s == 0, last = s + 1 == stages;
    if (a.op() == Action::FWD && !first && !has(Action::RECV_ACT))
      return broken("before its RECV_ACT");
    if (a.op() == Action::SEND_ACT && !has(Action::FWD)) return broken("before its FWD");
    if (a.op() == Action::BWD && !has(Action::FWD)) return broken("before its FWD");
    if (a.op() == Action::BWD && !last && !has(Action::RECV_GRAD))
      return broken("before its RECV_GRAD");
    if (a.op() == Action::SEND_GRAD && !has(Action::BWD)) return broken("before its BWD");
    bits |= 1 << a.op();
  }
  for (int m = 0; m < micros; ++m) {
    if (!((done[m] >> Action::FWD) & 1) || !((done[m] >> Action::BWD) & 1)) {
      return absl::FailedPreconditionError(
          absl::StrCat("schedule: stage ", s, ": micro-batch ", m, " lacks its FWD or BWD"));
    }
  }
  const size_t n = actions.size();
  if (n < 2 || actions[n - 2].op() != Action::SYNC || actions[n - 1].op() != Action::STEP) {
    return absl::FailedPreconditionError(
        absl::StrCat("schedule: stage ", s, ": does not end with SYNC, STEP"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<StageActions>> BuildSchedule(const std::string& name, int stages,
                                                        int micros,
                                                        const std::vector<int>& warmups) {
  if (stages < 1 || micros < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: ", stages, " stages and ", micros,
                                                   " micro-batches; both must be at least 1"));
  }
  if (name != "gpipe" && name != "1f1b")
    return absl::InvalidArgumentError(absl::StrCat("schedule '", name, "': must be gpipe or 1f1b"));
  if (!warmups.empty() &&
      (static_cast<int>(warmups.size()) != stages ||
       !std::is_sorted(warmups.rbegin(), warmups.rend()) || warmups.back() < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule: warm-up forwards must be given for each of the ", stages,
                     " stages and never grow from one to the next"));
  }
  std::vector<StageActions> schedule(stages);
  for (int s = 0; s < stages; ++s) {
    const int warmup =
        name == "gpipe" ? micros : std::min(micros, warmups.empty() ? stages - 1 - s : warmups[s]);
    int forward = 0, backward = 0;
    while (forward < warmup) AddForward(s, stages, forward++, &schedule[s]);
    while (forward < micros) {
      AddForward(s, stages, forward++, &schedule[s]);
      AddBackward(s, stages, backward++, &schedule[s]);
    }
    while (backward < micros) AddBackward(s, stages, backward++, &schedule[s]);
    schedule[s].push_back(Make(Action::SYNC, 0));
    schedule[s].push_back(Make(Action::STEP, 0));
  }
  return schedule;
}

double SlowestPart(const ScheduleCosts& costs, int stages) {
  double slowest_s = 0;
  for (int s = 0; s < stages; ++s)
    slowest_s = std::max(slowest_s, costs.forward_s[s] + costs.backward_s[s]);
  for (int b = 0; b + 1 < stages; ++b)
    slowest_s = std::max({slowest_s, costs.up_s[b], costs.down_s[b]});
  return slowest_s;
}

std::vector<int> WarmUpForwards(const ScheduleCosts& costs, int stages, int micros,
                                int queue_limit) {
  const double slowest_s = SlowestPart(costs, stages);
  std::vector<int> warmups(stages, 0);
  for (int s = stages - 2; s >= 0; --s) {
    const double compute_s =
        costs.forward_s[s] + costs.backward_s[s] + costs.forward_s[s + 1] + costs.backward_s[s + 1];
    const double circle_s =
        compute_s + kLinkSlack * (costs.up_s[s] + costs.down_s[s] + 2 * costs.latency_s[s]);
    const double wanted = slowest_s > 0 ? std::ceil(circle_s / slowest_s * (1 - 1e-9)) - 1 : 1;
    const int more = static_cast<int>(std::clamp<double>(wanted, 1, 2 * queue_limit));
    warmups[s] = std::min(micros, warmups[s + 1] + more);
  }
  return warmups;
}

std::vector<StageActions> BuildEvalSchedule(int stages, int micros) {
  std::vector<StageActions> schedule(stages);
  for (int s = 0; s < stages; ++s) {
    for (int m = 0; m < micros; ++m) AddForward(s, stages, m, &schedule[s]);
  }
  return schedule;
}

ScheduleCosts ScheduleCosts::Unit(int stages) {
  const size_t n = stages;
  return {std::vector<double>(n, 1), std::vector<double>(n, 2), std::vector<double>(n),
          std::vector<double>(n), std::vector<double>(n)};
}

absl::StatusOr<Simulation> SimulateSchedule(const std::vector<StageActions>& schedule,
                                            int queue_limit, const ScheduleCosts& costs) {
  const size_t n = schedule.size();
  if (costs.forward_s.size() < n || costs.backward_s.size() < n || costs.up_s.size() + 1 < n ||
      costs.down_s.size() + 1 < n || costs.latency_s.size() + 1 < n) {
    return absl::InvalidArgumentError(
        "schedule costs: a value for each stage and boundary is needed");
  }
  return Simulator(schedule, queue_limit, costs).Run();
}

absl::Status CheckSchedule(const std::vector<StageActions>& schedule, int micros, int queue_limit) {
  const int stages = schedule.size();
  for (int s = 0; s < stages; ++s) RETURN_IF_ERROR(CheckOrder(s, stages, schedule[s], micros));
  return SimulateSchedule(schedule, queue_limit, ScheduleCosts::Unit(stages)).status();
}

std::vector<std::string> SchedulePicture(const std::vector<StageActions>& schedule, int queue_limit,
                                         int max_columns) {
  absl::StatusOr<Simulation> run =
      SimulateSchedule(schedule, queue_limit, ScheduleCosts::Unit(schedule.size()));
  if (!run.ok()) return {std::string(run.status().message())};
  const int columns = std::min<int>(max_columns, run->makespan_s);
  std::vector<std::string> lines;
  for (size_t s = 0; s < run->stages.size(); ++s) {
    std::vector<std::string> cells(columns, ".");
    for (const TimedAction& t : run->stages[s]) {
      if (t.action.op() != Action::FWD && t.action.op() != Action::BWD) continue;
      for (int c = t.start_s; c < t.end_s && c < columns; ++c) {
        cells[c] = absl::StrCat(t.action.op() == Action::FWD ? "F" : "B", t.action.micro());
      }
    }
    std::string line = absl::StrFormat("stage %-3d", s);
    for (const std::string& cell : cells) absl::StrAppendFormat(&line, "|%-3s", cell);
    lines.push_back(line + (columns < run->makespan_s ? "|..." : "|"));
  }
  return lines;
}

std::string ActionName(const Action& action) {
  const std::string name = Action::Op_Name(action.op());
  return action.op() == Action::SYNC || action.op() == Action::STEP
             ? name
             : absl::StrCat(name, " ", action.micro());
}

}  // namespace isthmus
