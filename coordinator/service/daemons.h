// What daemons say and what is said to them: registrations, heartbeats, measurements, records and
// events go into the cores, and what the cores want said goes out. Owns the streams and the watch
// over this process's own pauses. Thread: any; Tick by the time thread. Its streams' mutex is taken
// inside that of Cores, so that daemons hear things in the order in which they were decided.
#ifndef ISTHMUS_COORDINATOR_SERVICE_DAEMONS_H_
#define ISTHMUS_COORDINATOR_SERVICE_DAEMONS_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/rpc/tls_identity.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/pause_watch.h"
#include "coordinator/service/streams.h"
#include "coordinator/store/store.h"

namespace isthmus::coordinator {

struct DaemonsOptions {
  MembershipOptions membership;
  absl::Duration probe_budget;
  absl::Duration first_message;           // a stream that has not registered by then is ended
  std::shared_ptr<rpc::TlsIdentity> tls;  // null: over plain text
};

class Daemons {
 public:
  Daemons(const DaemonsOptions& options, Cores* cores, Store* store)
      : options_(options), cores_(cores), store_(store) {}

  // ---- a stream, by its handler ----
  absl::Status Open(DaemonStream* daemon) { return streams_.Open(daemon, Now()); }
  // May wait while an earlier stream of the same identity falls silent. FailedPrecondition:
  // refused, the reason is for the daemon.
  absl::StatusOr<Registered> Register(DaemonStream* daemon, const isthmus::Register& request);
  // An error ends the stream.
  absl::Status OnMessage(DaemonStream* daemon, const DaemonMessage& message);
  void Close(DaemonStream* daemon);

  // ---- the others ----
  // The daemon leaves its job in good order, and gets no other until that is taken back.
  absl::StatusOr<DrainReply> Drain(const DrainRequest& request);
  // `cores`: the ones given to the constructor, whose mutex the caller holds by that name.
  void Send(Cores* cores, Commands commands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores->mutex);
  std::string Peer(uint64_t stream) const { return streams_.Peer(stream); }
  void EndAll() { streams_.EndAll(); }
  // Another list of revoked certificates holds: whose certificate is on it leaves its job at once,
  // and is gone, also one that is not connected.
  void OnRevoked();
  // The node of that name came with a certificate that is revoked. If nobody is connected in its
  // place, nor was with another certificate, its session is one of that certificate.
  void OnRevokedCall(const std::string& node_id, const std::string& serial);
  // Of a node that came in this process's life. The caller holds the cores' mutex.
  bool IsRevoked(const std::string& node_id) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void Tick(absl::Time now, absl::Time boot);  // SteadyNow() and BootNow()

 private:
  static absl::Time Now();
  void SendTo(Cores* cores, const std::string& node_id, CoordinatorMessage message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores->mutex);
  Registered Welcome(const std::string& node_id, const std::string& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void OnStep(const Member& member, const StepRecord& record, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  // Jobs hear of links that carry something else now.
  void TellLinkNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  std::string NameOf(const std::string& node_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void OnSession(const Member& member, const SessionEvent& event, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void DoubtLinks(const SessionEvent& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void Evict(const std::string& node_id, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void TakeFigure(const std::string& node_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  // Asks a daemon of an idle host to measure its compute. True: links are measured after it.
  bool TickCompute(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void TickProbes(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void SendProbe(const ProbeTask& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);

  const DaemonsOptions options_;
  Cores* const cores_;
  Store* const store_;
  Streams streams_;
  // The serial that each node registered with last, of this process's life.
  std::map<std::string, std::string> serials_ ABSL_GUARDED_BY(cores_->mutex);
  PauseWatch pauses_;  // the time thread's
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_DAEMONS_H_
