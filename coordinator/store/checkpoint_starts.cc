// The part of CheckpointStore that holds what the next phase of a job starts with.
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/file/random_access_file.h"
#include "base/status.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string CheckpointStore::StartWorkDir(const std::string& job_id) const {
  return absl::StrCat(JobDir(job_id), "/making-start");
}

uint64_t CheckpointStore::GenerationOf(const std::string& job_id, int64_t step) const {
  MutexLock lock(&mutex_);
  return Identity(job_id, step).generation.value_or(0);
}

absl::StatusOr<std::string> CheckpointStore::BeginStart(const std::string& job_id) {
  RETURN_IF_ERROR(CheckJobId(job_id));
  DropStart(job_id);
  std::string dir = StartWorkDir(job_id);
  std::error_code error;
  if (!fs::exists(JobDir(job_id), error))
    return absl::FailedPreconditionError(absl::StrCat("job ", job_id, " has no checkpoint"));
  fs::create_directory(dir, error);
  if (error) return absl::InternalError(absl::StrCat("making ", dir, ": ", error.message()));
  return dir;
}

void CheckpointStore::DropStart(const std::string& job_id) { RemoveTree(StartWorkDir(job_id)); }

absl::Status CheckpointStore::FinishStart(const CheckpointManifest& start,
                                          const std::string& weights) {
  CheckpointManifest manifest = start;
  manifest.stages = 1;
  RETURN_IF_ERROR(SyncFile(weights));
  {
    ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(weights));
    ASSIGN_OR_RETURN(const uint64_t checksum, file.Hash());
    manifest.files = {{kStartWeights, {file.bytes(), checksum}}};
  }
  const std::string dir = absl::StrCat(StartWorkDir(start.job_id), "/", kStart);
  std::error_code error;
  fs::create_directory(dir, error);
  if (!error) fs::rename(weights, absl::StrCat(dir, "/", kStartWeights), error);
  if (error) return absl::InternalError(absl::StrCat("making ", dir, ": ", error.message()));
  RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(dir, "/", kManifest), manifest.ToJson()));
  RETURN_IF_ERROR(SyncDirectory(dir));
  Fault("start written");
  MutexLock lock(&mutex_);
  const Whole* whole = Find(start.job_id, start.step);
  if (whole == nullptr || whole->generation != start.generation)
    return absl::FailedPreconditionError(absl::StrCat("the checkpoint of step ", start.step,
                                                      " of job ", start.job_id,
                                                      " was replaced or removed meanwhile"));
  const std::string step_dir = StepDir(start.job_id, start.step);
  RETURN_IF_ERROR(SwapDirectories(dir, absl::StrCat(step_dir, "/", kStart)));
  Fault("start published");
  return SyncDirectory(step_dir);
}

absl::Status CheckpointStore::HasStart(const std::string& job_id, int64_t step,
                                       const std::string& made) {
  const std::string dir = StepDir(job_id, step);
  CheckpointIdentity identity;
  {
    MutexLock lock(&mutex_);
    if (Find(job_id, step) == nullptr) return NoSuch(job_id, step);
    identity = Identity(job_id, step);
  }
  ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadStartManifest(dir, identity));
  if (manifest.made != made)
    return absl::NotFoundError(
        absl::StrCat("the weights there are made otherwise: ", manifest.made, ", and not: ", made));
  return CheckStart(dir, manifest);
}

// It may be made anew while it is read: only what is found twice counts.
std::string CheckpointStore::DamageOfStart(const std::string& job_id, int64_t step) const {
  absl::Status status;
  for (int look = 0; look < 2; ++look) {
    const std::string dir = StepDir(job_id, step);
    CheckpointIdentity identity;
    {
      MutexLock lock(&mutex_);
      identity = Identity(job_id, step);
    }
    const absl::StatusOr<CheckpointManifest> manifest = ReadStartManifest(dir, identity);
    status = manifest.ok() ? CheckStart(dir, *manifest) : manifest.status();
    if (!absl::IsFailedPrecondition(status)) return "";
  }
  return absl::StrCat(kStart, ", which the next phase begins with: ", status.message(),
                      ". The checkpoint itself is sound: a resume from step ", step,
                      " (isthmus submit JOB.yaml --resume --step ", step,
                      ") makes it anew; other resumes have no use for it");
}

}  // namespace isthmus::coordinator
