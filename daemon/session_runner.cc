#include "daemon/session_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/data/data_contents.h"
#include "proto/failure_cause.h"
#include "proto/plan/groups.h"
#include "proto/plan/local_checkpoints.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kMaxJobIdBytes = 80;                      // in an error
constexpr absl::Duration kCopyStands = absl::Seconds(10);  // no byte of a copy moved for so long

// That tells of a link while the session runs: the code sets it apart, the cause names its peer.
SessionEvent RunningEvent(const Plan& plan, int rank) {
  SessionEvent event;
  event.set_job_id(plan.job_id());
  event.set_generation(plan.generation());
  event.set_rank(rank);
  event.set_state(SessionEvent::RUNNING);
  event.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  return event;
}

void SetDeadlines(const Deadlines& deadlines, CheckpointClientOptions* checkpoints) {
  checkpoints->give_up_after =
      std::max(checkpoints->give_up_after, absl::Milliseconds(deadlines.drain_ms()));
  if (deadlines.checkpoint_ms() > 0)
    checkpoints->no_progress = absl::Milliseconds(deadlines.checkpoint_ms());
}

}  // namespace

SessionRunner::SessionRunner(SessionRunnerOptions options)
    : options_(std::move(options)),
      codec_states_(options_.state_dir + "/codec-state", options_.disk_bytes),
      parts_(options_.state_dir + "/checkpoints",
             {options_.disk_bytes,
              {options_.state_dir + "/codec-state", options_.state_dir + "/spill"}}) {
  sender_ = std::make_unique<PartSender>(&parts_, options_.checkpoints, options_.health);
  thread_ = options_.health->Spawn("session", [this] { Loop(); });
}

SessionRunner::~SessionRunner() {
  if (thread_.joinable() && !Shutdown(absl::CancelledError("the daemon is ending"), absl::Hours(1)))
    thread_.detach();
}

int SessionRunner::RankOf(const Plan& plan) const {
  for (int rank = 0; rank < plan.ranks_size(); ++rank) {
    if (plan.ranks(rank).node_id() == options_.node_id) return rank;
  }
  return -1;
}

void SessionRunner::Failed(const Plan& plan, int rank, int64_t step, const absl::Status& why) {
  SessionEvent event;
  event.set_job_id(plan.job_id());
  event.set_generation(plan.generation());
  event.set_rank(rank);
  event.set_state(SessionEvent::FAILED);
  event.set_step(step);
  event.set_message(std::string(why.message()));
  event.set_code(static_cast<int>(why.code()));
  *event.mutable_cause() = MakeCause(FailureCause::SESSION_FAILED, rank, options_.node_id, step);
  options_.observer->OnEvent(event);
}

void SessionRunner::Start(const Plan& plan) {
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    const uint64_t newest = fence_.Newest(plan.job_id());
    newest_of_all_ = std::max<uint64_t>(newest_of_all_, plan.generation());
    const bool runs = current_ != nullptr && current_->plan.job_id() == plan.job_id();
    if (shutdown_ || leaving_) {
      refused = absl::UnavailableError("the daemon is ending");
    } else if (runs && current_->plan.generation() == plan.generation()) {
      return;  // said twice
    } else if (plan.generation() <= newest) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("generation ", plan.generation(),
                       " is out of date: this daemon has seen generation ", newest));
    } else if (current_ != nullptr && !runs && current_->cancelled.ok() && !current_->stop) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("this daemon runs job ", current_->plan.job_id(), ", generation ",
                       current_->plan.generation(), "; it runs one job at a time"));
    } else {
      fence_.Accept(plan.job_id(), plan.generation());
      options_.board->SetSession(plan.job_id(), plan.generation(), DiallersOf(plan, RankOf(plan)));
      if (current_ != nullptr && current_->cancelled.ok() && (runs || !current_->stop)) {
        CancelCurrent(absl::CancelledError(
            absl::StrCat("generation ", plan.generation(), " takes its place")));
      }
      next_ = plan;
      sender_->BreakOff("a session begins");
      changed_.SignalAll();
    }
  }
  if (!refused.ok()) Failed(plan, RankOf(plan), plan.start_step(), refused);
}

void SessionRunner::Stop(const StopSession& stop) {
  absl::optional<Plan> never_started;
  {
    MutexLock lock(&mutex_);
    const auto meant = [&](const Plan& plan) {
      return (stop.job_id().empty() || stop.job_id() == plan.job_id()) &&
             (stop.generation() == 0 || stop.generation() == plan.generation());
    };
    if (next_.has_value() && meant(*next_)) {
      never_started = std::move(next_);
      next_.reset();
    }
    if (current_ != nullptr && meant(current_->plan)) StopCurrent(stop);
  }
  if (never_started.has_value()) {
    Failed(*never_started, RankOf(*never_started), never_started->start_step(),
           absl::CancelledError(absl::StrCat("stopped before it started: ", stop.reason())));
  }
}

void SessionRunner::Trace(const TraceSteps& trace) {
  MutexLock lock(&mutex_);
  if (current_ == nullptr || current_->session == nullptr ||
      current_->plan.job_id() != trace.job_id() ||
      current_->plan.generation() != trace.generation()) {
    return;
  }
  current_->session->RequestTrace(trace.steps());
}

void SessionRunner::StopCurrent(const StopSession& stop) {
  LogInfo("stopping job ", current_->plan.job_id(),
          stop.graceful() ? " after this step: " : " now: ", stop.reason());
  if (stop.graceful()) {
    current_->stop = true;
    if (current_->session != nullptr) current_->session->RequestStop();
  } else {
    CancelCurrent(
        absl::CancelledError(stop.reason().empty() ? "stopped by the coordinator" : stop.reason()));
  }
}

void SessionRunner::CancelCurrent(const absl::Status& why) {
  if (!current_->cancelled.ok()) return;
  current_->cancelled = why;
  if (current_->links != nullptr) current_->links->Cancel(why);
  if (current_->checkpoints != nullptr) current_->checkpoints->Cancel(why);
  if (current_->buddy != nullptr) current_->buddy->Cancel(why);
  if (current_->session != nullptr) current_->session->Cancel(why);
}

void SessionRunner::Leave(const std::string& reason) {
  {
    MutexLock lock(&mutex_);
    leaving_ = true;
  }
  StopSession stop;  // whatever runs
  stop.set_graceful(true);
  stop.set_reason(reason);
  Stop(stop);
}

void SessionRunner::PutKept(const KeptPart& part) {
  if (idle()) sender_->Ask(part);
}

void SessionRunner::OnRemoved(const std::string& job_id) {
  if (running().job_id == job_id) return;  // it can't be
  LogInfo("job ", job_id, " was removed: what this host keeps of it goes");
  parts_.Remove(job_id);
  codec_states_.RemoveJob(job_id);
}

absl::Status SessionRunner::KeepCopy(const PutCheckpointHeader& header, const ByteSource& part,
                                     const std::string& from) {
  {
    MutexLock lock(&mutex_);
    const bool runs = current_ != nullptr && current_->plan.job_id() == header.job_id() &&
                      current_->plan.generation() == header.generation();
    const Plan& plan = runs ? current_->plan : Plan::default_instance();
    const int mine = RankOf(plan);
    const RankPlan* sender = nullptr;
    for (const RankPlan& rank : plan.ranks()) {
      const bool its = rank.stage() == header.stage() &&
                       (header.replica() == 0 || rank.replica() == header.replica());
      if (sender == nullptr && its && mine >= 0 && rank.buddy() == mine + 1) sender = &rank;
    }
    if (sender == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no copy is kept of stage ", header.stage(), " of checkpoint ", header.step(), " of job ",
          header.job_id().substr(0, kMaxJobIdBytes), ", generation ", header.generation(),
          ": this daemon ", runs ? "is no buddy of that stage" : "does not run it"));
    }
    if (!from.empty() && from != sender->node_id())
      return absl::PermissionDeniedError(
          absl::StrCat("a part of stage ", header.stage(), " comes from node ", sender->node_id(),
                       ", this one from ", from.substr(0, kMaxJobIdBytes)));
  }
  return parts_.Keep(header, part).status();
}

// Of the daemon that keeps copies of what this one keeps. A copy that does not get on holds up no
// end of a session; the next one is another try.
std::unique_ptr<CheckpointClient> SessionRunner::MakeBuddy(const Plan& plan, int rank) const {
  const int buddy = plan.ranks(rank).buddy() - 1;
  if (LocalEvery(plan) == 0 || buddy < 0 || buddy >= plan.ranks_size()) return nullptr;
  CheckpointClientOptions copies = options_.checkpoints;
  copies.coordinator = plan.ranks(buddy).address();
  copies.buddy_id = plan.ranks(buddy).node_id();
  copies.give_up_after = absl::ZeroDuration();
  copies.no_progress = kCopyStands;
  return std::make_unique<CheckpointClient>(std::move(copies));
}

bool SessionRunner::idle() const {
  MutexLock lock(&mutex_);
  return current_ == nullptr && !next_.has_value();
}

bool SessionRunner::Shutdown(const absl::Status& why, absl::Duration patience) {
  const auto deadline = SteadyAfter(patience);
  sender_->Stop();
  {
    MutexLock lock(&mutex_);
    shutdown_ = true;
    next_.reset();
    if (current_ != nullptr) CancelCurrent(why);
    changed_.SignalAll();
    while (!ended_) {
      if (!changed_.WaitUntil(&mutex_, deadline)) return false;
    }
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

uint64_t SessionRunner::newest_generation() const {
  MutexLock lock(&mutex_);
  return newest_of_all_;
}

SessionRunner::Running SessionRunner::running() const {
  MutexLock lock(&mutex_);
  Running running;
  running.progress = progress_base_;
  if (current_ == nullptr) return running;
  running.job_id = current_->plan.job_id();
  running.generation = current_->plan.generation();
  running.rank = current_->rank;
  if (running.rank >= 0) running.stage = current_->plan.ranks(running.rank).stage();
  running.step = current_->plan.start_step();
  if (current_->checkpoints != nullptr)
    running.checkpoint_bytes = current_->checkpoints->bytes_moved();
  if (current_->session != nullptr) {
    running.progress += current_->session->progress();
    running.step = current_->session->step();
  }
  return running;
}

void SessionRunner::Loop() {
  while (true) {
    Current* current = nullptr;
    {
      MutexLock lock(&mutex_);
      while (!shutdown_ && !next_.has_value()) changed_.Wait(&mutex_);
      if (shutdown_) {
        ended_ = true;
        changed_.SignalAll();
        return;
      }
      current_ = std::make_unique<Current>();
      current_->plan = *std::move(next_);
      next_.reset();
      current = current_.get();
    }
    RunOne(current);
    std::unique_ptr<Current> finished;
    {
      MutexLock lock(&mutex_);
      if (current_->session != nullptr) progress_base_ += current_->session->progress();
      finished = std::move(current_);
    }
    finished.reset();  // outside the lock: links, channels, gigabytes of weights
    if (options_.release_memory) options_.release_memory();
  }
}

void SessionRunner::RunOne(Current* current) {
  const Plan& plan = current->plan;
  LogInfo("job ", plan.job_id(), " generation ", plan.generation(), " starts at step ",
          plan.start_step());
  absl::Status status;
  try {
    status = Build(current);
    if (status.ok()) {
      current->session->Run().IgnoreError();  // it tells the observer how it ended
      return;
    }
  } catch (const std::exception& exception) {
    status = absl::InternalError(absl::StrCat("an exception left the session: ", exception.what()));
  }
  // The coordinator takes it as this rank's: nothing of the session may be there yet.
  Failed(plan, RankOf(plan), plan.start_step(), status);
}

absl::Status SessionRunner::Build(Current* current) {
  const Plan& plan = current->plan;
  const int rank = RankOf(plan);
  if (rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has no rank for this daemon (", options_.node_id, ")"));
  }
  std::unique_ptr<worker::Corpus> corpus;
  uint64_t contents = 0;
  if (ReadsData(plan, rank)) {
    if (options_.list_data)
      contents = DataContents(plan.job().data(), options_.list_data().files());
    ASSIGN_OR_RETURN(corpus, options_.open_corpus(options_.data_dir, plan.job()));
  }
  const std::string spill = absl::StrCat(options_.state_dir, "/spill");
  std::error_code error;
  std::filesystem::create_directories(spill, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("can't make ", spill, ": ", error.message()));

  CheckpointClientOptions checkpoints = options_.checkpoints;
  SetDeadlines(plan.deadlines(), &checkpoints);
  checkpoints.parts = &parts_;
  parts_.Begin(plan.job_id(), plan.start_step());
  auto links = std::make_unique<GrpcLinkOpener>(
      LinkOpenerOptions{options_.node_id, options_.board, options_.watchdog, options_.dialling,
                        [this, running = RunningEvent(plan, rank)](const std::string& peer,
                                                                   const std::string& trouble) {
                          SessionEvent event = running;
                          event.mutable_cause()->set_node(peer);
                          event.set_message(trouble);
                          options_.observer->OnEvent(event);
                        },
                        options_.uplink});
  auto store = std::make_unique<CheckpointClient>(checkpoints);
  auto buddy = MakeBuddy(plan, rank);

  worker::SessionOptions session_options;
  session_options.plan = plan;
  session_options.rank = rank;
  session_options.spill_directory = spill;
  session_options.links = links.get();
  session_options.checkpoints = store.get();
  session_options.buddy = buddy.get();
  if (buddy != nullptr) {
    session_options.cancel_copies = [to = buddy.get()] {
      to->Cancel(absl::CancelledError("the session has ended"));
    };
  }
  session_options.codec_states = &codec_states_;
  session_options.observer = options_.observer;
  session_options.corpus = corpus.get();
  session_options.data_contents = contents;
  session_options.make_stage = options_.make_stage;
  session_options.make_lane = options_.make_lane;
  ASSIGN_OR_RETURN(auto session, options_.make_session(std::move(session_options)));

  MutexLock lock(&mutex_);
  current->rank = rank;
  current->corpus = std::move(corpus);
  current->links = std::move(links);
  current->checkpoints = std::move(store);
  current->buddy = std::move(buddy);
  current->session = std::move(session);
  if (!current->cancelled.ok()) return current->cancelled;
  if (current->stop) current->session->RequestStop();
  return absl::OkStatus();
}

}  // namespace isthmus::daemon
