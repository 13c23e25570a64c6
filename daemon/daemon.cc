#include "daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bit_rate.h"
#include "base/clock.h"
#include "base/file/tree.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/resources.h"
#include "daemon/session_metrics.h"

namespace isthmus::daemon {
namespace {

constexpr int kMaxProbePeers = 256;
constexpr absl::Duration kLookAtData = absl::Seconds(2);  // for files that come or go in --data-dir
constexpr absl::Duration kMaxProbeBudget = absl::Seconds(60);
constexpr absl::Duration kForGood = absl::Hours(24);
constexpr absl::Duration kLookAtPath = absl::Seconds(15);  // whether it is due to be measured
constexpr int64_t kPathBytes = 4 << 20;  // of one round; all have less than twice as many
constexpr absl::Duration kPathEvery = absl::Hours(6);
constexpr absl::Duration kPathAgain = absl::Minutes(5);  // after it could not be
constexpr absl::Duration kGoodbye = absl::Seconds(2);

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unnamed";
  return name;
}

}  // namespace

std::string EventWords(const SessionEvent& event) {
  const std::string at = absl::StrCat(" after step ", event.step());
  switch (event.state()) {
    case SessionEvent::PREPARED:
      return absl::StrCat("ready to go on", at);
    case SessionEvent::RUNNING:
      return absl::StrCat("runs", at);
    case SessionEvent::CHECKPOINTED:
      return absl::StrCat("this host's part of checkpoint ", event.step(), " is stored");
    case SessionEvent::FINISHED:
      return absl::StrCat("this host's session ended in good order", at);
    default:
      return absl::StrCat("session ended: ", event.message());
  }
}

Daemon::Daemon(DaemonOptions options, StateDir state)
    : options_(std::move(options)),
      state_(std::move(state)),
      instance_(RandomId()),
      records_(state_.path() + "/records"),
      uplink_(options_.uplink_bits_per_s),
      data_report_(options_.data_dir) {
  if (options_.name.empty()) options_.name = ToUtf8(HostName());
  if (options_.threads <= 0) options_.threads = UsableThreads();
  if (options_.memory_bytes <= 0) options_.memory_bytes = UsableMemoryBytes();
}

Daemon::~Daemon() {
  if (!shut_down_) Shutdown(absl::Hours(1));
}

absl::Status Daemon::Listen() {
  if (options_.tls != nullptr) {
    node_id_ = options_.tls->who().name;
  } else {
    ASSIGN_OR_RETURN(node_id_, state_.NodeId());
  }
  // Spill files of a daemon that was killed; the lock of the directory says that none is alive.
  RemoveTree(state_.path() + "/spill").IgnoreError();
  if (options_.uplink_bits_per_s > 0)
    LogInfo("all links share ", FormatBitRate(options_.uplink_bits_per_s), " a second (--uplink)");
  SessionRunnerOptions runner_options;
  runner_options.node_id = node_id_;
  runner_options.data_dir = options_.data_dir;
  runner_options.state_dir = state_.path();
  runner_options.disk_bytes = options_.disk_bytes;
  runner_options.checkpoints.coordinator = options_.coordinator;
  runner_options.checkpoints.dialling = options_.dialling;
  runner_options.checkpoints.backoff = options_.backoff;
  runner_options.checkpoints.scratch_dir = state_.path() + "/spill";  // wiped at each start
  runner_options.checkpoints.seed = Hash64(instance_);
  runner_options.checkpoints.watchdog = &watchdog_;
  runner_options.checkpoints.uplink = &uplink_;
  runner_options.dialling = options_.dialling;
  runner_options.board = &board_;
  runner_options.watchdog = &watchdog_;
  runner_options.uplink = &uplink_;
  runner_options.health = &health_;
  runner_options.observer = this;
  runner_options.make_session = options_.make_session;
  runner_options.make_stage = options_.make_stage;
  runner_options.make_lane = options_.make_lane;
  runner_options.release_memory = options_.release_memory;
  runner_options.open_corpus = options_.open_corpus;
  runner_options.list_data = [this] {
    MutexLock lock(&data_mutex_);
    return data_;
  };

  CoordinatorClientOptions client_options;
  client_options.address = options_.coordinator;
  client_options.dialling = options_.dialling;
  client_options.backoff = options_.backoff;
  client_options.seed = Hash64(instance_);
  client_options.watchdog = &watchdog_;
  client_options.health = &health_;
  client_options.listener = this;
  client_ = std::make_unique<CoordinatorClient>(std::move(client_options));
  runner_ = std::make_unique<SessionRunner>(std::move(runner_options));

  PeerServerOptions server_options;
  server_options.listen = options_.listen;
  server_options.node_id = node_id_;
  server_options.name = options_.name;
  server_options.tls = options_.tls;
  server_options.board = &board_;
  server_options.watchdog = &watchdog_;
  server_options.keep_copy = [this](const PutCheckpointHeader& header, const ByteSource& part,
                                    const std::string& from) {
    return runner_->KeepCopy(header, part, from);
  };
  ASSIGN_OR_RETURN(server_, PeerServer::Start(server_options));
  probing_ = health_.Spawn("probes", [this] { ProbeLoop(); });
  measuring_ = health_.Spawn("compute", [this] { ComputeLoop(); });
  ReportBuild(options_.version, options_.device);
  if (options_.http.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(http_,
                   HttpServer::Start(options_.http, {{"/metrics", [this] { return Metrics(); }},
                                                     {"/healthz", [this] { return Healthz(); }}}));
  return absl::OkStatus();
}

void Daemon::Join(const ComputeTimes& block) {
  {
    MutexLock lock(&block_mutex_);
    block_ = block;
  }
  looking_ = health_.Spawn("data", [this] { DataLoop(); });  // not beside the first measurement
  for (const StepRecord& record : records_.Load()) {
    logged_generation_ = std::max(logged_generation_, record.generation());
    SendRecord(record);
  }
  client_->Start();
  if (options_.tls != nullptr) {
    revoked_ = std::make_unique<RevokedWatch>(
        RevokedWatchOptions{options_.coordinator, options_.dialling, options_.tls, &health_});
  }
}

void Daemon::Leave(absl::Duration grace, const std::string& reason) {
  DaemonMessage message;
  message.mutable_leaving()->set_grace_ms(absl::ToInt64Milliseconds(grace));
  message.mutable_leaving()->set_reason(reason);
  client_->Send(std::move(message));
  runner_->Leave(absl::StrCat("daemon ", options_.name, " is ending (", reason, ")"));
}

bool Daemon::Shutdown(absl::Duration patience) {
  shut_down_ = true;
  health_.Ending();
  probes_.Abort(absl::CancelledError("ending"));
  measures_.Abort(absl::CancelledError("ending"));
  prober_.Cancel();
  {
    MutexLock lock(&data_mutex_);
    data_stop_ = true;
    data_changed_.SignalAll();
  }
  const bool ended =
      runner_ == nullptr ||
      runner_->Shutdown(absl::CancelledError(absl::StrCat("daemon ", options_.name, " is ending")),
                        patience);
  revoked_.reset();
  if (client_ != nullptr) client_->Stop(client_->connected() ? kGoodbye : absl::ZeroDuration());
  if (probing_.joinable()) probing_.join();
  if (measuring_.joinable()) measuring_.join();
  if (looking_.joinable()) looking_.join();
  if (!ended) return false;  // its links still use the server
  if (server_ != nullptr) server_->Shutdown();
  http_.reset();
  return true;
}

std::string Daemon::listening() const {
  return absl::StrCat(HostOf(options_.listen), ":", server_->port());
}

std::string Daemon::http_address() const {
  return http_ == nullptr ? "off" : absl::StrCat(HostOf(options_.http), ":", http_->port());
}

std::string Daemon::advertised() const {
  if (!options_.advertise.empty()) return options_.advertise;
  bool loopback = false;
  return absl::StrCat(AdvertisedHost(HostOf(options_.listen), options_.coordinator, &loopback), ":",
                      server_->port());
}

Register Daemon::MakeRegister() {
  Register message;
  NodeInfo* node = message.mutable_node();
  node->set_id(node_id_);
  node->set_name(options_.name);
  bool loopback = false;
  const std::string host = AdvertisedHost(HostOf(options_.listen), options_.coordinator, &loopback);
  const std::string address =
      options_.advertise.empty() ? absl::StrCat(host, ":", server_->port()) : options_.advertise;
  node->set_address(address);
  if (options_.advertise.empty() && loopback && !warned_loopback_) {
    warned_loopback_ = true;
    LogWarning("other daemons are told to dial ", address,
               ", which only this host reaches: for daemons on other hosts use --listen "
               "0.0.0.0:PORT or --advertise HOST:PORT");
  }
  node->set_threads(options_.threads);
  node->set_memory_bytes(options_.memory_bytes);
  const int64_t free_bytes = FreeDiskBytes(state_.path()) / 10 * 9;
  node->set_disk_bytes(options_.disk_bytes > 0 ? std::min(options_.disk_bytes, free_bytes)
                                               : free_bytes);
  {
    MutexLock lock(&block_mutex_);
    node->set_block_forward_s(block_.block_forward_s());
    node->set_block_backward_s(block_.block_backward_s());
    node->set_block_flops(block_.block_flops());
  }
  node->set_device(options_.device_uuid.empty()
                       ? options_.device
                       : absl::StrCat(options_.device, " ", options_.device_uuid));
  node->set_device_model(options_.device_model);
  node->set_device_memory_bytes(options_.device_memory_bytes);
  node->set_version(options_.version);
  if (http_ != nullptr) {
    const std::string http_host = HostOf(options_.http);
    bool ignored = false;
    const std::string reached = http_host == "0.0.0.0" || http_host == "[::]"
                                    ? HostOf(address)
                                    : AdvertisedHost(http_host, options_.coordinator, &ignored);
    node->set_metrics_address(absl::StrCat(reached, ":", http_->port()));
  }
  const DataListing data = data_report_.List();
  *node->mutable_data_files() = data.files();
  node->set_data_listed(data.complete());
  {
    MutexLock lock(&data_mutex_);
    data_ = data;
    data_told_ = data.SerializeAsString();
    *message.mutable_kept() = runner_->kept();
    kept_told_ = message.kept().SerializeAsString();
    path_told_ = false;
  }
  const SessionRunner::Running running = runner_->running();
  message.set_running_generation(running.generation);
  message.set_running_job_id(running.job_id);
  message.set_instance(instance_);
  // Of records too that are told again: a coordinator that lost its state must not number a run as
  // theirs was.
  message.set_newest_generation(std::max(runner_->newest_generation(), logged_generation_));
  return message;
}

void Daemon::OnRegistered(const Registered& registered) {
  for (const KnownLink& known : registered.links())
    ReportMeasurement(known.peer_name(), known.link());
  {
    MutexLock lock(&data_mutex_);
    if (path_.ByteSizeLong() == 0) path_due_ = std::chrono::steady_clock::time_point::min();
  }
  probes_.Push(ProbeRequestList(), absl::ZeroDuration()).IgnoreError();  // look at it now
}

void Daemon::DataLoop() {
  while (!data_stop_) {
    const bool all = data_report_.Look(data_stop_);
    DataListing data = data_report_.List();
    MutexLock lock(&data_mutex_);
    data_ = std::move(data);
    const auto next = SteadyAfter(kLookAtData);
    while (all && !data_stop_ && data_changed_.WaitUntil(&data_mutex_, next)) {
    }
  }
}

Heartbeat Daemon::MakeHeartbeat() {
  const SessionRunner::Running running = runner_->running();
  Heartbeat heartbeat;
  heartbeat.set_generation(running.generation);
  heartbeat.set_progress(running.progress);
  heartbeat.set_step(running.step);
  heartbeat.set_checkpoint_bytes(running.checkpoint_bytes);
  heartbeat.set_rss_bytes(ResidentBytes());
  heartbeat.set_disk_free_bytes(FreeDiskBytes(state_.path()));
  MutexLock lock(&data_mutex_);
  if (std::string data = data_.SerializeAsString(); data != data_told_) {
    data_told_ = std::move(data);
    *heartbeat.mutable_data() = data_;
  }
  const KeptParts kept = runner_->kept();
  if (std::string bytes = kept.SerializeAsString(); bytes != kept_told_) {
    kept_told_ = std::move(bytes);
    *heartbeat.mutable_kept() = kept;
  }
  if (!path_told_ && path_.ByteSizeLong() > 0) {
    path_told_ = true;
    *heartbeat.mutable_path() = path_;
  }
  return heartbeat;
}

void Daemon::OnStart(const Plan& plan) { runner_->Start(plan); }

void Daemon::OnStop(const StopSession& stop) { runner_->Stop(stop); }

void Daemon::OnPutKept(const KeptPart& part) { runner_->PutKept(part); }

void Daemon::OnRemovedJob(const std::string& job_id) { runner_->OnRemoved(job_id); }

void Daemon::OnTraceSteps(const TraceSteps& trace) { runner_->Trace(trace); }

void Daemon::OnProbe(const ProbeRequestList& probe) {
  const absl::Status status = probes_.Push(probe, absl::ZeroDuration());
  if (absl::IsDeadlineExceeded(status))
    LogWarning("a request to measure links was left out: two are waiting already");
}

// One that waits is as good as two.
void Daemon::OnMeasureCompute() {
  measures_.Push(MeasureCompute(), absl::ZeroDuration()).IgnoreError();
}

// Zeros where a session runs, or began meanwhile: what was measured beside it says nothing.
ComputeTimes Daemon::TimeBlock() {
  const auto runs = [this] { return runner_->running().generation != 0; };
  if (options_.measure_compute == nullptr || runs()) return ComputeTimes();
  const auto cancelled = [this, &runs] { return shut_down_ || runs(); };
  const absl::StatusOr<ComputeTimes> times = options_.measure_compute(cancelled);
  if (cancelled()) return ComputeTimes();
  if (!times.ok()) {
    LogWarning("measuring the reference block: ", times.status().message());
    return ComputeTimes();
  }
  LogInfo("reference block: forward ", times->block_forward_s(), " s, backward ",
          times->block_backward_s(), " s, measured again while this host is idle");
  MutexLock lock(&block_mutex_);
  block_ = *times;
  return *times;
}

void Daemon::ComputeLoop() {
  while (true) {
    const absl::StatusOr<MeasureCompute> request = measures_.Pop(kForGood);
    if (absl::IsDeadlineExceeded(request.status())) continue;
    if (!request.ok()) return;
    DaemonMessage message;
    *message.mutable_compute() = TimeBlock();
    client_->Send(std::move(message));
  }
}

void Daemon::ProbeLoop() {
  while (true) {
    const absl::StatusOr<ProbeRequestList> request = probes_.Pop(kLookAtPath);
    if (!request.ok() && !absl::IsDeadlineExceeded(request.status())) return;
    MeasurePath();
    if (request.ok() && request->peers_size() > 0) MeasureLinks(*request);
  }
}

void Daemon::MeasureLinks(const ProbeRequestList& request) {
  ProbeOptions options;
  options.dialling = options_.dialling;
  const absl::Duration asked = absl::Milliseconds(request.max_seconds_per_peer_ms());
  if (asked > absl::ZeroDuration()) options.budget = std::min(asked, kMaxProbeBudget);
  options.both_ways = request.both_ways();
  options.several = runner_->idle();  // beside a session a look must do
  if (request.max_bytes_per_peer() > 0) options.max_bytes = request.max_bytes_per_peer();
  DaemonMessage message;
  ProbeResult* told = message.mutable_probe_result();
  const int peers = std::min(request.peers_size(), kMaxProbePeers);
  for (int i = 0; i < peers; ++i) {
    const NodeInfo& peer = request.peers(i);
    const ProbeResult measured = prober_.Measure(node_id_, peer, options);
    ReportMeasurement(peer.name(), measured.links(0));
    if (!measured.links(0).error().empty())
      LogWarning("measuring links: ", measured.links(0).error());
    told->mutable_links()->MergeFrom(measured.links());
    told->set_bytes(told->bytes() + measured.bytes());
  }
  client_->Send(std::move(message));
}

// When it has joined, and rarely after; never beside a session, whose checkpoints use the path.
void Daemon::MeasurePath() {
  const auto now = std::chrono::steady_clock::now();
  if (!runner_->idle()) return;
  {
    MutexLock lock(&data_mutex_);
    if (now < path_due_) return;
  }
  ProbeOptions options;
  options.dialling = options_.dialling;
  options.max_bytes = kPathBytes;
  const absl::StatusOr<CoordinatorPath> path = prober_.MeasurePath(options_.coordinator, options);
  MutexLock lock(&data_mutex_);
  if (!path.ok()) {
    if (absl::IsResourceExhausted(path.status())) return;  // others measure theirs: soon again
    path_due_ = now + absl::ToChronoSeconds(kPathAgain);
    LogInfo("the path to the coordinator was not measured: ", path.status().message());
    return;
  }
  path_due_ = now + absl::ToChronoSeconds(kPathEvery);
  path_ = *path;
  path_told_ = false;
  client_->BeatNow();  // a job that waits for this daemon's links is planned with it
}

void Daemon::OnStep(const StepRecord& record) {
  metrics_.ReportStep(record);
  records_.Add(record);
  SendRecord(record);
}

void Daemon::SendRecord(const StepRecord& record) {
  DaemonMessage message;
  *message.mutable_step() = record;
  client_->Send(std::move(message));
}

void Daemon::OnEvent(const SessionEvent& event) {
  const bool of_link = event.state() == SessionEvent::RUNNING && event.code() != 0;  // it logs
  if (event.state() == SessionEvent::FAILED) {
    LogWarning("job ", event.job_id(), ": ", EventWords(event));
  } else if (!of_link) {
    LogInfo("job ", event.job_id(), ": ", EventWords(event));
  }
  DaemonMessage message;
  *message.mutable_session() = event;
  client_->Send(std::move(message));
}

void Daemon::OnTrace(const StepTrace& trace) {
  DaemonMessage message;
  *message.mutable_trace() = trace;
  client_->SendPassing(std::move(message));
}

HttpReply Daemon::Metrics() {
  if (runner_ != nullptr) metrics_.ReportRunning(runner_->running(), client_->HeartbeatAge());
  return HttpReply{200, kMetricsContentType, RenderMetrics()};
}

HttpReply Daemon::Healthz() const {
  const std::string coordinator =
      CoordinatorLine(options_.coordinator, client_ != nullptr && client_->connected(),
                      client_ == nullptr ? absl::InfiniteDuration() : client_->HeartbeatAge());
  return HttpReply{health_.ok() ? 200 : 503, "text/plain; charset=utf-8",
                   absl::StrCat(health_.Report(), coordinator)};
}

}  // namespace isthmus::daemon
