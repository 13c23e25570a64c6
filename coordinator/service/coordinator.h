// The coordinator: makes the parts of the service, connects them, and lets time pass for them. What
// a part does, owns and locks stands in its header. The order of locks: Checkpoints or Gauges, then
// Cores, then Streams or PhaseWeights; Recorder and Fetches hold theirs alone.
//
// Time thread: leases, deadlines, probes, stalled readers, every `tick`. Thread: any.
#ifndef ISTHMUS_COORDINATOR_SERVICE_COORDINATOR_H_
#define ISTHMUS_COORDINATOR_SERVICE_COORDINATOR_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/rpc/tls_identity.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/checkpoints.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/daemons.h"
#include "coordinator/service/fetches.h"
#include "coordinator/service/gauges.h"
#include "coordinator/service/phase_weights.h"
#include "coordinator/service/queries.h"
#include "coordinator/service/recorder.h"
#include "coordinator/service/submission.h"
#include "coordinator/service/traces.h"
#include "coordinator/service/watches.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/state_lock.h"
#include "coordinator/store/store.h"

namespace isthmus::coordinator {

struct CoordinatorOptions {
  std::string state_dir;
  MembershipOptions membership;
  JobOptions jobs;
  MeasuredLinksOptions links;
  ComputeTableOptions compute;
  PlannerPatience patience;  // of Submit and MakePlan
  absl::Duration tick = absl::Milliseconds(100);
  absl::Duration flush_every = absl::Milliseconds(500);
  absl::Duration first_message = absl::Seconds(10);  // see DaemonsOptions
  absl::Duration try_pending = absl::Seconds(2);
  absl::Duration parts_patience = absl::Minutes(1);  // see Checkpoints
  TracesOptions traces;
  RunMultilevel run_multilevel = RunMultilevelProgram;
  std::shared_ptr<rpc::TlsIdentity> tls;  // null: plain text
  bool insecure = false;                  // ... though it listens off loopback
  absl::Duration reread_revoked = absl::Seconds(1);
};

class Coordinator {
 public:
  // AlreadyExists: another process has the state directory.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(CoordinatorOptions options);
  ~Coordinator();
  void Stop();  // ends every stream and wait; calls after it are refused with Unavailable

  Daemons* daemons() { return &daemons_; }
  Submission* submission() { return &submission_; }
  Queries* queries() { return &queries_; }
  Traces* traces() { return &traces_; }
  Watches* watches() { return &watches_; }
  Checkpoints* checkpoints() { return &checkpoints_; }
  Fetches* fetches() { return &fetches_; }
  Gauges* gauges() { return &gauges_; }
  Audit* audit() { return &audit_; }
  rpc::TlsIdentity* tls() const { return options_.tls.get(); }  // null: plain text
  bool insecure() const { return options_.insecure; }
  absl::StatusOr<DrainReply> Drain(const DrainRequest& request) {
    absl::StatusOr<DrainReply> reply = daemons_.Drain(request);
    const absl::Status stored = recorder_.Sync();
    return reply.ok() && !stored.ok() ? stored : reply;
  }
  absl::StatusOr<RemoveJobReply> RemoveJob(const RemoveJobRequest& request) {
    return checkpoints_.RemoveJob(request, &recorder_);
  }

 private:
  Coordinator(CoordinatorOptions options, std::unique_ptr<StateLock> lock,
              std::unique_ptr<Store> store, std::unique_ptr<CheckpointStore> files);
  void TimeLoop();
  void LookForRevoked(absl::Time now);

  const CoordinatorOptions options_;
  const std::unique_ptr<StateLock> lock_;
  const std::unique_ptr<Store> store_;
  const std::unique_ptr<CheckpointStore> files_;
  Cores cores_;
  Daemons daemons_;
  Checkpoints checkpoints_;
  Recorder recorder_;
  Fetches fetches_;
  PhaseWeights phases_;
  Submission submission_;
  Watches watches_;
  Queries queries_;
  Gauges gauges_;
  Traces traces_;
  Audit audit_;
  absl::Time reread_at_ = absl::InfinitePast();  // the time thread's, as the next one
  bool unreadable_ = false;                      // the list, when it was looked at last
  std::thread time_thread_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_COORDINATOR_H_
