#include "proto/plan/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "proto/plan/overlap.h"

namespace isthmus {
namespace {

void Add(Action::Op op, int micro, int ahead, ActionList* out) {
  Action& action = out->emplace_back();
  action.set_op(op);
  action.set_micro(micro);
  action.set_ahead(ahead);
}

void AddFrame(Action::Op op, int link, FrameHeader::Kind what, int micro, int ahead,
              ActionList* out) {
  Add(op, micro, ahead, out);
  out->back().set_link(link);
  out->back().set_what(what);
}

}  // namespace

void AddForward(int stage, int stages, int micro, FrameHeader::Kind what, int ahead,
                ActionList* out) {
  if (stage > 0) AddFrame(Action::RECV, stage - 1, what, micro, ahead, out);
  Add(Action::FWD, micro, ahead, out);
  if (stage + 1 < stages) AddFrame(Action::SEND, stage, what, micro, ahead, out);
}

void AddBackward(int stage, int stages, int micro, int ahead, ActionList* out) {
  if (stage + 1 < stages) AddFrame(Action::RECV, stage, FrameHeader::GRADIENT, micro, ahead, out);
  Add(Action::BWD, micro, ahead, out);
  if (stage > 0) AddFrame(Action::SEND, stage - 1, FrameHeader::GRADIENT, micro, ahead, out);
}

int WarmUp(int stages, int stage, int micros, const std::vector<int>& warmups) {
  return std::min(micros, warmups.empty() ? stages - 1 - stage : warmups[stage]);
}

absl::Status CheckChain(int stages, int micros, const std::vector<int>& warmups) {
  if (stages < 1 || micros < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: ", stages, " stages and ", micros,
                                                   " micro-batches; both must be at least 1"));
  }
  if (!warmups.empty() &&
      (static_cast<int>(warmups.size()) != stages ||
       !std::is_sorted(warmups.rbegin(), warmups.rend()) || warmups.back() < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule: warm-up forwards must be given for each of the ", stages,
                     " stages and never grow from one to the next"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ActionList>> BuildSchedule(const std::string& name, int stages,
                                                      int micros, const std::vector<int>& warmups) {
  RETURN_IF_ERROR(CheckChain(stages, micros, warmups));
  if (name != "gpipe" && name != "1f1b")
    return absl::InvalidArgumentError(absl::StrCat("schedule '", name, "': must be gpipe or 1f1b"));
  std::vector<ActionList> schedule(stages);
  for (int s = 0; s < stages; ++s) {
    const int warmup = name == "gpipe" ? micros : WarmUp(stages, s, micros, warmups);
    int forward = 0, backward = 0;
    while (forward < warmup)
      AddForward(s, stages, forward++, FrameHeader::ACTIVATION, 0, &schedule[s]);
    while (forward < micros) {
      AddForward(s, stages, forward++, FrameHeader::ACTIVATION, 0, &schedule[s]);
      AddBackward(s, stages, backward++, 0, &schedule[s]);
    }
    while (backward < micros) AddBackward(s, stages, backward++, 0, &schedule[s]);
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

std::vector<int> WarmUpForwards(const ScheduleCosts& costs, int stages, int micros, int queue_limit,
                                int votes) {
  const double slowest_s = SlowestPart(costs, stages);
  std::vector<int> warmups(stages, 0);
  for (int s = stages - 2; s >= 0; --s) {
    const double compute_s =
        costs.forward_s[s] + costs.backward_s[s] + costs.forward_s[s + 1] + costs.backward_s[s + 1];
    const double circle_s =
        compute_s + kLinkSlack * (costs.up_s[s] + costs.down_s[s] + 2 * costs.latency_s[s]);
    const double wanted = slowest_s > 0 ? std::ceil(circle_s / slowest_s * (1 - 1e-9)) - 1 : 1;
    const int more =
        static_cast<int>(std::clamp<double>(wanted, 1, std::max(1, 2 * queue_limit - votes)));
    warmups[s] = std::min(micros, warmups[s + 1] + more);
  }
  return warmups;
}

std::vector<ActionList> BuildEvalSchedule(int stages, int micros) {
  std::vector<ActionList> schedule(stages);
  for (int s = 0; s < stages; ++s) {
    for (int m = 0; m < micros; ++m)
      AddForward(s, stages, m, FrameHeader::EVAL_ACTIVATION, 0, &schedule[s]);
  }
  return schedule;
}

std::vector<std::string> SchedulePicture(const std::vector<ActionList>& lists, const Wiring& wiring,
                                         int queue_limit, int max_columns,
                                         const std::vector<std::string>& names) {
  // Where steps overlap: two of them, from nothing under way to nothing under way.
  int micros = 1;
  bool ahead = false;
  for (const ActionList& list : lists) {
    for (const Action& a : list) {
      micros = std::max(micros, a.micro() + 1);
      ahead = ahead || a.ahead() != 0;
    }
  }
  const absl::StatusOr<Simulation> run = Simulate(ahead ? UnrollAll(lists, 2) : lists, wiring,
                                                  queue_limit, ScheduleCosts::Unit(wiring));
  if (!run.ok()) return {std::string(run.status().message())};
  const int columns = std::min<int>(max_columns, run->makespan_s);
  std::vector<std::string> lines;
  for (size_t s = 0; s < run->ranks.size(); ++s) {
    std::vector<std::string> cells(columns, ".");
    for (const TimedAction& t : run->ranks[s]) {
      if (t.action.op() != Action::FWD && t.action.op() != Action::BWD) continue;
      for (int c = t.start_s; c < t.end_s && c < columns; ++c) {
        const char* letters = t.action.micro() < micros ? "FB" : "fb";
        cells[c] = absl::StrCat(std::string(1, letters[t.action.op() == Action::FWD ? 0 : 1]),
                                t.action.micro() % micros);
      }
    }
    std::string line =
        absl::StrFormat("%-9s", s < names.size() ? names[s] : absl::StrCat("stage ", s));
    for (const std::string& cell : cells) absl::StrAppendFormat(&line, "|%-3s", cell);
    lines.push_back(line + (columns < run->makespan_s ? "|..." : "|"));
  }
  return lines;
}

}  // namespace isthmus
