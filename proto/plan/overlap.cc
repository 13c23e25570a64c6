#include "proto/plan/overlap.h"

#include <algorithm>

#include "base/status.h"
#include "proto/plan/schedule.h"

namespace isthmus {
namespace {

// Steps that are simulated: a few, and so many more, of which one is the mean.
constexpr int kFewSteps = 3, kMoreSteps = 3;

}  // namespace

bool Overlaps(const std::string& schedule) { return schedule == "overlap"; }
int VoteFrames(const std::string& schedule) { return Overlaps(schedule) ? 2 : 0; }
bool Overlaps(const JobSpec& job) { return Overlaps(job.strategy().schedule()); }

absl::StatusOr<std::vector<OverlapPasses>> BuildOverlap(int stages, int micros,
                                                        const std::vector<int>& warmups,
                                                        bool reduces) {
  RETURN_IF_ERROR(CheckChain(stages, micros, warmups));
  std::vector<OverlapPasses> result(stages);
  int before_vote = 0;  // pairs of passes: of every stage alike
  for (int s = 0; s < stages; ++s) {
    OverlapPasses& own = result[s];
    const int warmup = WarmUp(stages, s, micros, warmups);
    for (int i = 0; i < warmup; ++i) {
      AddForward(s, stages, i, FrameHeader::ACTIVATION, 1, &own.ending);
      AddBackward(s, stages, micros - warmup + i, 0, &own.ending);
    }
    // Stage 0 has the fewest left.
    if (s == 0 && reduces) before_vote = (micros - warmup) / 2;
    for (int i = 0; i < micros - warmup; ++i) {
      ActionList* part = i < before_vote ? &own.before_vote : &own.after_vote;
      AddForward(s, stages, warmup + i, FrameHeader::ACTIVATION, 1, part);
      AddBackward(s, stages, i, 1, part);
    }
  }
  return result;
}

absl::StatusOr<std::vector<ActionList>> OverlapChain(int stages, int micros,
                                                     const std::vector<int>& warmups,
                                                     bool reduces) {
  ASSIGN_OR_RETURN(const std::vector<OverlapPasses> passes,
                   BuildOverlap(stages, micros, warmups, reduces));
  std::vector<ActionList> lists(stages);
  for (int s = 0; s < stages; ++s) {
    ActionList& list = lists[s];
    const auto append = [&](const ActionList& part) {
      list.insert(list.end(), part.begin(), part.end());
    };
    const auto frame = [&](Action::Op op, int link, FrameHeader::Kind what) {
      if (link < 0 || link + 1 >= stages) return;
      Action& a = list.emplace_back();
      a.set_op(op);
      a.set_link(link);
      a.set_what(what);
    };
    append(passes[s].ending);
    append(passes[s].before_vote);
    frame(Action::RECV, s, FrameHeader::VOTE);
    frame(Action::SEND, s - 1, FrameHeader::VOTE);
    append(passes[s].after_vote);
    frame(Action::RECV, s - 1, FrameHeader::DECISION);
    frame(Action::SEND, s, FrameHeader::DECISION);
    list.emplace_back().set_op(Action::STEP);
  }
  return lists;
}

ActionList Unroll(const ActionList& list, int steps) {
  ActionList all;
  const auto follow = [&](int step, bool own, bool ahead) {
    for (Action a : list) {
      if (a.ahead() != 0 ? !ahead : !own) continue;
      a.set_ahead(step + a.ahead());
      all.push_back(std::move(a));
    }
  };
  follow(-1, false, true);
  for (int step = 0; step < steps; ++step) follow(step, true, step + 1 < steps);
  return all;
}

absl::StatusOr<double> StepSeconds(const std::string& schedule, int stages, int micros,
                                   const std::vector<int>& warmups, int queue_limit,
                                   const ScheduleCosts& costs) {
  const Wiring wiring = Wiring::Chain(stages);
  if (!Overlaps(schedule)) {
    ASSIGN_OR_RETURN(const auto lists, BuildSchedule(schedule, stages, micros, warmups));
    ASSIGN_OR_RETURN(const Simulation one, Simulate(lists, wiring, queue_limit, costs));
    return one.makespan_s;
  }
  ASSIGN_OR_RETURN(const auto lists, OverlapChain(stages, micros, warmups, stages > 1));
  ASSIGN_OR_RETURN(const Simulation few,
                   Simulate(UnrollAll(lists, kFewSteps), wiring, queue_limit, costs));
  ASSIGN_OR_RETURN(const Simulation more,
                   Simulate(UnrollAll(lists, kFewSteps + kMoreSteps), wiring, queue_limit, costs));
  return (more.makespan_s - few.makespan_s) / kMoreSteps;
}

std::vector<ActionList> UnrollAll(const std::vector<ActionList>& lists, int steps) {
  int micros = 1;
  for (const ActionList& list : lists) {
    for (const Action& a : list) micros = std::max(micros, a.micro() + 1);
  }
  std::vector<ActionList> all;
  for (const ActionList& list : lists) {
    all.push_back(Unroll(list, steps));
    for (Action& a : all.back()) a.set_micro(a.micro() + a.ahead() * micros);
  }
  return all;
}

}  // namespace isthmus
