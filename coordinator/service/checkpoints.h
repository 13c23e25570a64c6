// Checkpoints on their way in, and when their files go: parts of a job's current generation are
// taken, whole ones are told to the job, and what can't become whole or belongs to no job any more
// is removed. Owns which parts are under way and when to sweep. Thread: any; Sweep by the
// recorder's. Its mutex is taken before that of Cores. Bounds: kMaxPuts.
#ifndef ISTHMUS_COORDINATOR_SERVICE_CHECKPOINTS_H_
#define ISTHMUS_COORDINATOR_SERVICE_CHECKPOINTS_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/recorder.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {

constexpr int kMaxPuts = 64;

class Checkpoints {
 public:
  // `patience`: a job that has ended may still get the last parts of a checkpoint for so long after
  // the one before.
  Checkpoints(Cores* cores, CheckpointStore* store, absl::Duration patience)
      : cores_(cores), store_(store), patience_(patience) {}

  absl::StatusOr<std::unique_ptr<CheckpointStore::Part>> BeginPart(
      const PutCheckpointHeader& header);
  // `taken`: how taking its data ended; not OK: `part` is given up.
  absl::StatusOr<bool> FinishPart(const PutCheckpointHeader& header, CheckpointStore::Part* part,
                                  const absl::Status& taken);

  // PermissionDenied: that daemon has no rank of the job, and may not fetch of it.
  absl::Status CheckPlanned(const std::string& node_id, const std::string& job_id) const;
  // The part is neither of its own stage nor of one whose copies it keeps.
  absl::Status CheckPart(const std::string& node_id, const PutCheckpointHeader& header) const;

  // Of a job, or of the directory of one that is forgotten.
  absl::StatusOr<ListCheckpointsReply> List(const ListCheckpointsRequest& request,
                                            const Cancelled& cancelled);
  absl::StatusOr<RemoveJobReply> RemoveJob(const RemoveJobRequest& request, Recorder* recorder);
  void DropUpload(const std::string& job_id);  // of a job that was not added

  // `stored` is on disk: parts that can't become whole go, and checkpoints of jobs that made room.
  void Sweep(const StoreBatch& stored);
  // Of jobs that the database does not know: nobody asks for them, and nobody but the user knows
  // whether they are of use.
  void LogOrphans();

 private:
  absl::Status CheckHeader(const PutCheckpointHeader& header) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void EndPut(const std::string& job_id);
  void NotStored(const PutCheckpointHeader& header, const absl::Status& why);

  Cores* const cores_;
  CheckpointStore* const store_;
  const absl::Duration patience_;
  Mutex mutex_;
  std::multiset<std::string> puts_ ABSL_GUARDED_BY(mutex_);  // the job of each part under way
  // Jobs whose parts of checkpoints can't become whole any more, and from when on.
  std::map<std::string, absl::Time> sweep_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_CHECKPOINTS_H_
