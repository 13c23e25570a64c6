#include "coordinator/store/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file/durable_file.h"
#include "base/file/random_access_file.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/store/store.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxStep = int64_t{1} << 40;

// The number at the end of `text` after `mark`; 0 if there is none, or one that no counter has.
uint64_t NumberAfter(char mark, absl::string_view text) {
  uint64_t number = 0;
  const bool good = absl::SimpleAtoi(text.substr(text.rfind(mark) + 1), &number);
  return good && number <= kMaxCounter ? number : 0;
}

std::string PartialName(const PutCheckpointHeader& h) {
  return absl::StrFormat("partial-%08d-g%d-of%d", h.step(), h.generation(), h.stages());
}

int Replicas(const PutCheckpointHeader& h) { return std::max(1, h.replicas()); }

std::string NameOf(const PutCheckpointHeader& h) { return PartName(h.replica(), h.file()); }

bool IsUpload(const PutCheckpointHeader& h) { return h.generation() == 0 && h.step() == 0; }

absl::Status CheckHeader(const PutCheckpointHeader& h) {
  RETURN_IF_ERROR(CheckJobId(h.job_id()));
  auto bad = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint part: ", what));
  };
  if (h.step() < 0 || h.step() > kMaxStep) return bad(absl::StrCat("step ", h.step()));
  if (h.stages() < 1 || h.stages() > kMaxStages || h.stage() < 0 || h.stage() >= h.stages())
    return bad(absl::StrCat("stage ", h.stage(), " of ", h.stages()));
  if (h.replicas() < 0 || h.replicas() > kMaxReplicas || h.replica() < 0 ||
      h.replica() >= Replicas(h)) {
    return bad(absl::StrCat("replica ", h.replica(), " of ", Replicas(h)));
  }
  const std::vector<std::string> files = PartNames(h.replica(), false);
  if (std::find(files.begin(), files.end(), NameOf(h)) == files.end()) {
    return bad(h.replica() == 0
                   ? "its file must be weights.safetensors, optimizer.safetensors or state.json"
                   : "a further replica's file must be optimizer.safetensors or state.json");
  }
  if (h.file_bytes() < 0) return bad(absl::StrCat(h.file_bytes(), " bytes"));
  return absl::OkStatus();
}

// What a stage's replica puts is there.
bool IsWholeOf(const std::string& dir, int replica) {
  const std::vector<std::string> files = PartNames(replica, false);
  std::error_code error;
  return std::all_of(files.begin(), files.end(), [&](const std::string& file) {
    return fs::exists(absl::StrCat(dir, "/", file), error);
  });
}

}  // namespace

absl::Status CheckJobId(const std::string& id) {
  bool good = !id.empty() && id.size() <= 80 && id[0] != '-';
  for (char c : id) good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    "job id: must be 1-80 lower-case letters, digits and '-'");
}

void CheckpointStore::Fault(const char* point) const {
  if (options_.fault) options_.fault(point);
}

std::string CheckpointStore::JobDir(const std::string& job_id) const {
  return absl::StrCat(dir_, "/", job_id);
}

std::string CheckpointStore::StepDir(const std::string& job_id, int64_t step) const {
  return absl::StrCat(JobDir(job_id), "/", StepName(step));
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& dir,
                                                                       CheckpointOptions options) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error)
    return absl::PermissionDeniedError(absl::StrCat("checkpoints: ", dir, ": ", error.message()));
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(dir, std::move(options)));
  RETURN_IF_ERROR(store->Scan());
  return store;
}

absl::Status CheckpointStore::Scan() {
  MutexLock lock(&mutex_);
  std::error_code error;
  for (const std::string& id : SetAsideBefore()) {
    highest_.job_number = std::max(highest_.job_number, NumberAfter('-', id));
    const absl::StatusOr<int64_t> freed = Empty(id);
    LogInfo("checkpoints: job ", id, " was being removed; ",
            freed.ok() ? absl::StrCat(FormatBytes(*freed), " freed") : freed.status().message());
  }
  for (const fs::directory_entry& job : fs::directory_iterator(dir_, error)) {
    const std::string id = job.path().filename().string();
    if (!job.is_directory() || !CheckJobId(id).ok()) continue;
    highest_.job_number = std::max(highest_.job_number, NumberAfter('-', id));
    for (const fs::directory_entry& entry : fs::directory_iterator(job.path(), error)) {
      const std::string name = entry.path().filename().string();
      int64_t step = -1;
      if (absl::StartsWith(name, "partial-")) {
        highest_.generation =
            std::max(highest_.generation, NumberAfter('g', name.substr(0, name.rfind("-of"))));
        std::vector<fs::path> leftovers;
        for (const fs::directory_entry& file :
             fs::recursive_directory_iterator(entry.path(), error)) {
          if (absl::StrContains(file.path().filename().string(), ".tmp"))
            leftovers.push_back(file.path());
        }
        for (const fs::path& p : leftovers) RemoveTree(p.string());
      } else if (entry.path().string() == StartWorkDir(id) || absl::StartsWith(name, kGoing)) {
        RemoveTree(entry.path().string());
      } else if (std::sscanf(name.c_str(), "step-%ld", &step) == 1 && name == StepName(step)) {
        Remember(id, step, entry.path().string());
      }
    }
    if (error) break;
  }
  if (error)
    return absl::InternalError(absl::StrCat("checkpoints: reading ", dir_, ": ", error.message()));
  return absl::OkStatus();
}

void CheckpointStore::Remember(const std::string& job_id, int64_t step, const std::string& dir) {
  const auto manifest = CheckpointManifest::Read(dir);
  if (!manifest.ok()) {
    LogWarning("checkpoints: ", dir, " has no usable manifest.json (", manifest.status().message(),
               "); it is left out");
    return;
  }
  Whole& whole = whole_[job_id][step];
  whole.generation = manifest->generation;
  whole.bytes = manifest->bytes();
  if (whole.generation <= kMaxCounter)
    highest_.generation = std::max(highest_.generation, whole.generation);
  if (const absl::Status own = CheckIdentity(*manifest, {job_id, step, {}}); !own.ok()) {
    whole.misplaced = true;
    whole.damage = std::string(own.message());
    LogWarning("checkpoints: ", dir, ": ", own.message());
  }
}

absl::StatusOr<std::unique_ptr<CheckpointStore::Part>> CheckpointStore::Begin(
    const PutCheckpointHeader& header) {
  RETURN_IF_ERROR(CheckHeader(header));
  std::unique_ptr<Part> part(new Part(this, header));
  std::string stage_dir;
  {
    MutexLock lock(&mutex_);
    if (IsHere(header)) {  // sent again after a lost answer, or because another part was missing
      part->is_here_ = true;
      return part;
    }
    DropPartialsIf(header.job_id(), [&](int64_t step, uint64_t generation, const std::string& at) {
      return generation == header.generation() && step < header.step() &&
             !IsWholeOf(absl::StrCat(at, "/", StageName(header.stage())), header.replica());
    });
    stage_dir = absl::StrCat(JobDir(header.job_id()), "/", PartialName(header), "/",
                             StageName(header.stage()));
    part->temporary_ = absl::StrCat(stage_dir, "/", NameOf(header), ".tmp", ++temporary_number_);
  }
  // How much is free is not said: it is tried again and again, and other words are other trouble.
  if (header.file_bytes() > std::max<int64_t>(0, FreeBytes(dir_) - kReservedDiskBytes)) {
    part->temporary_.clear();
    return absl::ResourceExhaustedError(
        absl::StrCat("the coordinator's --state-dir has less room than that (of what is free "
                     "there, ",
                     FormatBytes(kReservedDiskBytes),
                     " stay for the database): free some disk, or keep fewer (checkpoint.keep)"));
  }
  std::error_code error;
  fs::create_directories(stage_dir, error);
  if (!error)
    part->fd_ = ::open(part->temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (part->fd_ < 0)
    return absl::InternalError(
        absl::StrCat("checkpoints: making ", part->path(), ": ",
                     error ? error.message() : std::string(std::strerror(errno))));
  return part;
}

// Of errors, too: the name of the temporary file is another one at each try.
std::string CheckpointStore::Part::path() const {
  return (fs::path(temporary_).parent_path() / NameOf(header_)).string();
}

CheckpointStore::Part::~Part() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status CheckpointStore::Part::Append(absl::string_view data) {
  if (is_here_) return absl::OkStatus();
  bytes_ += static_cast<int64_t>(data.size());
  if (bytes_ > header_.file_bytes()) {
    return absl::DataLossError(absl::StrCat("checkpoint part ", header_.file(),
                                            ": more bytes than the ", header_.file_bytes(),
                                            " announced"));
  }
  hasher_.Update(data.data(), data.size());
  return WriteFully(fd_, data, path());
}

absl::StatusOr<bool> CheckpointStore::Part::Finish() {
  if (is_here_) {
    MutexLock lock(&store_->mutex_);
    if (store_->IsWhole(header_)) return true;
    return Publish();
  }
  if (bytes_ != header_.file_bytes()) {
    return absl::DataLossError(absl::StrCat("checkpoint part ", header_.file(), " ended after ",
                                            bytes_, " of ", header_.file_bytes(), " bytes"));
  }
  if (hasher_.Digest() != header_.checksum()) {
    return absl::DataLossError(absl::StrCat("checkpoint part ", header_.file(),
                                            ": its checksum differs from the one announced"));
  }
  if (::fsync(fd_) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("checkpoints: syncing ", path()));
  store_->Fault("part written");
  // From here on under the lock: whoever finds the last part in place moves the whole directory
  // away.
  MutexLock lock(&store_->mutex_);
  if (store_->IsWhole(header_)) return true;  // the same part, sent twice at once
  const fs::path final_path = path();
  if (::rename(temporary_.c_str(), final_path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("checkpoints: renaming to ", path()));
  }
  temporary_.clear();
  RETURN_IF_ERROR(SyncDirectory(final_path.parent_path().string()));
  RETURN_IF_ERROR(SyncDirectory(final_path.parent_path().parent_path().string()));
  store_->Fault("part renamed");
  store_->checksums_[final_path.string()] = header_.checksum();
  return Publish();
}

absl::StatusOr<bool> CheckpointStore::Part::Publish() {
  ASSIGN_OR_RETURN(made_whole_, store_->Publish(header_));
  return made_whole_;
}

bool CheckpointStore::IsWhole(const PutCheckpointHeader& header) const {
  auto job = whole_.find(header.job_id());
  if (job == whole_.end()) return false;
  auto step = job->second.find(header.step());
  return step != job->second.end() && step->second.generation == header.generation() &&
         !step->second.misplaced;
}

bool CheckpointStore::IsHere(const PutCheckpointHeader& header) const {
  if (IsWhole(header)) return true;
  const std::string path = absl::StrCat(JobDir(header.job_id()), "/", PartialName(header), "/",
                                        StageName(header.stage()), "/", NameOf(header));
  const auto known = checksums_.find(path);
  return known != checksums_.end() && known->second == header.checksum();
}

absl::StatusOr<bool> CheckpointStore::Publish(const PutCheckpointHeader& header) {
  const fs::path partial = fs::path(JobDir(header.job_id())) / PartialName(header);
  CheckpointManifest manifest;
  manifest.job_id = header.job_id();
  manifest.step = header.step();
  manifest.generation = header.generation();
  manifest.stages = header.stages();
  manifest.replicas = Replicas(header);
  std::vector<std::string> names;
  for (int r = 0; r < manifest.replicas; ++r) {
    for (std::string& name : PartNames(r, IsUpload(header))) names.push_back(std::move(name));
  }
  for (int s = 0; s < header.stages(); ++s) {
    for (const std::string& file : names) {
      const fs::path path = partial / StageName(s) / file;
      std::error_code error;
      const uintmax_t size = fs::file_size(path, error);
      if (error) return false;
      auto known = checksums_.find(path.string());
      if (known == checksums_.end()) {  // acknowledged before a restart
        ASSIGN_OR_RETURN(const RandomAccessFile part, RandomAccessFile::Open(path.string()));
        ASSIGN_OR_RETURN(const uint64_t checksum, part.Hash());
        known = checksums_.emplace(path.string(), checksum).first;
      }
      manifest.files[absl::StrCat(StageName(s), "/", file)] = {static_cast<int64_t>(size),
                                                               known->second};
    }
  }
  RETURN_IF_ERROR(WriteFileDurably((partial / kManifest).string(), manifest.ToJson()));
  Fault("manifest written");
  RETURN_IF_ERROR(SwapDirectories(partial.string(), StepDir(header.job_id(), header.step())));
  Fault("published");
  RemoveTree(partial.string());  // an older one of the same step, if there was
  RETURN_IF_ERROR(SyncDirectory(dir_));
  // A generation's older ones were given up: its checkpoints come one after the other.
  DropPartialsIf(header.job_id(), [&](int64_t step, uint64_t generation, const std::string&) {
    return generation <= header.generation() && step <= header.step();
  });
  for (auto it = checksums_.lower_bound(partial.string());
       it != checksums_.end() && absl::StartsWith(it->first, partial.string());)
    it = checksums_.erase(it);
  Whole& whole = whole_[header.job_id()][header.step()];
  whole.generation = header.generation();
  whole.bytes = manifest.bytes();
  whole.damage.clear();
  whole.misplaced = false;
  return true;
}

CheckpointStore::Highest CheckpointStore::highest() const {
  MutexLock lock(&mutex_);
  return highest_;
}

int64_t CheckpointStore::Newest(const std::string& job_id) const { return Head(job_id, 0, -1); }

int64_t CheckpointStore::Head(const std::string& job_id, uint64_t generation, int64_t step) const {
  MutexLock lock(&mutex_);
  auto job = whole_.find(job_id);
  if (job == whole_.end() || job->second.empty()) return -1;
  int64_t newest = -1;
  uint64_t latest = 0;
  bool in_place = false;
  for (const auto& [s, whole] : job->second) {
    if (in_place && (whole.misplaced || whole.generation < latest)) continue;
    if (!in_place && whole.misplaced && whole.generation < latest) continue;
    in_place = !whole.misplaced;
    latest = whole.generation;
    newest = s;
  }
  return latest < generation && job->second.count(step) > 0 ? step : newest;
}

std::vector<int64_t> CheckpointStore::Steps(const std::string& job_id) const {
  MutexLock lock(&mutex_);
  std::vector<int64_t> steps;
  auto it = whole_.find(job_id);
  if (it != whole_.end()) {
    for (const auto& [step, whole] : it->second) steps.push_back(step);
  }
  return steps;
}

}  // namespace isthmus::coordinator
