// Checkpoint parts on this daemon's own disk, as its stage put them: a resume on the same daemons
// with the same cut reads them instead of fetching them.
//
//   ROOT/JOB/STEP-gGENERATION-sSTAGEofSTAGES[-rREPLICA]/FILE.BYTES.CHECKSUM   XXH3-64, hexadecimal
//
// A file is there whole or not at all, and is read against its size and checksum. What a process
// that was killed was writing is removed by the next one. A help, not a promise: what can't be
// kept, or was damaged, is fetched from the coordinator.
//
// Copies of other daemons' parts, whose buddy this one is, lie beside its own in the same form.
//
// Bounds: kKeptSteps of a part of a job (its newest), as many of local ones, kKeptJobs jobs,
// `max_bytes` of all files with those of `neighbours`; nothing is written that would leave less
// than kFreeBytes on the file system, so that what jobs need (codec states, spill files) comes
// first. Other jobs' parts make room before older ones of the same job do, but for no local
// checkpoint; where that would not do, nothing goes. Files are written and read in pieces. Thread:
// any.
#ifndef ISTHMUS_DAEMON_STATE_PART_DIR_H_
#define ISTHMUS_DAEMON_STATE_PART_DIR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file/byte_source.h"
#include "base/mutex.h"
#include "proto/control.pb.h"
#include "worker/checkpoint/part_store.h"

namespace isthmus::daemon {

// Files that a stage puts of a checkpoint; a further replica has moments and a state alone.
constexpr int CheckpointFiles(int replica) { return replica == 0 ? 3 : 2; }
bool IsCheckpointFile(const std::string& file);

class PartDir {
 public:
  // Of local checkpoints, and of others: the newest may never become whole, at the coordinator or
  // on all daemons.
  static constexpr size_t kKeptSteps = 2;
  static constexpr size_t kKeptJobs = 4;
  static constexpr int64_t kFreeBytes = int64_t{256} << 20;

  struct Options {
    int64_t max_bytes = 0;                // with the neighbours; 0: no bound of its own
    std::vector<std::string> neighbours;  // directories that --disk bounds as well
    int64_t free_bytes = kFreeBytes;
  };
  // `root` need not be there yet.
  explicit PartDir(std::string root) : PartDir(std::move(root), Options()) {}
  PartDir(std::string root, Options options);

  // A session of the job begins at `step`: parts of later steps go (they are of a generation that
  // ended), and those of the oldest jobs.
  void Begin(const std::string& job_id, int64_t step);

  // Writes `part`, which is read piece by piece in order, and counts its checksum. DataLoss: not
  // that of `header`, which has one where it is a copy. ResourceExhausted: no room for it.
  // InvalidArgument: not a name for a file.
  absl::StatusOr<worker::KeptFile> Keep(const PutCheckpointHeader& header, const ByteSource& part);

  // Everything of a job that was removed.
  void Remove(const std::string& job_id);

  // The checkpoints of which all of this host's files are there. Never waits for the disk.
  KeptParts Whole() const;

  // Whole() leaves it out until something of it is kept anew: it could not be read as it was told.
  void Disown(const KeptPart& part);

  // What lies there of a step, of its newest generation, copies too; `have` for the coordinator.
  std::vector<LocalPart> Parts(const std::string& job_id, int64_t step) const;

  // Opened, once all of it was read against its checksum. DataLoss: it is not what it was, and is
  // removed.
  absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& job_id, int64_t step,
                                                   const LocalPart& part) const;

 private:
  absl::StatusOr<worker::KeptFile> Write(const PutCheckpointHeader& header, const ByteSource& part);
  struct Going {  // directories
    std::vector<std::string> old;
    std::vector<std::string> dispensable;  // where there is no room else, in this order
  };
  Going WhatGoes(const PutCheckpointHeader& header, const std::string& part_dir) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoom(const PutCheckpointHeader& header, const std::string& part_dir,
                        int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string root_;
  const Options options_;
  // Of the files below root_; what Keep and others change ends with it.
  void Look() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The files of one part, `of` which checkpoint and stage.
  void AddParts(const std::string& directory, const LocalPart& of,
                std::vector<LocalPart>* parts) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;  // of the files below root_
  // (job, step, generation, stage, replica); those that lie there.
  using Key = std::tuple<std::string, int64_t, uint64_t, int, int>;
  mutable std::set<Key> disowned_ ABSL_GUARDED_BY(mutex_);
  mutable Mutex kept_mutex_;
  mutable KeptParts kept_ ABSL_GUARDED_BY(kept_mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_STATE_PART_DIR_H_
