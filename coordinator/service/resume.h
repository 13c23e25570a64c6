// What a resume goes on from: a job, a checkpoint that is whole and sound, where the data stand,
// and what has changed since. Owns nothing. Thread: any; reads checkpoints from the disk.
#ifndef ISTHMUS_COORDINATOR_SERVICE_RESUME_H_
#define ISTHMUS_COORDINATOR_SERVICE_RESUME_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/cores.h"
#include "coordinator/store/checkpoint_store.h"
#include "proto/job/phases.h"

namespace isthmus::coordinator {

struct StartRequest {  // what is to be started
  enum Kind { kNew, kResume, kPending };
  Kind kind = kNew;
  bool wait_for_nodes = false;
  JobSpec spec;  // with all its phases
  std::string job_id;
  int64_t start_step = 0;
  bool from_checkpoint = false;
  std::optional<DataPosition> data;  // before start_step; none: see Resume
  std::vector<FieldChange> changes;  // kResume: since the checkpoint was written
  bool step_asked = false;           // kResume: start_step is what the user asked for ...
  int64_t head = -1;                 // ... else it was chosen by this JobStatus.checkpoint_step
  bool accepts_changes = false;      // kResume: the user wants them
  // What is not gone on from, in words; empty: nothing. kResume: a newer checkpoint that daemons
  // keep, or may keep. kNew: an unfinished job of the same name.
  std::string given_up;
  int64_t given_up_step = -1;  // kPending: of which daemons keep parts that do not come
  // kResume: for which newer checkpoint it waits, in words: it can only be queued; empty: none.
  std::string waits_for;

  // Of spec.phases: which one is started, and whether it begins.
  int phase() const { return PhaseAfter(spec, start_step); }
  bool begins_phase() const { return BeginsPhase(spec, start_step); }
};

constexpr int64_t kMaxJobBytes = 64 << 10;

// With defaults, checked.
absl::StatusOr<JobSpec> CompleteJob(const JobSpec& job);

class Resumer {
 public:
  // `kept_patience`: for daemons that put what they keep of the checkpoint to go on from.
  Resumer(Cores* cores, CheckpointStore* store, absl::Duration kept_patience)
      : cores_(cores), store_(store), kept_patience_(kept_patience) {}

  // Of the ended job `name`, as `job` says or as it was. `step`: the checkpoint to go on from;
  // none: the one that its last run would go on from. Every byte of it is read against its
  // checksum, so that a damaged one is refused before anything starts. `may_queue`: one that is not
  // here yet is waited for in the queue.
  absl::StatusOr<StartRequest> Resume(const JobSpec& job, const std::string& name,
                                      std::optional<int64_t> step, bool may_queue,
                                      const Cancelled& cancelled);
  // Of a job that waits: from the checkpoint that was asked for, else the newest there is by now.
  // Cancelled: it does not wait, any more. Called by one thread at a time.
  absl::StatusOr<StartRequest> Pending(const std::string& job_id);
  void ForgetAllBut(const std::vector<std::string>& pending);  // as Pending
  // Unavailable: `start` would give up a checkpoint that has become known meanwhile.
  static absl::Status StillNewest(const StartRequest& start, Cores* cores)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores->mutex);

 private:
  absl::Status WaitForKept(const std::string& name, absl::Duration patience,
                           const Cancelled& cancelled);
  bool IsKept(const std::string& name, int64_t step);
  bool WillTell(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  absl::Status CheckPhaseEnds(const StartRequest& start) const;
  absl::Status VerifyOnce(const std::string& job_id, int64_t step);
  // Where the data stand and what has changed since the checkpoint of `start`. `ran`: the job as it
  // ran last.
  absl::Status TakeUp(const JobSpec& ran, StartRequest* start);
  absl::StatusOr<int64_t> Choose(const std::string& job_id, int64_t head,
                                 std::optional<int64_t> step);

  Cores* const cores_;
  CheckpointStore* const store_;
  const absl::Duration kept_patience_;

  // Pending's: the checkpoint of each job that waits which was read against its checksums, and what
  // came of it. Bound: the jobs that wait.
  struct Verified {
    int64_t step = -1;
    absl::Status status;
    absl::Time at;
  };
  std::map<std::string, Verified> verified_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_RESUME_H_
