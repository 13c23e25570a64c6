#include "coordinator/service/daemons.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kRegisterRetry = absl::Seconds(1);

// A daemon acts for the node that its certificate names, and for no other.
absl::Status CheckOwn(const tls::Certificate* certificate, const NodeInfo& node) {
  if (certificate == nullptr) return absl::OkStatus();
  const std::string& own = certificate->who.name;
  if (node.id() == own && node.name() == own) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the certificate is that of node ", own, ", the registration that of ",
                   node.name().substr(0, 80), " (identity ", node.id().substr(0, 80),
                   "): a daemon acts for its own node alone"));
}

}  // namespace

absl::Time Daemons::Now() { return SteadyNow(); }

// ---- words of daemons ----

absl::StatusOr<Registered> Daemons::Register(DaemonStream* daemon,
                                             const isthmus::Register& request) {
  if (const absl::Status own = CheckOwn(daemon->certificate.get(), request.node()); !own.ok()) {
    LogWarning("registration refused: ", own.message());
    return own;
  }
  // Daemons outlive a database: what one has seen comes before what is made from now on.
  RETURN_IF_ERROR(store_->StartAfter(request.newest_generation(), 0));
  MutexLock lock(&cores_->mutex);
  const std::string& id = request.node().id();
  const absl::Time asked = Now();
  std::string address;
  bool known = false;
  RegisterDecision decision;
  for (;;) {
    if (cores_->stopping) return Stopping();
    if (!streams_.IsOpen(daemon->number)) return absl::CancelledError("the stream ended");
    if (daemon->certificate != nullptr)
      RETURN_IF_ERROR(options_.tls->CheckRevoked(*daemon->certificate));
    const Member* old = cores_->members.Find(id);
    known = old != nullptr;
    if (known) address = old->node.address();
    decision = cores_->members.Register(request, daemon->number, asked, Now());
    if (decision.kind != RegisterDecision::kWait) break;
    cores_->changed.WaitUntil(&cores_->mutex, SteadyAfter(kRegisterRetry));
  }
  if (decision.kind == RegisterDecision::kRefused) {
    LogWarning("registration refused: ", decision.reason);
    return absl::FailedPreconditionError(decision.reason);
  }
  LogInfo("registered: ", decision.reason);
  daemon->node_id = id;
  if (daemon->certificate != nullptr) serials_[id] = daemon->certificate->serial;
  streams_.SetRegistered(daemon->number);
  if (decision.replaced_stream != 0) streams_.End(decision.replaced_stream);
  // The port of a daemon may change with each start; its host is what lies at the end of the link.
  cores_->links.OnJoin(id, !known || HostOf(address) != HostOf(request.node().address()), Now());
  cores_->compute.OnJoin(request.node(), decision.restarted, Now());
  TakeFigure(id);
  Send(cores_, cores_->jobs.OnRegistered(id, request, decision.restarted, Now()));
  cores_->changed.SignalAll();
  return Welcome(id, request.running_job_id());
}

Registered Daemons::Welcome(const std::string& node_id, const std::string& job_id) const {
  Registered reply;
  reply.set_node_id(node_id);
  reply.set_lease_ms(absl::ToInt64Milliseconds(options_.membership.lease));
  reply.set_heartbeat_ms(absl::ToInt64Milliseconds(options_.membership.heartbeat));
  for (const auto& [id, label] : cores_->members.Labels()) {
    for (const LinkMeasurement& link : cores_->links.Among({node_id, id})) {
      if (link.from_id() != node_id || link.to_id() != id) continue;
      KnownLink* told = reply.add_links();
      told->set_peer_name(label);
      *told->mutable_link() = link;
    }
  }
  const Job* job = job_id.empty() ? nullptr : cores_->jobs.Find(job_id);
  if (job != nullptr) reply.set_recorded_step(job->merger.next_step());
  return reply;
}

absl::Status Daemons::OnMessage(DaemonStream* daemon, const DaemonMessage& message) {
  MutexLock lock(&cores_->mutex);
  const absl::Time now = Now();
  const std::string& id = daemon->node_id;
  const Member* member = cores_->members.Find(id);
  if (member == nullptr || member->stream != daemon->number)
    return absl::AbortedError(
        "another stream of this daemon has taken over, or its lease ran out: register again");
  absl::Status taken;
  switch (message.what_case()) {
    case DaemonMessage::kHeartbeat:
      if (message.heartbeat().has_kept()) cores_->jobs.OnKept(id, message.heartbeat().kept());
      return cores_->members.OnHeartbeat(id, daemon->number, message.heartbeat(), now);
    case DaemonMessage::kProbeResult:
      taken = cores_->links.OnResult(id, message.probe_result(), now);
      TellLinkNews();
      break;
    case DaemonMessage::kStep:
      OnStep(*member, message.step(), now);
      break;
    case DaemonMessage::kCompute:
      taken = cores_->compute.OnResult(id, message.compute(), now);
      TakeFigure(id);
      break;
    case DaemonMessage::kLeaving:
      LogInfo("daemon ", member->node.name(),
              " is ending: ", message.leaving().reason().substr(0, kMaxLeavingBytes));
      cores_->members.OnLeaving(id, message.leaving().reason());
      Send(cores_, cores_->jobs.OnLeaving(id, message.leaving(), now));
      break;
    case DaemonMessage::kClock:
      Send(cores_, cores_->traces.OnClock(id, message.clock(), absl::ToUnixNanos(now)));
      break;
    case DaemonMessage::kTrace:
      cores_->traces.OnTrace(id, message.trace());
      break;
    case DaemonMessage::kSession:
      OnSession(*member, message.session(), now);
      break;
    default:
      return absl::InvalidArgumentError(message.has_register_()
                                            ? "a stream registers once"
                                            : "a message without contents, or of a newer version");
  }
  if (!taken.ok()) LogWarning("daemon ", member->node.name(), ": ", taken.message());
  cores_->changed.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<DrainReply> Daemons::Drain(const DrainRequest& request) {
  MutexLock lock(&cores_->mutex);
  ASSIGN_OR_RETURN(const std::string id, cores_->members.Drain(request.node(), !request.undo()));
  DrainReply reply;
  reply.set_node(cores_->members.Find(id)->node.name());
  LogInfo("daemon ", reply.node(), request.undo() ? " gets jobs again" : " is drained");
  const Job* job = cores_->jobs.JobOn(id);
  if (!request.undo()) {
    Commands commands = cores_->jobs.OnDrained(id, Now());
    if (!commands.empty() && job != nullptr) reply.set_job_id(job->id);
    Send(cores_, std::move(commands));
  }
  for (const auto& [node_id, member] : cores_->members.members())
    reply.set_usable(reply.usable() + (member.alive() && !member.leaving && !member.drained));
  cores_->changed.SignalAll();
  return reply;
}

void Daemons::OnStep(const Member& member, const StepRecord& record, absl::Time now) {
  const std::string& id = member.node.id();
  std::vector<LinkLook> looks;
  const absl::Status taken =
      cores_->jobs.OnStep(id, record, now, absl::ToUnixMillis(absl::Now()), &looks);
  // Of several links between two daemons the one that carries the most speaks for all.
  std::map<MeasuredLinks::Pair, const LinkLook*> most;
  for (const LinkLook& look : looks) {
    const LinkLook*& best = most[{look.from_id, look.to_id}];
    if (best == nullptr || look.now.bytes > best->now.bytes) best = &look;
  }
  for (const auto& [pair, look] : most) {
    if (const auto rate = CarriedRate(*look, cores_->links.RateOf(pair)); rate.has_value())
      cores_->links.Carries(pair, *rate, now);
  }
  TellLinkNews();
  if (!taken.ok()) LogDebug("daemon ", member.node.name(), ": ", taken.message());
  const Job* job = cores_->jobs.JobOn(id);
  if (taken.ok() && job != nullptr) cores_->compute.OnStep(member.node, job->plan, record);
}

void Daemons::TellLinkNews() {
  for (LinkNews& news : cores_->links.TakeNews()) {
    news.from_name = NameOf(news.from_id);
    news.to_name = NameOf(news.to_id);
    LogInfo("link ", news.from_name, " -> ", news.to_name, " carries ",
            FormatRate(news.now_bits_per_s), " after ", FormatRate(news.before_bits_per_s),
            " (measured between idle hosts: ", FormatRate(news.measured_bits_per_s), ")");
    cores_->jobs.OnLinkNews(news);
  }
}

std::string Daemons::NameOf(const std::string& node_id) const {
  const Member* member = cores_->members.Find(node_id);
  return member == nullptr ? node_id : member->node.name();
}

void Daemons::OnSession(const Member& member, const SessionEvent& event, absl::Time now) {
  if (event.state() == SessionEvent::PREPARED && !event.message().empty()) {
    LogInfo("job ", event.job_id().substr(0, 64), ", daemon ", member.node.name(), ": ",
            event.message().substr(0, 500));
  }
  if (event.state() == SessionEvent::FAILED) DoubtLinks(event);
  Send(cores_, cores_->jobs.OnEvent(member.node.id(), event, now));
}

// A session that could not open its links, or waited for one in vain: what was measured of them may
// hold no longer (a path that drops large packets lets small ones pass).
void Daemons::DoubtLinks(const SessionEvent& failed) {
  const Job* job = cores_->jobs.Find(failed.job_id());
  if (job == nullptr || !job->active() || job->status.generation() != failed.generation()) return;
  const bool late = failed.code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded);
  if (job->status.state() != JOB_STARTING && !late) return;
  for (const LinkPlan& link : job->plan.links()) {
    if (link.lower() == failed.rank() || link.upper() == failed.rank())
      cores_->links.Doubt(job->plan.ranks(link.lower()).node_id(),
                          job->plan.ranks(link.upper()).node_id());
  }
}

void Daemons::Close(DaemonStream* daemon) {
  streams_.Close(*daemon);
  MutexLock lock(&cores_->mutex);
  const std::string& id = daemon->node_id;
  if (!id.empty() && cores_->members.OnStreamGone(id, daemon->number, Now())) {
    LogInfo("daemon ", cores_->members.Find(id)->node.name(), ": its connection ended");
    cores_->links.OnGone(id, Now());
    cores_->compute.OnGone(id);
    Send(cores_, cores_->jobs.OnStreamGone(id, Now()));
  }
  cores_->changed.SignalAll();
}

// ---- words to daemons ----

void Daemons::Send(Cores* cores, Commands commands) {
  for (Command& c : commands) SendTo(cores, c.node_id, std::move(c.message));
}

void Daemons::SendTo(Cores* cores, const std::string& node_id, CoordinatorMessage message) {
  const Member* member = cores->members.Find(node_id);  // if it is gone, the lease tells its job
  if (member != nullptr) streams_.Send(member->stream, member->node.name(), std::move(message));
}

void Daemons::OnRevoked() {
  MutexLock lock(&cores_->mutex);
  for (const auto& [id, serial] : serials_) {
    if (!options_.tls->IsRevoked(serial)) continue;
    Evict(id, absl::StrCat("the certificate of daemon ", id, ", serial ", serial, ", is revoked"));
  }
  cores_->changed.SignalAll();
}

void Daemons::OnRevokedCall(const std::string& node_id, const std::string& serial) {
  MutexLock lock(&cores_->mutex);
  const Member* member = cores_->members.Find(node_id);
  if (member == nullptr || member->connected()) return;
  if (const auto own = serials_.find(node_id); own != serials_.end() && own->second != serial)
    return;
  serials_.emplace(node_id, serial);
  Evict(node_id, absl::StrCat("the certificate of daemon ", node_id, " is revoked"));
  cores_->changed.SignalAll();
}

bool Daemons::IsRevoked(const std::string& node_id) const {
  const auto own = serials_.find(node_id);
  return own != serials_.end() && options_.tls->IsRevoked(own->second);
}

// Its job does not wait for it to finish a step: nothing of it is wanted any more.
void Daemons::Evict(const std::string& node_id, const std::string& why) {
  const absl::Time now = Now();
  const Member* member = cores_->members.Find(node_id);
  const Job* job = cores_->jobs.JobOn(node_id);
  if (member == nullptr || (!member->connected() && job == nullptr)) return;  // it was before
  LogWarning(why);
  if (job != nullptr) {
    SessionEvent failed;
    failed.set_job_id(job->id);
    failed.set_generation(job->status.generation());
    failed.set_state(SessionEvent::FAILED);
    failed.set_step(job->status.step());
    failed.set_message(why);
    failed.set_code(static_cast<int>(absl::StatusCode::kUnauthenticated));
    for (int rank = 0; rank < job->plan.ranks_size(); ++rank) {
      if (job->plan.ranks(rank).node_id() == node_id) failed.set_rank(rank);
    }
    Send(cores_, cores_->jobs.OnEvent(node_id, failed, now));
  }
  const uint64_t stream = member->stream;
  if (stream == 0) return;
  streams_.End(stream);
  cores_->members.OnStreamGone(node_id, stream, now);
  cores_->links.OnGone(node_id, now);
  cores_->compute.OnGone(node_id);
}

// ---- time ----

void Daemons::Tick(absl::Time now, absl::Time boot) {
  MutexLock lock(&cores_->mutex);
  if (const absl::Duration pause = pauses_.Look(now, boot); pause > absl::ZeroDuration()) {
    LogWarning("this process stood still for ", DurationWords(pause),
               " (stopped, suspended or starved): leases and deadlines do not count it");
    cores_->members.Forgive(pause, now);
    cores_->jobs.Forgive(pause);
    cores_->links.Forgive(pause);
  }
  for (auto it = serials_.begin(); it != serials_.end();)  // of those that are forgotten
    it = cores_->members.Find(it->first) == nullptr ? serials_.erase(it) : std::next(it);
  for (const LostNode& lost : cores_->members.Expire(now)) {
    LogWarning(lost.reason);
    streams_.End(lost.stream);
    cores_->links.OnGone(lost.node_id, now);
    cores_->jobs.OnNodeLost(lost.node_id, now - options_.membership.lease);
    cores_->compute.OnGone(lost.node_id);
    cores_->changed.SignalAll();
  }
  streams_.EndUnregistered(now - options_.first_message - options_.membership.silence);
  Send(cores_, cores_->jobs.Tick(cores_->members, now));
  if (!TickCompute(now)) TickProbes(now);
}

void Daemons::TakeFigure(const std::string& node_id) {
  if (const auto figure = cores_->compute.Figure(node_id); figure.has_value())
    cores_->members.SetCompute(node_id, *figure);
}

bool Daemons::TickCompute(absl::Time now) {
  std::set<std::string> working, busy;
  for (const auto& [id, m] : cores_->members.members()) {
    if (cores_->jobs.JobOn(id) != nullptr || m.heartbeat.generation() != 0) working.insert(id);
    if (cores_->links.Measures(id)) busy.insert(id);
  }
  busy.insert(working.begin(), working.end());
  if (const auto id = cores_->compute.Next(cores_->members, busy, now); id.has_value()) {
    CoordinatorMessage message;
    message.mutable_measure_compute();
    SendTo(cores_, *id, std::move(message));
  }
  return cores_->compute.HoldsLinks(cores_->members, working, now);
}

void Daemons::TickProbes(absl::Time now) {
  while (const auto task = cores_->links.Next(cores_->members, cores_->jobs.Working(), now))
    SendProbe(*task);
  const std::set<MeasuredLinks::Pair> followed = cores_->jobs.FollowedLinks();
  while (const auto task = cores_->links.NextBeside(cores_->members, followed, now))
    SendProbe(*task);
}

void Daemons::SendProbe(const ProbeTask& task) {
  CoordinatorMessage message;
  ProbeRequestList* probe = message.mutable_probe();
  probe->set_max_seconds_per_peer_ms(absl::ToInt64Milliseconds(task.budget));
  probe->set_both_ways(task.both_ways);
  probe->set_max_bytes_per_peer(task.max_bytes);
  NodeInfo* peer = probe->add_peers();
  *peer = cores_->members.Find(task.to_id)->node;
  peer->clear_data_files();
  const auto labels = cores_->members.Labels();
  if (const auto label = labels.find(task.to_id); label != labels.end())
    peer->set_name(label->second);
  SendTo(cores_, task.from_id, std::move(message));
}

}  // namespace isthmus::coordinator
