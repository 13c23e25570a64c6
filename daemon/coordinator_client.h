// The daemon's side of its conversation with the coordinator: one Session stream that the daemon
// dials, on a channel of its own, kept up for as long as the daemon lives. A coordinator that is
// away is tried again with a jittered back-off; what happened meanwhile is kept in the outbox.
// Whatever the coordinator does, a running session goes on.
//
// Thread: Send and the getters from any. The listener is called on the client's reading thread and
// must not block for long.
#ifndef ISTHMUS_DAEMON_COORDINATOR_CLIENT_H_
#define ISTHMUS_DAEMON_COORDINATOR_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "daemon/backoff.h"
#include "daemon/health.h"
#include "daemon/net/watchdog.h"
#include "daemon/outbox.h"
#include "proto/control.pb.h"

namespace grpc {
class Channel;
class ClientContext;
template <class W, class R>
class ClientReaderWriter;
}  // namespace grpc

namespace isthmus::daemon {

class CoordinatorListener {
 public:
  virtual ~CoordinatorListener() = default;
  virtual Register MakeRegister() = 0;  // for each connection anew
  virtual void OnRegistered(const Registered& registered) = 0;
  virtual Heartbeat MakeHeartbeat() = 0;
  virtual void OnStart(const Plan& plan) = 0;
  virtual void OnStop(const StopSession& stop) = 0;
  virtual void OnProbe(const ProbeRequestList& probe) = 0;
  virtual void OnMeasureCompute() = 0;
  virtual void OnPutKept(const KeptPart& part) = 0;
  virtual void OnRemovedJob(const std::string& job_id) = 0;
  virtual void OnTraceSteps(const TraceSteps& trace) = 0;
};

struct CoordinatorClientOptions {
  std::string address;
  rpc::Dialling dialling;
  BackoffOptions backoff;
  absl::Duration answer_timeout = absl::Seconds(30);  // from Register to Registered
  absl::Duration say_again = absl::Seconds(60);       // between two log lines of the same trouble
  absl::Duration default_heartbeat = absl::Seconds(3);
  uint64_t seed = 0;             // of the jitter
  Watchdog* watchdog = nullptr;  // outlive the client
  Health* health = nullptr;
  CoordinatorListener* listener = nullptr;
};

class CoordinatorClient {
 public:
  explicit CoordinatorClient(CoordinatorClientOptions options);
  ~CoordinatorClient();  // Stop

  void Start();
  // Sends what is queued, if the coordinator is there, for at most `goodbye`; then ends.
  void Stop(absl::Duration goodbye);

  void Send(DaemonMessage message);
  // What is of no use later: before what waits, on this connection or not at all. Dropped where
  // nobody is connected or kMaxPassing wait already.
  static constexpr size_t kMaxPassing = 256;
  void SendPassing(DaemonMessage message);
  void BeatNow();  // there is news for the heartbeat: one goes out before what is sent from now on

  bool connected() const { return connected_.load(); }
  // Since the last heartbeat went out; infinite before the first.
  absl::Duration HeartbeatAge() const;
  // Not OK: the coordinator refused this daemon, and why. Final: the daemon should end.
  absl::Status refused() const;

 private:
  using Stream = grpc::ClientReaderWriter<DaemonMessage, CoordinatorMessage>;

  void Loop();
  absl::Status Converse(const std::shared_ptr<grpc::Channel>& channel);
  absl::Status Handshake(Stream* stream, absl::Duration* heartbeat);
  void WriteUntilBroken(Stream* stream, absl::Duration heartbeat);
  void SayGoodbye(Stream* stream);
  void ReadUntilBroken(Stream* stream);
  void Dispatch(const CoordinatorMessage& message);
  void Refuse(absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complain(const absl::Status& status, int failures);
  bool stopping() const;

  const CoordinatorClientOptions options_;
  std::atomic<bool> connected_{false};
  bool was_connected_ = false;  // the loop's: the last attempt got past the connection
  absl::Time last_complaint_ = absl::InfinitePast();  // the loop's

  mutable Mutex mutex_;
  CondVar changed_;
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::deque<DaemonMessage> passing_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;  // send what is there, then end
  std::chrono::steady_clock::time_point stop_by_ ABSL_GUARDED_BY(mutex_);
  bool beat_now_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the reader saw the stream end
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_COORDINATOR_CLIENT_H_
