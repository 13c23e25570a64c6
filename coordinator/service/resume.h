// What a resume goes on from: a job, a checkpoint that is whole and sound, where the data stand,
// and what has changed since. Owns nothing. Thread: any; reads checkpoints from the disk.
#ifndef ISTHMUS_COORDINATOR_SERVICE_RESUME_H_
#define ISTHMUS_COORDINATOR_SERVICE_RESUME_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/cores.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {

struct StartRequest {  // what is to be started
  enum Kind { kNew, kResume, kPending };
  Kind kind = kNew;
  bool wait_for_nodes = false;
  JobSpec spec;
  std::string job_id;
  int64_t start_step = 0;
  bool from_checkpoint = false;
  std::optional<DataPosition> data;  // before start_step; none: see Resume
  std::vector<FieldChange> changes;  // kResume: since the checkpoint was written
  std::string given_up;  // kResume: a newer checkpoint that daemons keep, in words; empty: none
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
  // checksum, so that a damaged one is refused before anything starts.
  absl::StatusOr<StartRequest> Resume(const JobSpec& job, const std::string& name,
                                      std::optional<int64_t> step, const Cancelled& cancelled);
  // Of a job that waits. Cancelled: it does not, any more.
  absl::StatusOr<StartRequest> Pending(const std::string& job_id);

 private:
  absl::Status WaitForKept(const std::string& name, const Cancelled& cancelled);
  // Where the data stand and what has changed since the checkpoint of `start`. `ran`: the job as it
  // ran last.
  absl::Status TakeUp(const JobSpec& ran, StartRequest* start);
  absl::StatusOr<int64_t> Choose(const std::string& job_id, int64_t head,
                                 std::optional<int64_t> step);

  Cores* const cores_;
  CheckpointStore* const store_;
  const absl::Duration kept_patience_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_RESUME_H_
