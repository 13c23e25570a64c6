// The part of JobTable that judges whether sessions still run of which nothing is heard. A lost
// connection to the coordinator says nothing about them: the links between daemons are others.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/core/job_names.h"
#include "coordinator/core/jobs.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

// A link to a daemon that is there again is mended within so long: a dial may take 3 s, and it is
// told after 1 s.
constexpr absl::Duration kMendedWithin = absl::Seconds(4);

bool Gone(const StageState& s) { return !s.ended && s.gone_since.has_value(); }

// Daemons that are heard and see no progress for so long say that the missing one is lost. Half of
// a step's deadline: longer than any action takes, shorter than the sessions themselves wait.
absl::Duration Patience(const Job& job, absl::Duration lease) {
  const Deadlines& d = job.plan.deadlines();
  const bool first = job.status.step() == job.plan.start_step();
  const bool done = job.status.step() >= EndOf(job);  // the last checkpoint is under way
  const int64_t step_ms = first ? std::max(d.first_step_ms(), d.step_ms()) : d.step_ms();
  return std::max(lease, absl::Milliseconds(done ? d.drain_ms() : step_ms / 2));
}

// Who of a job is heard.
struct Roll {
  int lost = -1;    // the stage that has been gone for longest; -1: none is
  int heard = 0;    // daemons, also of those that have ended well ...
  int working = 0;  // ... and without them
  absl::Time alone_since = absl::InfinitePast();  // since then all that are gone have been
  absl::Time progressed = absl::InfinitePast();   // the last sign of it, of any
  std::vector<std::string> names;                 // "daemon NAME is lost", of each that is gone
  FailureCause cause;                             // names them, too

  // Daemons have a time to come back after a restart of the coordinator.
  bool WaitsAfterRestart(const Job& job, absl::Time now) const {
    return std::any_of(job.stages.begin(), job.stages.end(), [&](const StageState& s) {
      return !s.ended && s.confirm_by.has_value() && now < *s.confirm_by;
    });
  }
};

Roll CallRoll(const Job& job, const Membership& members) {
  Roll roll;
  roll.cause = MakeCause(FailureCause::DAEMONS_LOST, -1, "", job.status.step());
  for (int i = 0; i < static_cast<int>(job.stages.size()); ++i) {
    const StageState& s = job.stages[i];
    const RankPlan& at = job.plan.ranks(i);
    const Member* member = members.Find(at.node_id());
    if (member != nullptr && member->has_heartbeat &&
        member->heartbeat.generation() == job.status.generation())
      roll.progressed = std::max(roll.progressed, member->progress_changed);
    if (!Gone(s)) {
      roll.heard += s.ended ? member != nullptr && member->alive() : 1;
      roll.working += !s.ended;
      continue;
    }
    roll.names.push_back(absl::StrCat("daemon ", at.node_name(), " is lost"));
    roll.cause.add_lost(at.node_id());
    roll.alone_since = std::max(roll.alone_since, *s.gone_since);
    if (roll.lost < 0 || *s.gone_since < *job.stages[roll.lost].gone_since) roll.lost = i;
  }
  return roll;
}

}  // namespace

int64_t ValidatesAfter(const Job& job, const Membership& members) {
  if (job.status.state() != JOB_RUNNING) return -1;
  int64_t committed = -1;
  for (const RankPlan& rank : job.plan.ranks()) {
    const Member* member = members.Find(rank.node_id());
    if (member != nullptr && member->has_heartbeat &&
        member->heartbeat.generation() == job.status.generation())
      committed = std::max(committed, member->heartbeat.step());
  }
  // The record of a step comes after the validation pass that follows it.
  const bool later = committed > 0 && committed > job.status.step();
  return later && EvalAfter(job.plan, committed - 1) ? committed : -1;
}

std::vector<std::string> GoneWarnings(const Job& job, absl::Duration patience, absl::Time now) {
  std::vector<std::string> out;
  if (job.status.state() != JOB_RUNNING) return out;
  for (size_t i = 0; i < job.stages.size(); ++i) {
    const StageState& s = job.stages[i];
    if (!Gone(s) || now - *s.gone_since < patience) continue;
    out.push_back(absl::StrCat("daemon ", job.plan.ranks(static_cast<int>(i)).node_name(),
                               " is silent: nothing was heard of it for ",
                               DurationWords(now - *s.gone_since),
                               "; its session is taken to train on as long as others of the job "
                               "make progress. Look at its way to the coordinator"));
  }
  return out;
}

Commands JobTable::OnStreamGone(const std::string& node_id, absl::Time now) {
  Commands out;
  for (auto& [id, job] : jobs_) {
    const int stage = StageOf(job, node_id);
    if (stage < 0 || job.stages.empty()) continue;
    if (job.active() && job.leaving_node == node_id && !job.stages[stage].ended) {
      const FailureCause cause =
          MakeCause(FailureCause::DAEMON_LEFT, stage, node_id, job.status.step());
      for (Command& c : Fail(&job, cause, "its time was over", node_id, now))
        out.push_back(std::move(c));
      continue;
    }
    if (job.active()) {
      job.stages[stage].gone_since = now;
    } else if (job.failed_at.has_value() && now - *job.failed_at <= options_.blame &&
               !job.restored && !job.stages[stage].ended &&
               !CalledLost(job.status.cause(), node_id) &&
               (job.recovering || job.status.state() == JOB_PAUSED ||
                job.status.state() == JOB_FAILED)) {
      job.status.mutable_cause()->add_lost(node_id);
      job.because = absl::StrCat(
          LostWords(job.plan.ranks(stage).node_name(), now - *job.failed_at, "after"), job.because);
      Reword(&job);
      Touch(&job);
    }
  }
  return out;
}

void JobTable::OnNodeLost(const std::string& node_id, absl::Time heard) {
  for (auto& [id, job] : jobs_) {
    const int stage = StageOf(job, node_id);
    if (!job.active() || stage < 0 || job.stages[stage].ended) continue;
    std::optional<absl::Time>& since = job.stages[stage].gone_since;
    since = std::min(since.value_or(heard), heard);
    Touch(&job);
  }
}

void JobTable::Forgive(absl::Duration pause) {
  auto move = [pause](std::optional<absl::Time>* time) {
    if (time->has_value()) **time += pause;
  };
  for (auto& [id, job] : jobs_) {
    move(&job.deadline);
    move(&job.failed_at);
    move(&job.kept_away);
    job.progressed += pause;
    for (StageState& s : job.stages) {
      move(&s.gone_since);
      move(&s.confirm_by);
      for (auto& [peer, link] : s.broken_links) link.since += pause;
    }
  }
}

// Its sessions ran while nobody was heard: the job goes on under its generation.
bool JobTable::Revive(Job* job, absl::Time now) {
  const Job* same = NewestNamed(*this, job->spec.name());
  const bool taken = same != nullptr && same != job && !same->ended();
  if (!job->status.out_of_touch() || job->removing || taken) return false;
  if (job->recovering) {  // it was none
    job->interruptions = std::max(0, job->interruptions - 1);
    job->wait_for_nodes = false;
  }
  job->status.set_out_of_touch(false);
  job->failed_at.reset();
  job->progressed = now;
  for (StageState& s : job->stages) {
    s.prepared = true;
    if (!s.ended) s.gone_since = now;
  }
  SetState(job, JOB_RUNNING, "", now);
  return true;
}

// Neither the coordinator nor a neighbour finds the daemon: nobody waits for Patience then. But
// while the last checkpoint is stored there is no progress in good order, too.
Commands JobTable::TickCutOff(Job* job, absl::Time now) {
  if (job->status.state() != JOB_RUNNING || now - job->progressed < options_.lease ||
      job->status.step() >= EndOf(*job))
    return {};
  for (const StageState& teller : job->stages) {
    if (teller.ended || teller.gone_since.has_value()) continue;
    for (const auto& [peer, link] : teller.broken_links) {
      if (peer < 0 || now - link.since < kMendedWithin) continue;
      const StageState& s = job->stages[peer];
      if (!Gone(s) || now - *s.gone_since < options_.lease) continue;
      const RankPlan& at = job->plan.ranks(peer);
      FailureCause cause =
          MakeCause(FailureCause::DAEMONS_LOST, peer, at.node_id(), job->status.step());
      cause.add_lost(at.node_id());
      return Fail(job, cause,
                  absl::StrCat("daemon ", at.node_name(), " is lost: not heard for ",
                               DurationWords(now - *s.gone_since), ", and ", link.words),
                  at.node_id(), now);
    }
  }
  return {};
}

Commands JobTable::TickGone(Job* job, const Membership& members, absl::Time now) {
  Roll roll = CallRoll(*job, members);
  job->progressed = std::max(job->progressed, roll.progressed);
  if (roll.lost < 0 || roll.WaitsAfterRestart(*job, now)) return {};
  const int lost = roll.lost;
  const StageState& s = job->stages[lost];
  const absl::Duration gone = now - *s.gone_since, still = now - job->progressed;
  if (gone >= options_.lease) MaybeFinish(job, now);
  if (Commands out = TickCutOff(job, now); !out.empty() || !job->active()) return out;
  const bool runs = job->status.state() == JOB_RUNNING;
  const std::string& node = job->plan.ranks(lost).node_id();
  const std::string name = absl::StrCat("daemon ", job->plan.ranks(lost).node_name());
  const std::string held = absl::StrCat("; it held ", StageWords(job->plan, lost));
  FailureCause one = MakeCause(FailureCause::DAEMONS_LOST, lost, node, job->status.step());
  one.add_lost(node);
  if (job->status.state() == JOB_STARTING && gone >= options_.lease) {
    return Fail(job, one, absl::StrCat(name, " is lost: not heard for ", DurationWords(gone), held),
                node, now);
  }
  // Those who are heard have done their part, and can't tell whether the lost ones get on.
  const absl::Duration alone = now - roll.alone_since;
  const std::string names = absl::StrJoin(roll.names, ", ");
  const bool done = roll.heard > 0 && roll.working == 0 && alone >= options_.lease;
  if (done && (runs || job->status.state() == JOB_STOPPING)) {
    return Fail(job, roll.cause,
                absl::StrCat(names, ": not heard for ", DurationWords(alone),
                             ", while the last checkpoint was being stored",
                             roll.names.size() == 1 ? held : ""),
                "", now, true);
  }
  if (runs && roll.heard > 0 && gone >= options_.lease && still >= Patience(*job, options_.lease)) {
    return Fail(job, one,
                absl::StrCat(name,
                             s.confirm_by.has_value()
                                 ? " did not come back after the coordinator's restart"
                                 : absl::StrCat(" is lost: not heard for ", DurationWords(gone)),
                             ", and no daemon of the job has made progress for ",
                             DurationWords(still), held),
                node, now);
  }
  if (roll.heard > 0 || !runs || alone < options_.unheard) return {};
  return Fail(job, roll.cause,
              absl::StrCat("nobody of the job was heard for ", DurationWords(alone), ": ", names,
                           ". If their sessions train on, the job goes on when they are back",
                           MayRecover(*job)
                               ? absl::StrCat("; else it goes on by itself from its newest "
                                              "checkpoint, once one of them is restarted or in ",
                                              DurationWords(options_.abandon))
                               : ""),
              "", now, true);
}

}  // namespace isthmus::coordinator
