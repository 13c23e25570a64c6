// The half of CheckpointStore that lets go: old checkpoints, parts that can't become whole, jobs.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file/durable_file.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr char kAside[] = ".removing-";

}  // namespace

void CheckpointStore::Trim(const std::string& job_id, int keep,
                           const std::vector<int64_t>& needed) {
  for (int64_t step : Newest(job_id, std::numeric_limits<int>::max()))
    Check(job_id, step, false, nullptr).IgnoreError();
  const int64_t newest = Newest(job_id);
  std::vector<int64_t> old;
  std::vector<std::string> going;
  {
    MutexLock lock(&mutex_);
    auto job = whole_.find(job_id);
    if (job == whole_.end() || job->second.count(newest) == 0) return;
    const uint64_t generation = job->second.at(newest).generation;
    std::vector<std::tuple<bool, uint64_t, int64_t>> order;  // the first ones stay
    for (const auto& [step, whole] : job->second) {
      const bool left_behind = whole.generation < generation && step > newest;
      order.emplace_back(!left_behind, whole.generation, step);
    }
    std::sort(order.rbegin(), order.rend());
    int stay = std::max(1, keep);
    for (const auto& [current, made_by, step] : order) {
      const Whole& whole = job->second.at(step);
      if (whole.misplaced) continue;  // somebody's copy
      if (stay > 0) {
        if (whole.damage.empty()) --stay;
      } else if (whole.readers == 0 &&
                 std::find(needed.begin(), needed.end(), step) == needed.end()) {
        old.push_back(step);
      }
    }
    // One rename each, before anyone can store that step again: half of it never looks like a
    // checkpoint.
    for (int64_t step : old) {
      job->second.erase(step);
      going.push_back(absl::StrCat(JobDir(job_id), "/", kGoing, step));
      std::error_code error;
      fs::rename(StepDir(job_id, step), going.back(), error);
      if (error) going.back() = StepDir(job_id, step);
    }
  }
  for (const std::string& path : going) RemoveTree(path);
}

// ---- what goes ----

void CheckpointStore::DropPartialsIf(
    const std::string& job_id,
    const std::function<bool(int64_t, uint64_t, const std::string&)>& drop) {
  std::error_code error;
  std::vector<std::string> gone;
  for (const fs::directory_entry& entry : fs::directory_iterator(JobDir(job_id), error)) {
    int64_t step = 0;
    unsigned long generation = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "partial-%ld-g%lu", &step, &generation) != 2) continue;
    if (drop(step, generation, entry.path().string())) gone.push_back(entry.path().string());
  }
  for (const std::string& path : gone) {
    for (auto it = checksums_.lower_bound(path);
         it != checksums_.end() && absl::StartsWith(it->first, path);)
      it = checksums_.erase(it);
    RemoveTree(path);
    LogInfo("checkpoints: ", path, " can't become whole any more and is removed");
  }
}

void CheckpointStore::DropPartials(const std::set<std::pair<std::string, uint64_t>>& keep) {
  for (const std::string& id : Jobs()) {
    MutexLock lock(&mutex_);
    DropPartialsIf(id, [&](int64_t, uint64_t generation, const std::string&) {
      return keep.count({id, generation}) == 0;
    });
  }
}

void CheckpointStore::DropPartials(const std::string& job_id, uint64_t keep) {
  MutexLock lock(&mutex_);
  DropPartialsIf(
      job_id, [&](int64_t, uint64_t generation, const std::string&) { return generation != keep; });
}

std::set<std::string> CheckpointStore::Jobs() const {
  std::set<std::string> jobs;
  std::error_code error;
  for (const fs::directory_entry& job : fs::directory_iterator(dir_, error)) {
    const std::string id = job.path().filename().string();
    if (job.is_directory() && CheckJobId(id).ok()) jobs.insert(id);
  }
  return jobs;
}

absl::Status CheckpointStore::NotRead(const std::string& job_id) const {
  int readers = 0;
  const auto job = whole_.find(job_id);
  if (job == whole_.end()) return absl::OkStatus();
  for (const auto& [step, whole] : job->second) readers += whole.readers;
  if (readers == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoints of job ", job_id, " are being read (", readers,
                   readers == 1 ? " transfer" : " transfers", "): wait for their end"));
}

std::string CheckpointStore::AsideDir(const std::string& job_id) const {
  return absl::StrCat(dir_, "/", kAside, job_id);
}

absl::Status CheckpointStore::SetAside(const std::string& job_id) {
  RETURN_IF_ERROR(CheckJobId(job_id));
  RETURN_IF_ERROR(Empty(job_id).status());  // else no rename could put anything in its place
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(NotRead(job_id));
  if (::rename(JobDir(job_id).c_str(), AsideDir(job_id).c_str()) != 0 && errno != ENOENT)
    return absl::ErrnoToStatus(errno, absl::StrCat("removing ", JobDir(job_id)));
  SyncDirectory(dir_).IgnoreError();  // a power cut may leave the job as it was: whole
  whole_.erase(job_id);
  const std::string prefix = JobDir(job_id) + "/";
  for (auto it = checksums_.lower_bound(prefix);
       it != checksums_.end() && absl::StartsWith(it->first, prefix);)
    it = checksums_.erase(it);
  Fault("set aside");
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckpointStore::Empty(const std::string& job_id) {
  const std::string dir = AsideDir(job_id);
  int64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(dir, error)) {
    if (file.is_regular_file(error)) bytes += static_cast<int64_t>(file.file_size(error));
  }
  std::vector<fs::path> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error))
    all.push_back(entry.path());
  for (const fs::path& path : all) {
    fs::remove_all(path, error);
    if (error) {
      return absl::InternalError(absl::StrCat("job ", job_id,
                                              " is removed, but not all its files: ", path.string(),
                                              ": ", error.message(), ". Remove them by hand"));
    }
    Fault("partly empty");
  }
  return bytes;
}

void CheckpointStore::Forget(const std::string& job_id) {
  Fault("empty");
  ::rmdir(AsideDir(job_id).c_str());  // not while there is something in it
}

absl::StatusOr<int64_t> CheckpointStore::RemoveJob(const std::string& job_id) {
  RETURN_IF_ERROR(SetAside(job_id));
  ASSIGN_OR_RETURN(const int64_t bytes, Empty(job_id));
  Forget(job_id);
  return bytes;
}

std::set<std::string> CheckpointStore::SetAsideBefore() const {
  std::set<std::string> jobs;
  std::error_code error;
  for (const fs::directory_entry& job : fs::directory_iterator(dir_, error)) {
    const std::string name = job.path().filename().string();
    absl::string_view id = name;
    if (absl::ConsumePrefix(&id, kAside) && job.is_directory() && CheckJobId(std::string(id)).ok())
      jobs.emplace(id);
  }
  return jobs;
}

}  // namespace isthmus::coordinator
