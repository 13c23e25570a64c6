// The daemon as a whole: its server, its conversation with the coordinator, its sessions, probes
// and metrics, started and ended in order. Thread: one owner calls Start, refused and Shutdown.
#ifndef ISTHMUS_DAEMON_DAEMON_H_
#define ISTHMUS_DAEMON_DAEMON_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/http.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "base/rpc/tls_identity.h"
#include "daemon/coordinator_client.h"
#include "daemon/data_report.h"
#include "daemon/health.h"
#include "daemon/net/peer_service.h"
#include "daemon/net/probe.h"
#include "daemon/net/uplink_gate.h"
#include "daemon/net/watchdog.h"
#include "daemon/revoked_watch.h"
#include "daemon/session_metrics.h"
#include "daemon/session_runner.h"
#include "daemon/state/identity.h"
#include "daemon/state/record_log.h"

namespace isthmus::daemon {

struct DaemonOptions {
  std::string coordinator = "127.0.0.1:7070";
  std::string listen = "127.0.0.1:7071";
  std::string advertise;              // empty: found out, see AdvertisedHost
  std::string http = "0.0.0.0:7081";  // empty: none
  std::string name;                   // empty: the host's name
  std::string state_dir;
  std::string data_dir;
  std::string device = "cpu";
  std::string device_model;  // of a GPU; empty: it computes on the CPU
  int64_t device_memory_bytes = 0;
  std::string device_uuid;  // which daemons of one card have in common; empty: not known
  std::string version;
  int threads = 0;  // 0: what this host allows
  int64_t memory_bytes = 0;
  int64_t disk_bytes = 0;
  int64_t uplink_bits_per_s = 0;  // that all of its links share; 0: not known
  std::string tls_dir;            // empty: plain text
  bool insecure = false;          // off loopback without certificates
  rpc::Dialling dialling;
  std::shared_ptr<rpc::TlsIdentity> tls;  // what lies in tls_dir; dialling has it, too
  BackoffOptions backoff;

  // Times the reference block again; called on a thread of its own while no session runs. Ends
  // early, with any error, where `cancelled` turns true: the daemon ends, or a session begins.
  std::function<absl::StatusOr<ComputeTimes>(const std::function<bool()>& cancelled)>
      measure_compute;

  decltype(SessionRunnerOptions::make_session) make_session;
  worker::StageFactory make_stage;
  worker::LaneFactory make_lane;
  decltype(SessionRunnerOptions::release_memory) release_memory;
  decltype(SessionRunnerOptions::open_corpus) open_corpus;
};

// Of a session on this host, for its log. Whether the job is done the coordinator decides.
std::string EventWords(const SessionEvent& event);

class Daemon : private CoordinatorListener, private worker::SessionObserver {
 public:
  Daemon(DaemonOptions options, StateDir state);
  ~Daemon() override;

  // Opens the ports. FailedPrecondition, Unavailable: what can't be had, by name.
  absl::Status Listen();
  // The figures measured at the start, then the conversation with the coordinator begins.
  void Join(const ComputeTimes& block);

  int port() const { return server_->port(); }
  int http_port() const { return http_ == nullptr ? 0 : http_->port(); }
  std::string listening() const;     // host:port with the real port, as the flag had it
  std::string http_address() const;  // likewise; "off" without
  const std::string& node_id() const { return node_id_; }
  std::string advertised() const;  // host:port as told to others

  // Not OK: the coordinator refused this daemon; it should end.
  absl::Status refused() const {
    return client_ == nullptr ? absl::OkStatus() : client_->refused();
  }

  // Told to end, with `grace` for the session that runs to finish its step and store its
  // checkpoint: the coordinator learns it, and no new session starts. Shutdown follows, when it is
  // idle or the time is over.
  void Leave(absl::Duration grace, const std::string& reason);
  bool idle() const { return runner_->idle(); }

  // Ends the session, says goodbye, closes the ports. False: a computation did not end within
  // `patience`; the process must be ended hard.
  bool Shutdown(absl::Duration patience);

 private:
  Register MakeRegister() override;
  void OnRegistered(const Registered& registered) override;
  Heartbeat MakeHeartbeat() override;
  void OnStart(const Plan& plan) override;
  void OnStop(const StopSession& stop) override;
  void OnProbe(const ProbeRequestList& probe) override;
  void OnMeasureCompute() override;
  void OnPutKept(const KeptPart& part) override;
  void OnRemovedJob(const std::string& job_id) override;
  void OnTraceSteps(const TraceSteps& trace) override;
  void OnStep(const StepRecord& record) override;
  void SendRecord(const StepRecord& record);
  void OnEvent(const SessionEvent& event) override;
  void OnTrace(const StepTrace& trace) override;
  void ProbeLoop();
  void MeasureLinks(const ProbeRequestList& request);
  void MeasurePath();
  void ComputeLoop();
  ComputeTimes TimeBlock();
  void DataLoop();
  HttpReply Metrics();
  HttpReply Healthz() const;

  DaemonOptions options_;
  const StateDir state_;
  const std::string instance_;  // of this process
  std::string node_id_;
  bool warned_loopback_ = false;  // the client's thread
  std::atomic<bool> shut_down_{false};

  SessionMetrics metrics_;
  RecordLog records_;               // Join's thread, then that of the session's records
  uint64_t logged_generation_ = 0;  // the newest in it when the daemon started
  Watchdog watchdog_;
  Health health_;
  UplinkGate uplink_;
  DialBoard board_;
  Prober prober_;
  BoundedQueue<ProbeRequestList> probes_{2};
  BoundedQueue<isthmus::MeasureCompute> measures_{1};
  std::unique_ptr<PeerServer> server_;
  std::unique_ptr<SessionRunner> runner_;
  std::unique_ptr<CoordinatorClient> client_;
  std::unique_ptr<RevokedWatch> revoked_;  // with TLS
  std::unique_ptr<HttpServer> http_;
  std::thread probing_;
  std::thread measuring_;
  Mutex block_mutex_;
  ComputeTimes block_ ABSL_GUARDED_BY(block_mutex_);  // as measured last
  DataReport data_report_;
  std::atomic<bool> data_stop_{false};
  std::thread looking_;  // at the data
  Mutex data_mutex_;
  CondVar data_changed_;
  DataListing data_ ABSL_GUARDED_BY(data_mutex_);       // as last seen
  std::string data_told_ ABSL_GUARDED_BY(data_mutex_);  // the one last told, serialised
  std::string kept_told_ ABSL_GUARDED_BY(data_mutex_);
  CoordinatorPath path_ ABSL_GUARDED_BY(data_mutex_);
  bool path_told_ ABSL_GUARDED_BY(data_mutex_) = true;
  std::chrono::steady_clock::time_point
      path_due_{};  // the probes' thread; to be measured from then
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_DAEMON_H_
