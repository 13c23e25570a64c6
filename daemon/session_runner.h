// Runs sessions, one at a time, on a thread of its own: each is built from a plan, run and
// discarded. A fault of a session is told to the coordinator and ends that session alone.
//
// A plan of a newer generation of the same job ends the session that runs and takes its place. One
// of another job while a session runs is refused, unless that session is already ending. Older or
// equal generations are refused (equal: ignored if that one runs). Thread: every method from any;
// the observer is called on the session's threads.
#ifndef ISTHMUS_DAEMON_SESSION_RUNNER_H_
#define ISTHMUS_DAEMON_SESSION_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/mutex.h"
#include "daemon/checkpoint_client.h"
#include "daemon/generation_fence.h"
#include "daemon/health.h"
#include "daemon/net/dial_board.h"
#include "daemon/net/link_opener.h"
#include "daemon/net/watchdog.h"
#include "daemon/part_sender.h"
#include "daemon/state/codec_state_dir.h"
#include "worker/session.h"

namespace isthmus::daemon {

struct SessionRunnerOptions {
  std::string node_id;
  std::string data_dir;
  int64_t disk_bytes = 0;  // bound of the codec states and the kept parts; 0: none of its own
  // Spill files go to its `spill` directory, codec states to `codec-state`, parts of checkpoints to
  // `checkpoints`.
  std::string state_dir;
  // give_up_after is raised to the plan's drain deadline, no_progress is its checkpoint deadline.
  CheckpointClientOptions checkpoints;
  rpc::Dialling dialling;
  DialBoard* board = nullptr;  // outlive the runner
  Watchdog* watchdog = nullptr;
  UplinkGate* uplink = nullptr;  // null: none
  Health* health = nullptr;
  worker::SessionObserver* observer = nullptr;

  // worker::MakeSession, the engine's stage and worker::OpenCorpus; fakes in tests.
  std::function<absl::StatusOr<std::unique_ptr<worker::Session>>(worker::SessionOptions)>
      make_session;
  worker::StageFactory make_stage;
  worker::LaneFactory make_lane;
  std::function<void()> release_memory;  // after each session: of a GPU, what is not in use
  std::function<absl::StatusOr<std::unique_ptr<worker::Corpus>>(const std::string& data_dir,
                                                                const JobSpec& job)>
      open_corpus;
  // What lies in data_dir; none: it is not known.
  std::function<DataListing()> list_data;
};

class SessionRunner {
 public:
  explicit SessionRunner(SessionRunnerOptions options);
  ~SessionRunner();  // Shutdown

  // Faults are told to the observer as FAILED events.
  void Start(const Plan& plan);
  void Stop(const StopSession& stop);

  // Nothing where another session runs, or none.
  void Trace(const TraceSteps& trace);

  // The daemon ends soon: what runs is stopped gracefully, new plans are refused.
  void Leave(const std::string& reason);
  bool idle() const;  // nothing runs or waits to

  // Ends what runs; true if it had ended within `patience`. False: a computation would not end, its
  // thread is left behind.
  bool Shutdown(const absl::Status& why, absl::Duration patience);

  struct Running {
    std::string job_id;  // empty: nothing runs
    uint64_t generation = 0;
    int rank = -1;
    int stage = -1;
    int64_t progress = 0;
    int64_t step = 0;
    int64_t checkpoint_bytes = 0;  // that its checkpoints have moved to and from the coordinator
  };
  Running running() const;

  KeptParts kept() const { return parts_.Whole(); }  // of checkpoints, on this host's disk
  void PutKept(const KeptPart& part);                // nothing while a session runs
  void OnRemoved(const std::string& job_id);         // what is kept of it goes
  // A part of another daemon's local checkpoint, of which this one keeps a copy.
  // FailedPrecondition: it runs no session of that generation, or is no buddy of that stage.
  // PermissionDenied: it comes `from` another node than the one that has the stage; empty: nobody
  // knows.
  absl::Status KeepCopy(const PutCheckpointHeader& header, const ByteSource& part,
                        const std::string& from);
  uint64_t newest_generation() const;  // of all that were to start; 0: none yet

 private:
  // What can be stopped of the session that is being built or runs.
  struct Current {
    Plan plan;
    int rank = -1;
    std::unique_ptr<GrpcLinkOpener> links;
    std::unique_ptr<CheckpointClient> checkpoints;
    std::unique_ptr<CheckpointClient> buddy;  // null: there is none
    std::unique_ptr<worker::Corpus> corpus;
    std::unique_ptr<worker::Session> session;
    bool stop = false;  // gracefully
    absl::Status cancelled;
  };

  void Loop();
  void RunOne(Current* current);
  absl::Status Build(Current* current);
  void StopCurrent(const StopSession& stop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelCurrent(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Failed(const Plan& plan, int rank, int64_t step, const absl::Status& why);
  int RankOf(const Plan& plan) const;
  std::unique_ptr<CheckpointClient> MakeBuddy(const Plan& plan, int rank) const;

  const SessionRunnerOptions options_;
  CodecStateDir codec_states_;
  PartDir parts_;
  std::unique_ptr<PartSender> sender_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<Current> current_ ABSL_GUARDED_BY(mutex_);
  absl::optional<Plan> next_ ABSL_GUARDED_BY(mutex_);
  GenerationFence fence_ ABSL_GUARDED_BY(mutex_);
  uint64_t newest_of_all_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t progress_base_ ABSL_GUARDED_BY(mutex_) = 0;  // of ended sessions: progress never falls
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_SESSION_RUNNER_H_
