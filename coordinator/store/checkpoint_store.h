// Checkpoints as files:
//
//   DIR/JOB_ID/partial-STEP-gGENERATION-ofSTAGES/stage-000/weights.safetensors ...  being put
//   DIR/JOB_ID/step-00000100/stage-000/{weights,optimizer}.safetensors, state.json  whole
//                                     /replica-001-{optimizer.safetensors,state.json}  local steps
//                           /start/{weights.safetensors,manifest.json}  what the next phase, which
//                                     begins after this checkpoint, starts with
//   DIR/JOB_ID/making-start/                      such weights under way
//   DIR/JOB_ID/step-00000100/manifest.json        sizes and checksums of all files
//   DIR/.removing-JOB_ID/                         of a job that is being removed
//
// A part is written aside, synced and renamed; when every stage's parts are there, a manifest is
// written and the directory renamed. So a process killed at any instant leaves each whole
// checkpoint whole, and the parts that were acknowledged. Checkpoint 0 of generation 0 is an
// upload: weights alone. Parts and answers are streams: memory does not grow with the model.
// Thread: any. A Part has one owner. Bounds: kMaxStages; the disk's free space is checked before a
// part is taken.
#ifndef ISTHMUS_COORDINATOR_STORE_CHECKPOINT_STORE_H_
#define ISTHMUS_COORDINATOR_STORE_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "coordinator/store/checkpoint_files.h"
#include "proto/control.pb.h"

namespace isthmus::coordinator {

constexpr int64_t kReservedDiskBytes = int64_t{64} << 20;  // left free for the database

struct CheckpointOptions {
  std::function<void(const char* point)> fault;  // tests: called between the steps of saving
};

// InvalidArgument unless `id` is 1-80 of a-z, 0-9 and '-': it becomes the name of a directory.
absl::Status CheckJobId(const std::string& id);

class CheckpointStore {
 public:
  // Cleans up what a killed process left of files that were never acknowledged.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& dir,
                                                               CheckpointOptions options = {});

  // One file under way.
  class Part {
   public:
    ~Part();  // removes what was not finished
    // The same file is here already: its data need not come, and those that do are dropped.
    bool is_here() const { return is_here_; }
    absl::Status Append(absl::string_view data);
    // True if its checkpoint is whole now. DataLoss: size or checksum differ from the header.
    absl::StatusOr<bool> Finish();
    bool made_whole() const { return made_whole_; }  // it was the part that was missing

   private:
    friend class CheckpointStore;
    Part(CheckpointStore* store, PutCheckpointHeader header)
        : store_(store), header_(std::move(header)) {}
    absl::StatusOr<bool> Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_->mutex_);
    std::string path() const;  // where it will be; before Finish, and not of one that is here
    CheckpointStore* const store_;
    const PutCheckpointHeader header_;
    bool is_here_ = false;
    bool made_whole_ = false;
    std::string temporary_;
    int fd_ = -1;
    int64_t bytes_ = 0;
    Hasher hasher_;
  };

  // InvalidArgument: the header makes no sense. ResourceExhausted: the disk has no room for it.
  absl::StatusOr<std::unique_ptr<Part>> Begin(const PutCheckpointHeader& header);

  // Of the latest generation, the largest step; -1: none. A run that went on from an older
  // checkpoint is the newer one, though its steps are fewer. One that lies in another's place (it
  // was copied or renamed by hand) counts only where there is no other: to be refused in words.
  int64_t Newest(const std::string& job_id) const;
  // What a run goes on from that last heard of checkpoint `step` under `generation`: what this or a
  // later generation has stored since, else `step`, else Newest.
  int64_t Head(const std::string& job_id, uint64_t generation, int64_t step) const;
  // The largest numbers that the directories have: of jobs, at the end of their ids, and of
  // generations.
  struct Highest {
    uint64_t generation = 0;
    uint64_t job_number = 0;
  };
  Highest highest() const;  // as of Open
  std::vector<int64_t> Steps(const std::string& job_id) const;

  // Whether `part` is of the whole checkpoint of `step`, by its manifest.
  bool Has(const std::string& job_id, int64_t step, const LocalPart& part);

  using Cancelled = std::function<bool()>;  // asked between files; may be empty

  // The answer to `request`, verified, as a stream; retention leaves its checkpoint alone while the
  // reader lives. The store outlives it. `step` becomes the checkpoint's step. NotFound: no such
  // checkpoint, or it lacks a tensor. FailedPrecondition: a file is not what its manifest says;
  // which other checkpoints are sound.
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Read(const FetchCheckpointRequest& request,
                                                         const Cancelled& cancelled, int64_t* step);

  // What was wrong with it when it was last looked at, and its directory; empty: nothing.
  std::string DamageOf(const std::string& job_id, int64_t step);

  // FailedPrecondition as of Read, if the whole checkpoint is not what its manifest says.
  absl::Status Verify(const std::string& job_id, int64_t step, const Cancelled& cancelled);

  // The run that a job is at: its generation and the step that it began at.
  struct Run {
    uint64_t generation = 0;
    int64_t start_step = 0;
  };
  // What is known of the whole ones, the newest first; with `verify` each file is read, those of
  // the start of a next phase among them, whose damage is not the checkpoint's. Left behind
  // are those of runs before `run`, or before that of a later checkpoint, beyond where it went on.
  // Cancelled: the caller has gone.
  absl::StatusOr<std::vector<CheckpointInfo>> List(const std::string& job_id, const Run& run,
                                                   bool verify, const Cancelled& cancelled);

  // The last `keep` whole ones stay; a damaged one does not count, so that the last sound one is
  // never removed, nor is one that is being read. Of a run that went on from an older one, those
  // beyond it of the run before go first. Those of the steps `needed` stay besides.
  void Trim(const std::string& job_id, int keep, const std::vector<int64_t>& needed = {});

  // What the phase that begins after checkpoint `step` starts with. It is part of that checkpoint
  // and goes with it. Made in a directory of the job, which is empty at first; one at a time.
  absl::StatusOr<std::string> BeginStart(const std::string& job_id);
  // Takes the file `weights` there, made of the checkpoint that `start` names as start.made says: a
  // process killed at any instant leaves all of it or nothing. FailedPrecondition: that checkpoint
  // is gone.
  absl::Status FinishStart(const CheckpointManifest& start, const std::string& weights);
  void DropStart(const std::string& job_id);  // that was begun and not finished
  // OK: it is there, every byte as it was written, and made as `made` says.
  absl::Status HasStart(const std::string& job_id, int64_t step, const std::string& made);
  // 0: there is no such checkpoint.
  uint64_t GenerationOf(const std::string& job_id, int64_t step) const;

  // Removes the parts of checkpoints that can't become whole any more: of every (job, generation)
  // but these; of one job, of every generation but `keep`. Within a generation Begin and Finish do:
  // a stage that begins a later checkpoint has given up those that it left unfinished.
  void DropPartials(const std::set<std::pair<std::string, uint64_t>>& keep);
  void DropPartials(const std::string& job_id, uint64_t keep);

  // A job is removed in three steps, so that a process killed at any instant has removed it or has
  // not. SetAside gives its directory another name, in one rename: from here on the job is removed,
  // and the next Open empties that directory. Empty removes what is in it, which needs no room on
  // the disk; how many bytes that were. Forget removes it once the database, too, knows nothing of
  // the job. FailedPrecondition: it is being read.
  absl::Status SetAside(const std::string& job_id);
  absl::StatusOr<int64_t> Empty(const std::string& job_id);
  void Forget(const std::string& job_id);
  absl::StatusOr<int64_t> RemoveJob(const std::string& job_id);  // the three of them
  // That were set aside when the process before ended, and whose files are gone since Open.
  std::set<std::string> SetAsideBefore() const;
  std::set<std::string> Jobs() const;  // that have a directory

 private:
  CheckpointStore(std::string dir, CheckpointOptions options)
      : dir_(std::move(dir)), options_(std::move(options)) {}
  struct Whole {
    uint64_t generation = 0;
    int64_t bytes = 0;
    int readers = 0;
    bool misplaced = false;  // see CheckIdentity
    std::string damage;      // as last seen; empty: none
  };
  absl::Status Scan();
  void Fault(const char* point) const;
  std::string JobDir(const std::string& job_id) const;
  std::string AsideDir(const std::string& job_id) const;
  std::string StartWorkDir(const std::string& job_id) const;
  absl::Status NotRead(const std::string& job_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWhole(const PutCheckpointHeader& header) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsHere(const PutCheckpointHeader& header) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> Publish(const PutCheckpointHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string StepDir(const std::string& job_id, int64_t step) const;
  void Remember(const std::string& job_id, int64_t step, const std::string& dir)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CheckpointIdentity Identity(const std::string& job_id, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: there is no such checkpoint.
  Whole* Find(const std::string& job_id, int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is wrong with what the next phase starts with, and what to do; empty: nothing, or there is
  // none.
  std::string DamageOfStart(const std::string& job_id, int64_t step) const;
  absl::Status NoSuch(const std::string& job_id, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Looks at the files (with `contents` at every byte) and keeps what it saw.
  absl::Status Check(const std::string& job_id, int64_t step, bool contents,
                     const Cancelled& cancelled);
  void SetDamage(const std::string& job_id, int64_t step, absl::string_view damage);
  // `why` with what the user does next: which others are sound.
  absl::Status Damaged(const std::string& job_id, int64_t step, const absl::Status& why,
                       const Cancelled& cancelled);
  std::vector<int64_t> Newest(const std::string& job_id, int at_most) const;
  // The directories of parts that `drop` names by step, generation and path.
  void DropPartialsIf(
      const std::string& job_id,
      const std::function<bool(int64_t step, uint64_t generation, const std::string& path)>& drop)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string dir_;
  const CheckpointOptions options_;
  mutable Mutex mutex_;
  std::map<std::string, std::map<int64_t, Whole>> whole_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> checksums_
      ABSL_GUARDED_BY(mutex_);  // of acknowledged parts, by path
  Highest highest_ ABSL_GUARDED_BY(mutex_);
  uint64_t temporary_number_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_STORE_CHECKPOINT_STORE_H_
