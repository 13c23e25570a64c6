#include "daemon/state/codec_state_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <limits>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/file/file_name.h"
#include "base/file/tree.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr char kUnfinished[] = ".part";

// Of "<name>-<step>"; false: another file.
bool ParseFileName(const std::string& file, std::string* name, int64_t* step) {
  const size_t dash = file.rfind('-');
  if (dash == std::string::npos || !absl::SimpleAtoi(file.substr(dash + 1), step)) return false;
  *name = file.substr(0, dash);
  return true;
}

std::vector<std::string> FilesOf(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    files.push_back(it->path().filename().string());
  return files;
}

bool Remove(const std::string& path) {
  const absl::Status removed = RemoveTree(path);
  if (!removed.ok()) LogWarning(removed.message());
  return removed.ok();
}

constexpr int64_t kNoStep = -1;  // of a file that is being written, or was when its daemon died

struct StateFile {
  std::string path;
  std::string job;
  std::string name;
  int64_t step = kNoStep;
  int64_t bytes = 0;
  fs::file_time_type when;
};

// Of one job. What is no regular file, or has another name than states have, is left alone.
std::vector<StateFile> StatesOf(const std::string& root, const std::string& job) {
  std::vector<StateFile> states;
  for (const std::string& file : FilesOf(absl::StrCat(root, "/", job))) {
    StateFile state{absl::StrCat(root, "/", job, "/", file), job};
    struct stat info;
    if (lstat(state.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const bool whole = ParseFileName(file, &state.name, &state.step);
    if (!whole && !absl::EndsWith(file, kUnfinished)) continue;
    if (!whole) state.step = kNoStep;
    state.bytes = info.st_size;
    std::error_code gone;  // meanwhile: as old as can be
    state.when = fs::last_write_time(state.path, gone);
    states.push_back(std::move(state));
  }
  return states;
}

// A directory that is a link somewhere else is not looked into: nothing goes outside of `root`.
std::vector<StateFile> StatesUnder(const std::string& root) {
  std::vector<StateFile> all;
  for (const std::string& job : FilesOf(root)) {
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(absl::StrCat(root, "/", job), error))) continue;
    std::vector<StateFile> states = StatesOf(root, job);
    std::move(states.begin(), states.end(), std::back_inserter(all));
  }
  return all;
}

int64_t Sum(const std::vector<StateFile>& files) {
  int64_t bytes = 0;
  for (const StateFile& f : files)
    bytes += std::min(f.bytes, std::numeric_limits<int64_t>::max() - bytes);
  return bytes;
}

// What may go to make room for a state of `key`, first what is missed least: files too large for
// this daemon to have kept them, states of the job older than its newest before `key`, other jobs'
// from the oldest. A file that is being written and the job's newest states are not in it.
std::vector<StateFile> Dispensable(std::vector<StateFile> files, const worker::CodecStateKey& key,
                                   int64_t max_bytes) {
  int64_t newest = kNoStep;
  for (const StateFile& f : files) {
    if (f.job == key.job_id && f.step < key.step) newest = std::max(newest, f.step);
  }
  const auto rank = [&](const StateFile& f) {
    const bool mine = f.job == key.job_id;
    if (mine && f.step == kNoStep) return 3;
    if (f.bytes > max_bytes) return 0;
    if (!mine) return 2;
    return f.step < newest ? 1 : 3;
  };
  files.erase(
      std::remove_if(files.begin(), files.end(), [&](const StateFile& f) { return rank(f) == 3; }),
      files.end());
  std::sort(files.begin(), files.end(), [&](const StateFile& a, const StateFile& b) {
    return std::make_tuple(rank(a), a.when, a.step, a.path) <
           std::make_tuple(rank(b), b.when, b.step, b.path);
  });
  return files;
}

// ResourceExhausted: what must stay takes max_bytes.
absl::Status MakeRoom(const std::string& root, const worker::CodecStateKey& key,
                      int64_t max_bytes) {
  std::vector<StateFile> files = StatesUnder(root);
  if (Sum(files) < max_bytes) return absl::OkStatus();
  for (const StateFile& f : Dispensable(files, key, max_bytes)) {
    if (f.bytes > max_bytes) {
      LogWarning("removing ", f.path, ": it has ", f.bytes,
                 " bytes, and all codec states may take ", max_bytes,
                 " (--disk of the daemon); a resume that needs it begins with a new codec");
    } else {
      LogInfo("removing the codec state ", f.path, " to make room for those of job ", key.job_id,
              ", step ", key.step, ": ", max_bytes, " bytes in all (--disk of the daemon)");
    }
    if (!Remove(f.path)) continue;
    files.erase(std::find_if(files.begin(), files.end(),
                             [&](const StateFile& of) { return of.path == f.path; }));
    if (Sum(files) < max_bytes) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "codec states may take ", max_bytes, " bytes in all (--disk of the daemon), and ",
      "those in ", root, " that job ", key.job_id, " needs take ", Sum(files),
      ": start the daemon with a larger --disk, or delete ", root, "/", key.job_id,
      " when the job does not run"));
}

// Of the committed state's own name the newest kKeptSteps stay. Of the job's other names, one step
// more: one that runs still may be a checkpoint behind; one that this daemon no longer holds goes.
void RemoveOlder(const std::string& root, const worker::CodecStateKey& key) {
  const std::vector<StateFile> files = StatesOf(root, key.job_id);
  std::set<int64_t> own, all;
  for (const StateFile& f : files) {
    if (f.step == kNoStep || f.step > key.step) continue;
    all.insert(f.step);
    if (f.name == key.name) own.insert(f.step);
  }
  const auto oldest = [](const std::set<int64_t>& steps, size_t kept) {
    return steps.size() < kept ? 0 : *std::prev(steps.end(), kept);
  };
  const int64_t oldest_own = oldest(own, CodecStateDir::kKeptSteps);
  const int64_t oldest_other = oldest(all, CodecStateDir::kKeptSteps + 1);
  for (const StateFile& f : files) {
    const int64_t from = f.name == key.name ? oldest_own : oldest_other;
    if (f.step != kNoStep && f.step < from) Remove(f.path);
  }
}

class FileWriter : public worker::CodecStateStore::Writer {
 public:
  FileWriter(std::unique_ptr<DurableFile> file, std::string path, worker::CodecStateKey key,
             std::string root, int64_t max_bytes)
      : file_(std::move(file)),
        path_(std::move(path)),
        key_(std::move(key)),
        root_(std::move(root)),
        max_bytes_(max_bytes) {}
  absl::Status CheckRoom() const {
    if (max_bytes_ > 0) RETURN_IF_ERROR(Annotate(MakeRoom(root_, key_, max_bytes_), path_));
    const int64_t free = FreeBytes(root_);
    if (free >= CodecStateDir::kFreeBytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat(path_, ": only ", free, " bytes are free there, ", CodecStateDir::kFreeBytes,
                     " must stay free: free some, or delete the directories in ", root_,
                     " of jobs that are not to be resumed"));
  }

  absl::Status Append(absl::string_view bytes) override {
    RETURN_IF_ERROR(file_->Append(bytes));
    if (file_->bytes() - started_ < kPieceBytes) return absl::OkStatus();
    WriteBack();
    return CheckRoom();
  }

  absl::Status Commit() override {
    RETURN_IF_ERROR(file_->Commit());
    RemoveOlder(root_, key_);
    return absl::OkStatus();
  }

 private:
  // Starts writing the last piece to the disk and waits for the one before, so that no more than
  // two are ahead of the disk and Commit finds little left to do. Errors are fsync's to tell.
  void WriteBack() {
    constexpr unsigned kWait =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    const int64_t written = file_->bytes();
    sync_file_range(file_->fd(), started_, written - started_, SYNC_FILE_RANGE_WRITE);
    sync_file_range(file_->fd(), waited_, started_ - waited_, started_ > waited_ ? kWait : 0);
    waited_ = started_;
    started_ = written;
  }

  const std::unique_ptr<DurableFile> file_;
  const std::string path_;
  const worker::CodecStateKey key_;
  const std::string root_;
  const int64_t max_bytes_;
  int64_t started_ = 0, waited_ = 0;  // bytes on their way to the disk; there
};

class FileSource : public compress::StateSource {
 public:
  FileSource(int fd, std::string path) : fd_(fd), path_(std::move(path)) {
    posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~FileSource() override { close(fd_); }
  absl::StatusOr<size_t> Read(char* to, size_t bytes) override {
    for (;;) {
      const ssize_t n = read(fd_, to, bytes);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path_));
    }
  }

 private:
  const int fd_;
  const std::string path_;
};

}  // namespace

absl::StatusOr<std::string> CodecStateDir::PathOf(const worker::CodecStateKey& key) const {
  if (!IsFileName(key.job_id) || !IsFileName(key.name) || key.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no file for the codec state '", key.name.substr(0, kMaxFileNameBytes),
                     "' of job '", key.job_id.substr(0, kMaxFileNameBytes),
                     "': letters, digits, '-', '_' and '.' can be in names"));
  }
  return absl::StrCat(root_, "/", key.job_id, "/", key.name, "-", key.step);
}

void CodecStateDir::RemoveJob(const std::string& job_id) const {
  if (IsFileName(job_id)) Remove(absl::StrCat(root_, "/", job_id));
}

void CodecStateDir::Begin(const std::string& job_id, int64_t step) {
  RemoveOldJobs(job_id);
  if (!IsFileName(job_id)) return;
  const std::string directory = absl::StrCat(root_, "/", job_id);
  for (const std::string& file : FilesOf(directory)) {
    std::string name;
    int64_t of = 0;
    const bool state = ParseFileName(file, &name, &of);
    if ((state && of > step) || absl::EndsWith(file, kUnfinished))
      Remove(absl::StrCat(directory, "/", file));
  }
}

void CodecStateDir::RemoveOldJobs(const std::string& job_id) const {
  std::vector<std::pair<fs::file_time_type, std::string>> others;
  for (const std::string& job : FilesOf(root_)) {
    std::error_code error;
    const fs::file_time_type when = fs::last_write_time(absl::StrCat(root_, "/", job), error);
    if (!error && job != job_id) others.emplace_back(when, job);
  }
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i + kKeptJobs - 1 < others.size(); ++i) {
    LogInfo("removing the codec states of job ", others[i].second, ": those of the last ",
            kKeptJobs, " jobs are kept");
    Remove(absl::StrCat(root_, "/", others[i].second));
  }
}

absl::StatusOr<std::unique_ptr<worker::CodecStateStore::Writer>> CodecStateDir::Create(
    const worker::CodecStateKey& key) {
  ASSIGN_OR_RETURN(const std::string path, PathOf(key));
  for (const std::string& directory : {root_, absl::StrCat(root_, "/", key.job_id)}) {
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
      return absl::ErrnoToStatus(errno, absl::StrCat("making ", directory));
    std::error_code error;
    if (!fs::is_directory(directory, error)) {
      return absl::FailedPreconditionError(absl::StrCat(
          directory, " is not a directory, and codec states belong into one: delete it"));
    }
  }
  RETURN_IF_ERROR(RemoveTree(path));  // whatever it is
  ASSIGN_OR_RETURN(auto file, DurableFile::Create(path, kUnfinished, 0600));
  auto writer = std::make_unique<FileWriter>(std::move(file), path, key, root_, max_bytes_);
  RETURN_IF_ERROR(writer->CheckRoom());
  return writer;
}

absl::StatusOr<std::unique_ptr<compress::StateSource>> CodecStateDir::Open(
    const worker::CodecStateKey& key) {
  ASSIGN_OR_RETURN(const std::string path, PathOf(key));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would block
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
  }
  return std::make_unique<FileSource>(fd, path);
}

}  // namespace isthmus::daemon
