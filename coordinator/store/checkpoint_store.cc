#include "coordinator/store/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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
constexpr int kLookedAt = 4;  // of other checkpoints, when one is damaged

std::string StepName(int64_t step) { return absl::StrFormat("step-%08d", step); }
// The number at the end of `text` after `mark`; 0 if there is none, or one that no counter has.
uint64_t NumberAfter(char mark, absl::string_view text) {
  uint64_t number = 0;
  const bool good = absl::SimpleAtoi(text.substr(text.rfind(mark) + 1), &number);
  return good && number <= kMaxCounter ? number : 0;
}

std::string PartialName(const PutCheckpointHeader& h) {
  return absl::StrFormat("partial-%08d-g%d-of%d", h.step(), h.generation(), h.stages());
}

bool IsUpload(const PutCheckpointHeader& h) { return h.generation() == 0 && h.step() == 0; }

absl::Status CheckHeader(const PutCheckpointHeader& h) {
  RETURN_IF_ERROR(CheckJobId(h.job_id()));
  auto bad = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint part: ", what));
  };
  if (h.step() < 0 || h.step() > kMaxStep) return bad(absl::StrCat("step ", h.step()));
  if (h.stages() < 1 || h.stages() > kMaxStages || h.stage() < 0 || h.stage() >= h.stages())
    return bad(absl::StrCat("stage ", h.stage(), " of ", h.stages()));
  if (std::find(std::begin(kCheckpointFiles), std::end(kCheckpointFiles), h.file()) ==
      std::end(kCheckpointFiles)) {
    return bad("its file must be weights.safetensors, optimizer.safetensors or state.json");
  }
  if (h.file_bytes() < 0) return bad(absl::StrCat(h.file_bytes(), " bytes"));
  return absl::OkStatus();
}

bool StageIsWhole(const std::string& dir) {
  std::error_code error;
  return std::all_of(
      std::begin(kCheckpointFiles), std::end(kCheckpointFiles),
      [&](const char* file) { return fs::exists(absl::StrCat(dir, "/", file), error); });
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
      } else if (std::sscanf(name.c_str(), "step-%ld", &step) == 1 && name == StepName(step)) {
        const auto manifest = CheckpointManifest::Read(entry.path().string());
        if (!manifest.ok()) {
          LogWarning("checkpoints: ", entry.path().string(), " has no usable manifest.json (",
                     manifest.status().message(), "); it is left out");
          continue;
        }
        Whole& whole = whole_[id][step];
        whole.generation = manifest->generation;
        whole.bytes = manifest->bytes();
        if (whole.generation <= kMaxCounter)
          highest_.generation = std::max(highest_.generation, whole.generation);
      }
    }
    if (error) break;
  }
  if (error)
    return absl::InternalError(absl::StrCat("checkpoints: reading ", dir_, ": ", error.message()));
  return absl::OkStatus();
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
             !StageIsWhole(absl::StrCat(at, "/", StageName(header.stage())));
    });
    stage_dir = absl::StrCat(JobDir(header.job_id()), "/", PartialName(header), "/",
                             StageName(header.stage()));
    part->temporary_ = absl::StrCat(stage_dir, "/", header.file(), ".tmp", ++temporary_number_);
  }
  const int64_t free = FreeBytes(dir_) - kReservedDiskBytes;
  if (header.file_bytes() > free) {
    part->temporary_.clear();
    return absl::ResourceExhaustedError(absl::StrCat(
        "checkpoint of job ", header.job_id(), ": ", header.file(), " has ",
        FormatBytes(header.file_bytes()), " and the coordinator's --state-dir has room for ",
        FormatBytes(std::max<int64_t>(0, free)),
        ": free some disk, or keep fewer (checkpoint.keep)"));
  }
  std::error_code error;
  fs::create_directories(stage_dir, error);
  if (!error)
    part->fd_ = ::open(part->temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (part->fd_ < 0)
    return absl::InternalError(
        absl::StrCat("checkpoints: making ", part->temporary_, ": ",
                     error ? error.message() : std::string(std::strerror(errno))));
  return part;
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
  return WriteFully(fd_, data, temporary_);
}

absl::StatusOr<bool> CheckpointStore::Part::Finish() {
  if (is_here_) {
    MutexLock lock(&store_->mutex_);
    if (store_->IsWhole(header_)) return true;
    return store_->Publish(header_);
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
    return absl::ErrnoToStatus(errno, absl::StrCat("checkpoints: syncing ", temporary_));
  store_->Fault("part written");
  // From here on under the lock: whoever finds the last part in place moves the whole directory
  // away.
  MutexLock lock(&store_->mutex_);
  if (store_->IsWhole(header_)) return true;  // the same part, sent twice at once
  const fs::path final_path = fs::path(temporary_).parent_path() / header_.file();
  if (::rename(temporary_.c_str(), final_path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("checkpoints: renaming ", temporary_));
  }
  temporary_.clear();
  RETURN_IF_ERROR(SyncDirectory(final_path.parent_path().string()));
  RETURN_IF_ERROR(SyncDirectory(final_path.parent_path().parent_path().string()));
  store_->Fault("part renamed");
  store_->checksums_[final_path.string()] = header_.checksum();
  return store_->Publish(header_);
}

bool CheckpointStore::IsWhole(const PutCheckpointHeader& header) const {
  auto job = whole_.find(header.job_id());
  if (job == whole_.end()) return false;
  auto step = job->second.find(header.step());
  return step != job->second.end() && step->second.generation == header.generation();
}

bool CheckpointStore::IsHere(const PutCheckpointHeader& header) const {
  if (IsWhole(header)) return true;
  const std::string path = absl::StrCat(JobDir(header.job_id()), "/", PartialName(header), "/",
                                        StageName(header.stage()), "/", header.file());
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
  for (int s = 0; s < header.stages(); ++s) {
    for (const char* file : kCheckpointFiles) {
      if (IsUpload(header) && absl::string_view(file) != kCheckpointFiles[0]) continue;
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
  for (const auto& [s, whole] : job->second) {
    if (whole.generation < latest) continue;
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

// ---- what is there, and whether it is sound ----

CheckpointStore::Whole* CheckpointStore::Find(const std::string& job_id, int64_t step) {
  auto job = whole_.find(job_id);
  if (job == whole_.end()) return nullptr;
  auto it = job->second.find(step);
  return it == job->second.end() ? nullptr : &it->second;
}

bool CheckpointStore::Has(const std::string& job_id, int64_t step, const LocalPart& part) {
  MutexLock lock(&mutex_);
  const Whole* whole = Find(job_id, step);
  if (whole == nullptr || whole->generation != part.generation()) return false;
  const auto manifest = CheckpointManifest::Read(StepDir(job_id, step));
  if (!manifest.ok() || manifest->stages != part.stages()) return false;
  const auto file = manifest->files.find(absl::StrCat(StageName(part.stage()), "/", part.file()));
  return file != manifest->files.end() && file->second.bytes == part.bytes() &&
         file->second.checksum == part.checksum();
}

absl::Status CheckpointStore::NoSuch(const std::string& job_id, int64_t step) const {
  auto job = whole_.find(job_id);
  if (job == whole_.end() || job->second.empty())
    return absl::NotFoundError(absl::StrCat("job ", job_id, " has no checkpoint"));
  std::string have;
  for (const auto& [s, whole] : job->second) absl::StrAppend(&have, have.empty() ? "" : ", ", s);
  return absl::NotFoundError(absl::StrCat("job ", job_id, " has no checkpoint of step ", step,
                                          "; there are those of steps ", have));
}

std::vector<int64_t> CheckpointStore::Newest(const std::string& job_id, int at_most) const {
  MutexLock lock(&mutex_);
  std::vector<std::pair<uint64_t, int64_t>> order;
  auto job = whole_.find(job_id);
  if (job != whole_.end()) {
    for (const auto& [step, whole] : job->second) order.emplace_back(whole.generation, step);
  }
  std::sort(order.rbegin(), order.rend());
  std::vector<int64_t> steps;
  for (const auto& [generation, step] : order) {
    if (static_cast<int>(steps.size()) < at_most) steps.push_back(step);
  }
  return steps;
}

void CheckpointStore::SetDamage(const std::string& job_id, int64_t step, absl::string_view damage) {
  MutexLock lock(&mutex_);
  Whole* whole = Find(job_id, step);
  if (whole != nullptr) whole->damage = std::string(damage);
}

absl::Status CheckpointStore::Check(const std::string& job_id, int64_t step, bool contents,
                                    const Cancelled& cancelled) {
  absl::Status status = CheckCheckpoint(StepDir(job_id, step), contents, cancelled);
  if (absl::IsFailedPrecondition(status)) SetDamage(job_id, step, status.message());
  if (status.ok() && contents) SetDamage(job_id, step, "");
  return status;
}

absl::Status CheckpointStore::Damaged(const std::string& job_id, int64_t step,
                                      const absl::Status& why, const Cancelled& cancelled) {
  if (!absl::IsFailedPrecondition(why)) return why;
  SetDamage(job_id, step, why.message());
  std::vector<int64_t> sound;
  for (int64_t other : Newest(job_id, kLookedAt)) {
    if (other != step && Check(job_id, other, true, cancelled).ok()) sound.push_back(other);
  }
  const std::string head =
      absl::StrCat("the checkpoint of step ", step, " of job ", job_id,
                   " can't be used: ", why.message(), ". Its directory is ", StepDir(job_id, step));
  if (sound.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(head, ". No other checkpoint is sound: put a copy of the file back there"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(head, ". Sound are those of steps ", absl::StrJoin(sound, ", "),
                   ": go on from one with `isthmus submit JOB.yaml --resume --step ", sound[0],
                   "`, or put a copy of the file back there"));
}

absl::Status CheckpointStore::Verify(const std::string& job_id, int64_t step,
                                     const Cancelled& cancelled) {
  {
    MutexLock lock(&mutex_);
    if (Find(job_id, step) == nullptr) return NoSuch(job_id, step);
  }
  return Damaged(job_id, step, Check(job_id, step, true, cancelled), cancelled);
}

absl::StatusOr<std::vector<CheckpointInfo>> CheckpointStore::List(const std::string& job_id,
                                                                  const Run& run, bool verify,
                                                                  const Cancelled& cancelled) {
  std::vector<CheckpointInfo> list;
  std::vector<Run> later = {run};  // where runs went on at the latest, as far as is known
  for (int64_t step : Newest(job_id, std::numeric_limits<int>::max())) {
    const absl::Status status = Check(job_id, step, verify, cancelled);
    if (absl::IsCancelled(status)) return status;
    MutexLock lock(&mutex_);
    const Whole* whole = Find(job_id, step);
    if (whole == nullptr) continue;  // retention removed it meanwhile
    CheckpointInfo& info = list.emplace_back();
    info.set_step(step);
    info.set_bytes(whole->bytes);
    info.set_damage(status.ok() ? whole->damage : std::string(status.message()));
    info.set_left_behind(std::any_of(later.begin(), later.end(), [&](const Run& r) {
      return r.generation > whole->generation && r.start_step < step;
    }));
    later.push_back({whole->generation, step});
  }
  return list;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointStore::Read(
    const FetchCheckpointRequest& request, const Cancelled& cancelled, int64_t* step) {
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  const std::string& job_id = request.job_id();
  *step = request.step() < 0 ? Newest(job_id) : request.step();
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = nullptr;
  {
    MutexLock lock(&mutex_);
    Whole* whole = Find(job_id, *step);
    if (whole == nullptr) return NoSuch(job_id, *step);
    reader = CheckpointReader::Open(StepDir(job_id, *step), request);
    if (reader.ok()) {
      ++whole->readers;
      (*reader)->done = [this, job_id, at = *step] {
        MutexLock done(&mutex_);
        Whole* read = Find(job_id, at);
        if (read != nullptr && read->readers > 0) --read->readers;
      };
    }
  }
  const absl::Status sound = reader.ok() ? (*reader)->Verify(cancelled) : reader.status();
  if (!sound.ok()) return Damaged(job_id, *step, sound, cancelled);
  return reader;
}

}  // namespace isthmus::coordinator
