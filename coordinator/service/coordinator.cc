#include "coordinator/service/coordinator.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "proto/job/job_state.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kDiskPatience =
    absl::Seconds(10);  // of a Submit that waits for its job to be stored
constexpr absl::Duration kRegisterRetry = absl::Seconds(1);
constexpr int kLogLine = 500;

std::string StateWords(const Job& job) {
  return absl::StrCat(StateName(job.status.state()), job.status.reason().empty() ? "" : ": ",
                      job.status.reason());
}

absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      members_(options_.membership),
      jobs_(options_.jobs),
      links_(options_.links),
      compute_(options_.compute) {}

absl::Time Coordinator::Now() const { return SteadyNow(); }

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Open(CoordinatorOptions options) {
  std::unique_ptr<Coordinator> c(new Coordinator(std::move(options)));
  ASSIGN_OR_RETURN(c->lock_, StateLock::Take(c->options_.state_dir));
  ASSIGN_OR_RETURN(c->store_, Store::Open(c->options_.state_dir));
  ASSIGN_OR_RETURN(c->checkpoints_, CheckpointStore::Open(c->options_.state_dir + "/checkpoints"));
  // The database may be new while the checkpoints are not: no id and no generation comes twice.
  const CheckpointStore::Highest highest = c->checkpoints_->highest();
  RETURN_IF_ERROR(c->store_->StartAfter(highest.generation, highest.job_number));
  RETURN_IF_ERROR(c->LoadStore());
  c->time_thread_ = std::thread([raw = c.get()] { raw->TimeLoop(); });
  c->pending_thread_ = std::thread([raw = c.get()] { raw->PendingLoop(); });
  return c;
}

absl::Status Coordinator::LoadStore() {
  ASSIGN_OR_RETURN(StoreContents contents, store_->Load());
  const absl::Time now = Now();
  MutexLock lock(&mutex_);
  std::set<std::pair<std::string, uint64_t>> live;
  int active = 0;
  for (StoredJob& stored : contents.jobs) {
    Job job;
    job.id = stored.id;
    job.number = stored.number;
    job.spec = std::move(stored.spec);
    job.wait_for_nodes = stored.wait_for_nodes;
    job.status = std::move(stored.status);
    job.boundaries.assign(job.status.boundaries().begin(), job.status.boundaries().end());
    job.status.clear_boundaries();
    if (stored.plan.has_value()) job.plan = *std::move(stored.plan);
    // A checkpoint may have become whole after the last word that was stored of its job.
    const uint64_t since =
        job.status.state() == JOB_PENDING ? job.status.generation() + 1 : job.status.generation();
    job.status.set_checkpoint_step(checkpoints_->Head(job.id, since, job.status.checkpoint_step()));
    // The plan and the state are one batch, so they agree; a job that was active has its plan.
    if (!job.active()) logged_states_[job.id] = StateWords(job);
    active += job.active();
    if (job.active() || job.status.out_of_touch()) live.insert({job.id, job.status.generation()});
    jobs_.Restore(
        std::move(job),
        std::max(stored.next_record_step, stored.plan.has_value() ? stored.plan->start_step() : 0),
        now);
  }
  jobs_.RestoreRemoved(contents.removed);
  checkpoints_->DropPartials(live);
  for (const NodeInfo& node : contents.nodes) {
    members_.Restore(node, now);
    compute_.Restore(node);
  }
  compute_.Forget(members_);
  for (const LinkMeasurement& link : contents.links) links_.Restore(link, now);
  links_.Forget(members_);
  if (!contents.jobs.empty()) {
    LogInfo("state directory ", options_.state_dir, ": ", contents.jobs.size(), " jobs, ", active,
            " of them were running; ", contents.nodes.size(), " daemons known");
  }
  LogOrphans();
  return absl::OkStatus();
}

Coordinator::~Coordinator() { Stop(); }

void Coordinator::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [stream, session] : sessions_) EndStream(stream);
    changed_.SignalAll();
  }
  if (time_thread_.joinable()) time_thread_.join();
  if (pending_thread_.joinable()) pending_thread_.join();
}

// ---- daemons ----

absl::Status Coordinator::OpenSession(Session* session) {
  MutexLock lock(&mutex_);
  if (stopping_) return Stopping();
  if (static_cast<int>(sessions_.size()) >= kMaxSessions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator already serves ", sessions_.size(), " streams of daemons, its limit"));
  }
  session->stream = ++last_stream_;
  session->opened = Now();
  sessions_[session->stream] = session;
  return absl::OkStatus();
}

absl::StatusOr<Registered> Coordinator::Register(Session* session,
                                                 const isthmus::Register& request) {
  // Daemons outlive a database: what one has seen comes before what is made from now on.
  RETURN_IF_ERROR(store_->StartAfter(request.newest_generation(), 0));
  MutexLock lock(&mutex_);
  const absl::Time asked = Now();
  std::string address;
  bool known = false;
  RegisterDecision decision;
  for (;;) {
    if (stopping_) return Stopping();
    if (sessions_.count(session->stream) == 0) return absl::CancelledError("the stream ended");
    const Member* old = members_.Find(request.node().id());
    known = old != nullptr;
    if (known) address = old->node.address();
    decision = members_.Register(request, session->stream, asked, Now());
    if (decision.kind != RegisterDecision::kWait) break;
    changed_.WaitUntil(&mutex_, SteadyAfter(kRegisterRetry));
  }
  if (decision.kind == RegisterDecision::kRefused) {
    LogWarning("registration refused: ", decision.reason);
    return absl::FailedPreconditionError(decision.reason);
  }
  LogInfo("registered: ", decision.reason);
  session->node_id = request.node().id();
  if (decision.replaced_stream != 0) EndStream(decision.replaced_stream);
  new_nodes_.insert(session->node_id);
  // The port of a daemon may change with each start; its host is what lies at the end of the link.
  links_.OnJoin(session->node_id, !known || HostOf(address) != HostOf(request.node().address()),
                Now());
  compute_.OnJoin(request.node(), decision.restarted, Now());
  TakeFigure(session->node_id);
  Dispatch(jobs_.OnRegistered(session->node_id, request, decision.restarted, Now()));
  changed_.SignalAll();
  Registered reply;
  reply.set_node_id(session->node_id);
  reply.set_lease_ms(absl::ToInt64Milliseconds(options_.membership.lease));
  reply.set_heartbeat_ms(absl::ToInt64Milliseconds(options_.membership.heartbeat));
  for (const auto& [id, label] : members_.Labels()) {
    for (const LinkMeasurement& link : links_.Among({session->node_id, id})) {
      if (link.from_id() != session->node_id || link.to_id() != id) continue;
      KnownLink* told = reply.add_links();
      told->set_peer_name(label);
      *told->mutable_link() = link;
    }
  }
  const Job* job = jobs_.Find(request.running_job_id());
  if (job != nullptr && !request.running_job_id().empty())
    reply.set_recorded_step(job->merger.next_step());
  return reply;
}

absl::Status Coordinator::OnMessage(Session* session, const DaemonMessage& message) {
  MutexLock lock(&mutex_);
  const absl::Time now = Now();
  const Member* member = members_.Find(session->node_id);
  if (member == nullptr || member->stream != session->stream)
    return absl::AbortedError(
        "another stream of this daemon has taken over, or its lease ran out: register again");
  const std::string& name = member->node.name();
  switch (message.what_case()) {
    case DaemonMessage::kHeartbeat:
      if (message.heartbeat().has_data()) new_nodes_.insert(session->node_id);  // to be stored
      if (message.heartbeat().has_kept())
        jobs_.OnKept(session->node_id, message.heartbeat().kept());
      return members_.OnHeartbeat(session->node_id, session->stream, message.heartbeat(), now);
    case DaemonMessage::kProbeResult: {
      const absl::Status taken = links_.OnResult(session->node_id, message.probe_result(), now);
      if (!taken.ok()) LogWarning("daemon ", name, ": ", taken.message());
      changed_.SignalAll();
      return absl::OkStatus();
    }
    case DaemonMessage::kStep: {
      const int64_t unix_ms = absl::ToUnixMillis(absl::Now());
      const absl::Status taken = jobs_.OnStep(session->node_id, message.step(), now, unix_ms);
      if (!taken.ok()) LogDebug("daemon ", name, ": ", taken.message());
      const Job* job = jobs_.JobOn(session->node_id);
      if (taken.ok() && job != nullptr) compute_.OnStep(member->node, job->plan, message.step());
      changed_.SignalAll();
      return absl::OkStatus();
    }
    case DaemonMessage::kCompute: {
      const absl::Status taken = compute_.OnResult(session->node_id, message.compute(), now);
      if (!taken.ok()) LogWarning("daemon ", name, ": ", taken.message());
      TakeFigure(session->node_id);
      new_nodes_.insert(session->node_id);  // to be stored
      changed_.SignalAll();
      return absl::OkStatus();
    }
    case DaemonMessage::kLeaving:
      LogInfo("daemon ", name, " is ending: ", message.leaving().reason().substr(0, 100));
      members_.OnLeaving(session->node_id);
      Dispatch(jobs_.OnLeaving(session->node_id, message.leaving(), now));
      changed_.SignalAll();
      return absl::OkStatus();
    case DaemonMessage::kSession:
      if (const SessionEvent& e = message.session();
          e.state() == SessionEvent::PREPARED && !e.message().empty()) {
        LogInfo("job ", e.job_id().substr(0, 64), ", daemon ", name, ": ",
                e.message().substr(0, 500));
      }
      if (message.session().state() == SessionEvent::FAILED) DoubtLinks(message.session());
      Dispatch(jobs_.OnEvent(session->node_id, message.session(), now));
      changed_.SignalAll();
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(message.has_register_()
                                            ? "a stream registers once"
                                            : "a message without contents, or of a newer version");
  }
}

// A session that could not open its links, or waited for one in vain: what was measured of them may
// hold no longer (a path that drops large packets lets small ones pass).
void Coordinator::DoubtLinks(const SessionEvent& failed) {
  const Job* job = jobs_.Find(failed.job_id());
  if (job == nullptr || !job->active() || job->status.generation() != failed.generation()) return;
  const bool late = failed.code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded);
  if (job->status.state() != JOB_STARTING && !late) return;
  for (const LinkPlan& link : job->plan.links()) {
    if (link.lower() == failed.rank() || link.upper() == failed.rank())
      links_.Doubt(job->plan.ranks(link.lower()).node_id(),
                   job->plan.ranks(link.upper()).node_id());
  }
}

void Coordinator::CloseSession(Session* session) {
  MutexLock lock(&mutex_);
  sessions_.erase(session->stream);
  if (!session->node_id.empty() &&
      members_.OnStreamGone(session->node_id, session->stream, Now())) {
    const Member* member = members_.Find(session->node_id);
    LogInfo("daemon ", member->node.name(), ": its connection ended");
    links_.OnGone(session->node_id, Now());
    compute_.OnGone(session->node_id);
    Dispatch(jobs_.OnStreamGone(session->node_id, Now()));
  }
  changed_.SignalAll();
}

void Coordinator::EndStream(uint64_t stream) {
  auto it = sessions_.find(stream);
  if (it == sessions_.end()) return;
  it->second->outgoing.Close(absl::CancelledError("the stream ends"));
  it->second->cancel();
}

void Coordinator::Dispatch(Commands commands) {
  for (Command& c : commands) SendTo(c.node_id, std::move(c.message));
}

void Coordinator::SendTo(const std::string& node_id, CoordinatorMessage message) {
  const Member* member = members_.Find(node_id);
  auto it = member == nullptr ? sessions_.end() : sessions_.find(member->stream);
  if (it == sessions_.end()) return;  // its job learns it from the lease
  const absl::Status pushed = it->second->outgoing.Push(std::move(message), absl::ZeroDuration());
  if (pushed.ok() || absl::IsCancelled(pushed)) return;
  LogWarning("daemon ", member->node.name(), " does not read what it is told; its stream is ended");
  EndStream(it->first);
}

// ---- time ----

void Coordinator::TimeLoop() {
  auto flush_at = std::chrono::steady_clock::now();
  for (;;) {
    bool flush = false, stop = false;
    {
      MutexLock lock(&mutex_);
      const auto wake = SteadyAfter(options_.tick);
      while (!stopping_ && (disk_trouble_ || flush_wanted_ == flush_done_) &&
             changed_.WaitUntil(&mutex_, wake)) {
      }
      stop = stopping_;
      Tick();
      const bool urgent = flush_wanted_ != flush_done_ && !disk_trouble_;
      flush = stop || urgent || std::chrono::steady_clock::now() >= flush_at;
    }
    if (flush) {
      Flush();
      flush_at = SteadyAfter(options_.flush_every);
    }
    if (stop) return;
  }
}

void Coordinator::Tick() {
  const absl::Time now = Now();
  if (const absl::Duration pause = pauses_.Look(now, BootNow()); pause > absl::ZeroDuration()) {
    LogWarning("this process stood still for ", DurationWords(pause),
               " (stopped, suspended or starved): leases and deadlines do not count it");
    members_.Forgive(pause, now);
    jobs_.Forgive(pause);
    links_.Forgive(pause);
  }
  for (const LostNode& lost : members_.Expire(now)) {
    LogWarning(lost.reason);
    EndStream(lost.stream);
    links_.OnGone(lost.node_id, now);
    jobs_.OnNodeLost(lost.node_id, now - options_.membership.lease);
    compute_.OnGone(lost.node_id);
    changed_.SignalAll();
  }
  for (auto& [stream, session] : sessions_) {
    if (session->node_id.empty() &&
        now - session->opened > options_.first_message + options_.membership.silence)
      session->cancel();
  }
  Dispatch(jobs_.Tick(members_, now));
  if (!TickCompute()) TickProbes();
  TickFetches();
}

void Coordinator::TakeFigure(const std::string& node_id) {
  if (const auto figure = compute_.Figure(node_id); figure.has_value())
    members_.SetCompute(node_id, *figure);
}

bool Coordinator::TickCompute() {
  const absl::Time now = Now();
  std::set<std::string> working, busy;
  for (const auto& [id, m] : members_.members()) {
    if (jobs_.JobOn(id) != nullptr || m.heartbeat.generation() != 0) working.insert(id);
    if (links_.Measures(id)) busy.insert(id);
  }
  busy.insert(working.begin(), working.end());
  if (const auto id = compute_.Next(members_, busy, now); id.has_value()) {
    CoordinatorMessage message;
    message.mutable_measure_compute();
    SendTo(*id, std::move(message));
  }
  return compute_.HoldsLinks(members_, working, now);
}

void Coordinator::TickProbes() {
  while (const auto task = links_.Next(members_, jobs_.Working(), Now())) {
    CoordinatorMessage message;
    ProbeRequestList* probe = message.mutable_probe();
    probe->set_max_seconds_per_peer_ms(absl::ToInt64Milliseconds(options_.links.probe_budget));
    probe->set_both_ways(task->both_ways);
    probe->set_max_bytes_per_peer(task->max_bytes);
    NodeInfo* peer = probe->add_peers();
    *peer = members_.Find(task->to_id)->node;
    peer->clear_data_files();
    const auto labels = members_.Labels();
    if (const auto label = labels.find(task->to_id); label != labels.end())
      peer->set_name(label->second);
    SendTo(task->from_id, std::move(message));
  }
}

// ---- the store ----

StoreBatch Coordinator::Collect() {
  StoreBatch batch;
  const absl::Time now = Now();
  const JobTable::Dirty dirty = jobs_.TakeDirty();
  for (const std::string& id : dirty.changed) {
    const Job* job = jobs_.Find(id);
    if (job == nullptr) continue;
    StoredJob stored;
    stored.id = id;
    stored.number = job->number;
    stored.wait_for_nodes = job->wait_for_nodes;
    stored.spec = job->spec;
    stored.status = jobs_.Status(*job, now);
    if (dirty.new_plan.count(id) > 0) stored.plan = job->plan;
    if (job->ended()) sweep_[id] = now + options_.parts_patience;
    if (dirty.new_plan.count(id) > 0) sweep_[id] = now;
    batch.jobs.push_back(std::move(stored));
  }
  batch.forgotten.assign(dirty.forgotten.begin(), dirty.forgotten.end());
  batch.truncated.swap(truncated_);
  batch.records = jobs_.TakeRecords();
  for (const std::string& id : new_nodes_) {
    const Member* member = members_.Find(id);
    if (member != nullptr) batch.nodes.push_back(member->node);
  }
  new_nodes_.clear();
  batch.links = links_.TakeChanged();
  return batch;
}

void Coordinator::LogStates() {
  for (const Job* job : jobs_.All()) {
    std::string words = StateWords(*job);
    std::string& logged = logged_states_[job->id];
    if (logged == words) continue;
    const bool bad = job->status.state() == JOB_PAUSED || job->status.state() == JOB_FAILED;
    LogMessage(bad ? LogLevel::kWarning : LogLevel::kInfo,
               absl::StrCat("job ", job->id, ", generation ", job->status.generation(), ", step ",
                            job->status.step(), ": ", words.substr(0, kLogLine)));
    logged = std::move(words);
  }
  for (auto it = logged_states_.begin(); it != logged_states_.end();)
    it = jobs_.Find(it->first) == nullptr ? logged_states_.erase(it) : std::next(it);
}

void Coordinator::Flush() {
  uint64_t wanted = 0;
  absl::Status written = store_->Write(unwritten_);
  if (written.ok()) {
    unwritten_ = StoreBatch();
    {
      MutexLock lock(&mutex_);
      wanted = flush_wanted_;
      unwritten_ = Collect();
      LogStates();
    }
    written = store_->Write(unwritten_);
  }
  if (!written.ok()) {
    if (!disk_trouble_)
      LogError("what changed can't be stored and is kept in memory: ", written.message());
    disk_trouble_ = true;
    return;
  }
  if (disk_trouble_) LogInfo("the state database takes writes again");
  disk_trouble_ = false;
  SweepCheckpoints(unwritten_.forgotten);
  unwritten_ = StoreBatch();
  MutexLock lock(&mutex_);
  flush_done_ = std::max(flush_done_, wanted);
  changed_.SignalAll();
}

absl::Status Coordinator::WaitForFlush() {
  MutexLock lock(&mutex_);
  const uint64_t mine = ++flush_wanted_;
  changed_.SignalAll();
  const auto until = SteadyAfter(kDiskPatience);
  while (flush_done_ < mine) {
    if (stopping_) return Stopping();
    if (!changed_.WaitUntil(&mutex_, until))
      return absl::UnavailableError(
          "the state database did not take the job in time (see the coordinator's log)");
  }
  return absl::OkStatus();
}

}  // namespace isthmus::coordinator
