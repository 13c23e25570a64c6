#include "daemon/coordinator_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/rpc/tls_identity.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::daemon {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr absl::Duration kLookAgain = absl::Milliseconds(200);
constexpr absl::Duration kMinHeartbeat = absl::Milliseconds(50);
constexpr absl::Duration kMaxHeartbeat = absl::Seconds(60);
constexpr absl::Duration kConnectTime = absl::Seconds(10);   // one attempt
constexpr absl::Duration kWriteTimeout = absl::Seconds(30);  // one message that finds no way out
constexpr size_t kMaxReasonBytes = 2'000;

}  // namespace

CoordinatorClient::CoordinatorClient(CoordinatorClientOptions options)
    : options_(std::move(options)) {}

CoordinatorClient::~CoordinatorClient() { Stop(absl::ZeroDuration()); }

void CoordinatorClient::Start() {
  thread_ = options_.health->Spawn("coordinator-client", [this] { Loop(); });
}

void CoordinatorClient::Stop(absl::Duration goodbye) {
  if (!thread_.joinable()) return;
  {
    Watchdog::Watch watch(options_.watchdog, goodbye, [this] {
      MutexLock lock(&mutex_);
      if (context_ != nullptr) context_->TryCancel();
    });
    {
      MutexLock lock(&mutex_);
      stop_ = true;
      stop_by_ = SteadyAfter(goodbye);
      changed_.SignalAll();
    }
    thread_.join();
  }
}

void CoordinatorClient::Send(DaemonMessage message) {
  MutexLock lock(&mutex_);
  const int64_t dropped = outbox_.dropped();
  outbox_.Push(std::move(message));
  if (dropped == 0 && outbox_.dropped() > 0) {
    LogWarning(
        "the coordinator has been away for so long that the oldest step records are being dropped "
        "(",
        Outbox::kMaxRecords, " are kept)");
  }
  changed_.SignalAll();
}

void CoordinatorClient::SendPassing(DaemonMessage message) {
  MutexLock lock(&mutex_);
  if (!connected_ || passing_.size() >= kMaxPassing) return;
  passing_.push_back(std::move(message));
  changed_.SignalAll();
}

void CoordinatorClient::BeatNow() {
  MutexLock lock(&mutex_);
  beat_now_ = true;
  changed_.SignalAll();
}

absl::Duration CoordinatorClient::HeartbeatAge() const {
  MutexLock lock(&mutex_);
  return SteadyNow() - last_heartbeat_;
}

absl::Status CoordinatorClient::refused() const {
  MutexLock lock(&mutex_);
  return refused_;
}

bool CoordinatorClient::stopping() const {
  MutexLock lock(&mutex_);
  return stop_ || !refused_.ok();
}

void CoordinatorClient::Complain(const absl::Status& status, int failures) {
  const absl::Time now = SteadyNow();
  if (failures > 1 && now - last_complaint_ < options_.say_again) return;
  last_complaint_ = now;
  LogWarning("coordinator ", options_.address, ": ", status.message(), " (attempt ", failures,
             "); trying again at least every ", absl::FormatDuration(options_.backoff.cap),
             ", a running session goes on");
}

void CoordinatorClient::Loop() {
  // One channel for as long as nobody is reached: gRPC resolves the name again by itself. After a
  // connection that ended another: this daemon's certificate may have been renewed meanwhile.
  rpc::ChannelOptions channel_options = rpc::ToCoordinator(options_.dialling);
  channel_options.max_backoff = options_.backoff.cap / 2;  // half a cap of jitter comes on top
  auto channel = rpc::MakeChannel(options_.address, channel_options);
  int failures = 0;
  while (!stopping()) {
    const auto began = SteadyClock::now();
    const absl::Status status = Converse(channel);
    if (stopping()) break;
    if (SteadyClock::now() - began > std::chrono::seconds(30) || status.ok())
      failures = 0;  // it had worked for a while
    ++failures;
    Complain(status, failures);
    if (!was_connected_)
      continue;  // the waiting for a connection was spread out and capped by gRPC's own back-off
    if (options_.dialling.tls != nullptr)
      channel = rpc::MakeChannel(options_.address, channel_options);
    const auto until = SteadyAfter(BackoffDelay(options_.backoff, failures, options_.seed));
    MutexLock lock(&mutex_);
    while (!stop_ && changed_.WaitUntil(&mutex_, until)) {
    }
  }
  MutexLock lock(&mutex_);
  while (!stop_) changed_.Wait(&mutex_);  // refused: whoever asks refused() ends the daemon
}

absl::Status CoordinatorClient::Converse(const std::shared_ptr<grpc::Channel>& channel) {
  was_connected_ = false;
  const absl::Time connect_by = SteadyNow() + kConnectTime;
  while (!channel->WaitForConnected(
      rpc::DeadlineAfter(std::min(kLookAgain, connect_by - SteadyNow())))) {
    if (stopping()) return absl::CancelledError("stopping");
    if (SteadyNow() >= connect_by) {
      return rpc::NoConnection(options_.address, rpc::ToCoordinator(options_.dialling),
                               absl::UnavailableError("not reachable: is it running there?"),
                               [this] { return stopping(); });
    }
  }
  was_connected_ = true;
  grpc::ClientContext context;
  {
    MutexLock lock(&mutex_);
    context_ = &context;
    broken_ = false;
    outbox_.Rewind();
    passing_.clear();
  }
  const auto stub = Control::NewStub(channel);
  const auto stream = stub->Session(&context);
  absl::Duration heartbeat = options_.default_heartbeat;
  absl::Status status = Handshake(stream.get(), &heartbeat);
  if (status.ok()) {
    LogInfo("registered with the coordinator ", options_.address);
    last_complaint_ = absl::InfinitePast();
    connected_ = true;
    std::thread reader([&] {
      try {
        ReadUntilBroken(stream.get());
      } catch (const std::exception& exception) {
        options_.health->Fault("coordinator-reader", absl::StrCat("threw: ", exception.what()));
        context.TryCancel();
      }
    });
    WriteUntilBroken(stream.get(), heartbeat);
    if (stopping()) SayGoodbye(stream.get());
    context.TryCancel();
    reader.join();
    connected_ = false;
  } else if (!absl::IsUnavailable(status)) {
    context.TryCancel();  // else it has ended, and Finish tells how
  }
  absl::Status ended = rpc::FromGrpc(stream->Finish());
  if (absl::IsUnimplemented(ended)) {  // gRPC has no words for it
    ended = absl::UnimplementedError(
        "what answers there is no Isthmus coordinator of this version; the port of another daemon, "
        "perhaps: --coordinator names that of isthmus-coordinator, 7070 by default");
  }
  MutexLock lock(&mutex_);
  context_ = nullptr;
  if (refused_.ok() && (absl::IsUnauthenticated(ended) || absl::IsPermissionDenied(ended)))
    Refuse(ended.message());
  if (!refused_.ok()) return refused_;
  if (!status.ok()) return ended.ok() || absl::IsCancelled(ended) ? status : ended;
  return absl::UnavailableError(absl::IsCancelled(ended)  // gRPC has no words of its own for it
                                    ? std::string("the connection ended")
                                    : absl::StrCat("the connection ended",
                                                   ended.message().empty() ? "" : ": ",
                                                   ended.message()));
}

absl::Status CoordinatorClient::Handshake(Stream* stream, absl::Duration* heartbeat) {
  Watchdog::Watch watch(options_.watchdog, options_.answer_timeout, [this] {
    MutexLock lock(&mutex_);
    if (context_ != nullptr) context_->TryCancel();
  });
  DaemonMessage first;
  *first.mutable_register_() = options_.listener->MakeRegister();
  CoordinatorMessage answer;
  MakeTextValid(&first);
  const absl::Time began = SteadyNow();
  if (!stream->Write(first) || !stream->Read(&answer)) {
    if (SteadyNow() - began < options_.answer_timeout)
      return absl::UnavailableError("the connection ended before the registration was answered");
    return absl::UnavailableError(absl::StrCat("no answer to the registration within ",
                                               absl::FormatDuration(options_.answer_timeout)));
  }
  if (options_.dialling.tls != nullptr) {
    MutexLock lock(&mutex_);
    const absl::Status revoked = options_.dialling.tls->CheckServer(*context_);
    if (!revoked.ok()) return revoked;
  }
  if (answer.what_case() == CoordinatorMessage::kRefuse) {
    Dispatch(answer);
    return absl::FailedPreconditionError("refused");
  }
  if (answer.what_case() != CoordinatorMessage::kRegistered)
    return absl::InternalError("its first message is no answer to the registration");
  options_.listener->OnRegistered(answer.registered());
  if (answer.registered().heartbeat_ms() > 0) {
    *heartbeat = std::clamp(absl::Milliseconds(answer.registered().heartbeat_ms()), kMinHeartbeat,
                            kMaxHeartbeat);
  }
  return absl::OkStatus();
}

// Breaking the call at once would drop what is still on its way.
void CoordinatorClient::SayGoodbye(Stream* stream) {
  stream->WritesDone();
  MutexLock lock(&mutex_);
  while (!broken_ && changed_.WaitUntil(&mutex_, stop_by_)) {
  }
}

void CoordinatorClient::WriteUntilBroken(Stream* stream, absl::Duration heartbeat) {
  auto next_heartbeat = SteadyClock::now();
  while (true) {
    DaemonMessage message;
    {
      MutexLock lock(&mutex_);
      while (!broken_ && !stop_ && !outbox_.HasNext() && passing_.empty() && !beat_now_ &&
             SteadyClock::now() < next_heartbeat) {
        changed_.WaitUntil(&mutex_, next_heartbeat);
      }
      if (broken_ || (stop_ && !outbox_.HasNext())) return;
      // A heartbeat that is due goes before a backlog of records.
      const bool due = beat_now_ || SteadyClock::now() >= next_heartbeat;
      beat_now_ = false;
      if (!due && !passing_.empty()) {
        message = std::move(passing_.front());
        passing_.pop_front();
      } else if (!due) {
        message = *outbox_.Next(SteadyNow());
      }
      outbox_.Trim(SteadyNow());
    }
    MakeTextValid(&message);
    const bool beat = message.what_case() == DaemonMessage::WHAT_NOT_SET;
    if (beat) {
      *message.mutable_heartbeat() = options_.listener->MakeHeartbeat();
      next_heartbeat = SteadyAfter(heartbeat);
    }
    {
      Watchdog::Watch watch(options_.watchdog, kWriteTimeout, [this] {
        MutexLock lock(&mutex_);
        if (context_ != nullptr) context_->TryCancel();
      });
      if (!stream->Write(message)) return;
    }
    if (beat) {
      MutexLock lock(&mutex_);
      last_heartbeat_ = SteadyNow();
    }
  }
}

void CoordinatorClient::ReadUntilBroken(Stream* stream) {
  CoordinatorMessage message;
  while (stream->Read(&message)) Dispatch(message);
  MutexLock lock(&mutex_);
  broken_ = true;
  changed_.SignalAll();
}

void CoordinatorClient::Refuse(absl::string_view why) {
  refused_ = absl::FailedPreconditionError(
      absl::StrCat("the coordinator ", options_.address,
                   " refuses this daemon: ", why.substr(0, kMaxReasonBytes)));
}

void CoordinatorClient::Dispatch(const CoordinatorMessage& message) {
  switch (message.what_case()) {
    case CoordinatorMessage::kStart:
      options_.listener->OnStart(message.start());
      return;
    case CoordinatorMessage::kStop:
      options_.listener->OnStop(message.stop());
      return;
    case CoordinatorMessage::kProbe:
      options_.listener->OnProbe(message.probe());
      return;
    case CoordinatorMessage::kMeasureCompute:
      options_.listener->OnMeasureCompute();
      return;
    case CoordinatorMessage::kPutKept:
      options_.listener->OnPutKept(message.put_kept());
      return;
    case CoordinatorMessage::kRemovedJob:
      options_.listener->OnRemovedJob(message.removed_job());
      return;
    case CoordinatorMessage::kTrace:
      options_.listener->OnTraceSteps(message.trace());
      return;
    case CoordinatorMessage::kClock: {
      DaemonMessage answer;
      *answer.mutable_clock() = message.clock();
      answer.mutable_clock()->set_daemon_ns(absl::ToUnixNanos(SteadyNow()));
      SendPassing(std::move(answer));
      return;
    }
    case CoordinatorMessage::kRefuse: {
      MutexLock lock(&mutex_);
      Refuse(message.refuse());
      broken_ = true;
      changed_.SignalAll();
      return;
    }
    default:
      return;  // a newer coordinator's message
  }
}

}  // namespace isthmus::daemon
