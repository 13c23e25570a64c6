#include "coordinator/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file/durable_file.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "coordinator/figures.h"
#include "coordinator/store.h"
#include "nlohmann/json.hpp"
#include "proto/tensor_names.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kMaxStep = int64_t{1} << 40;
constexpr const char* kFiles[] = {"weights.safetensors", "optimizer.safetensors", "state.json"};
constexpr char kManifest[] = "manifest.json";

std::string StepName(int64_t step) { return absl::StrFormat("step-%08d", step); }
std::string StageName(int stage) { return absl::StrFormat("stage-%03d", stage); }
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
  if (std::find(std::begin(kFiles), std::end(kFiles), h.file()) == std::end(kFiles)) {
    return bad("its file must be weights.safetensors, optimizer.safetensors or state.json");
  }
  if (h.file_bytes() < 0) return bad(absl::StrCat(h.file_bytes(), " bytes"));
  return absl::OkStatus();
}

Json ReadManifest(const std::string& dir) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(absl::StrCat(dir, "/", kManifest));
  return file.ok() ? Json::parse(file->bytes().begin(), file->bytes().end(), nullptr, false)
                   : Json();
}

// What the manifest says of `file`; "" if nothing.
std::string ChecksumOf(const Json& manifest, const std::string& file) {
  if (!manifest.is_object() || !manifest.contains("files")) return "";
  const Json& files = manifest["files"];
  if (!files.is_object() || !files.contains(file) || !files[file].is_object()) return "";
  const auto checksum = files[file].find("xxh3_64");
  return checksum != files[file].end() && checksum->is_string() ? checksum->get<std::string>() : "";
}

// `file` of the whole checkpoint `dir`, if it is what the manifest says. FailedPrecondition: it is
// damaged; asking again is of no use.
absl::StatusOr<MappedFile> OpenVerified(const std::string& dir, const Json& manifest,
                                        const std::string& file) {
  const auto damaged = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", dir, ": ", file, " is damaged: ", why, ". Put a copy of it back, or move ",
        dir, " away and restart the coordinator to go on from the checkpoint before it"));
  };
  absl::StatusOr<MappedFile> opened = MappedFile::Open(absl::StrCat(dir, "/", file));
  if (!opened.ok()) return damaged(opened.status().message());
  const std::string expected = ChecksumOf(manifest, file);
  if (expected.empty()) return damaged("manifest.json has no checksum of it");
  const std::string found = absl::StrFormat("%016x", Hash64(opened->bytes()));
  if (found != expected) {
    return damaged(absl::StrCat("its ", opened->bytes().size(), " bytes have the checksum ", found,
                                ", manifest.json says ", expected));
  }
  return opened;
}

void Remove(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) LogWarning("checkpoints: removing ", path.string(), ": ", error.message());
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
        for (const fs::path& p : leftovers) Remove(p);
      } else if (std::sscanf(name.c_str(), "step-%ld", &step) == 1 && name == StepName(step)) {
        const Json json = ReadManifest(entry.path().string());
        if (!json.is_object() || !json.contains("generation") || !json["generation"].is_number() ||
            !json.contains("stages") || !json["stages"].is_number()) {
          LogWarning("checkpoints: ", entry.path().string(),
                     " has no usable manifest.json; it is left out");
          continue;
        }
        const Whole whole = {json["generation"].get<uint64_t>(), json["stages"].get<int>()};
        whole_[id][step] = whole;
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
    if (IsWhole(header)) return part;  // sent again after a lost answer
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
  bytes_ += static_cast<int64_t>(data.size());
  if (bytes_ > header_.file_bytes()) {
    return absl::DataLossError(absl::StrCat("checkpoint part ", header_.file(),
                                            ": more bytes than the ", header_.file_bytes(),
                                            " announced"));
  }
  if (temporary_.empty()) return absl::OkStatus();
  hasher_.Update(data.data(), data.size());
  return WriteFully(fd_, data, temporary_);
}

absl::StatusOr<bool> CheckpointStore::Part::Finish() {
  if (bytes_ != header_.file_bytes()) {
    return absl::DataLossError(absl::StrCat("checkpoint part ", header_.file(), " ended after ",
                                            bytes_, " of ", header_.file_bytes(), " bytes"));
  }
  if (temporary_.empty()) return true;
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

absl::StatusOr<bool> CheckpointStore::Publish(const PutCheckpointHeader& header) {
  const fs::path partial = fs::path(JobDir(header.job_id())) / PartialName(header);
  Json files = Json::object();
  for (int s = 0; s < header.stages(); ++s) {
    for (const char* file : kFiles) {
      if (IsUpload(header) && absl::string_view(file) != kFiles[0]) continue;
      const fs::path path = partial / StageName(s) / file;
      std::error_code error;
      const uintmax_t size = fs::file_size(path, error);
      if (error) return false;
      auto known = checksums_.find(path.string());
      if (known == checksums_.end()) {  // acknowledged before a restart
        ASSIGN_OR_RETURN(const MappedFile bytes, MappedFile::Open(path.string()));
        known = checksums_.emplace(path.string(), Hash64(bytes.bytes())).first;
      }
      files[absl::StrCat(StageName(s), "/", file)] = {
          {"bytes", size}, {"xxh3_64", absl::StrFormat("%016x", known->second)}};
    }
  }
  const Json manifest = {{"job", header.job_id()},
                         {"step", header.step()},
                         {"generation", header.generation()},
                         {"stages", header.stages()},
                         {"files", files}};
  RETURN_IF_ERROR(WriteFileDurably((partial / kManifest).string(), manifest.dump(1) + "\n"));
  Fault("manifest written");
  RETURN_IF_ERROR(SwapDirectories(
      partial.string(), absl::StrCat(JobDir(header.job_id()), "/", StepName(header.step()))));
  Fault("published");
  Remove(partial);  // an older one of the same step, if there was
  RETURN_IF_ERROR(SyncDirectory(dir_));
  for (auto it = checksums_.lower_bound(partial.string());
       it != checksums_.end() && absl::StartsWith(it->first, partial.string());)
    it = checksums_.erase(it);
  whole_[header.job_id()][header.step()] = {header.generation(), header.stages()};
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

absl::StatusOr<std::string> CheckpointStore::Fetch(const FetchCheckpointRequest& request,
                                                   int64_t* step) const {
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  int stages = 0;
  *step = request.step() < 0 ? Newest(request.job_id()) : request.step();
  {
    MutexLock lock(&mutex_);
    auto job = whole_.find(request.job_id());
    if (job == whole_.end() || job->second.empty())
      return absl::NotFoundError(absl::StrCat("job ", request.job_id(), " has no checkpoint"));
    auto it = job->second.find(*step);
    if (it == job->second.end()) {
      std::string have;
      for (const auto& [s, whole] : job->second)
        absl::StrAppend(&have, have.empty() ? "" : ", ", s);
      return absl::NotFoundError(absl::StrCat(
          "job ", request.job_id(), " has no checkpoint of step ", *step, "; there are: ", have));
    }
    stages = it->second.stages;
  }
  const std::string dir = absl::StrCat(JobDir(request.job_id()), "/", StepName(*step));
  if (request.what() == "state") {
    ASSIGN_OR_RETURN(
        const MappedFile file,
        OpenVerified(dir, ReadManifest(dir), absl::StrCat(StageName(0), "/", kFiles[2])));
    return std::string(file.bytes());
  }
  if (request.what() != "weights" && request.what() != "optimizer") {
    return absl::InvalidArgumentError(
        "fetch checkpoint: `what` must be weights, optimizer or state");
  }
  return MergeTensors(dir, stages, request);
}

absl::StatusOr<std::string> CheckpointStore::MergeTensors(
    const std::string& dir, int stages, const FetchCheckpointRequest& request) const {
  const std::set<std::string> wanted(request.tensors().begin(), request.tensors().end());
  std::vector<MappedFile> files;
  files.reserve(stages);
  const Json manifest = ReadManifest(dir);
  std::map<std::string, SafetensorsItem> items;
  for (int s = 0; s < stages; ++s) {
    const std::string path = absl::StrCat(StageName(s), "/", request.what(), ".safetensors");
    ASSIGN_OR_RETURN(MappedFile file, OpenVerified(dir, manifest, path));
    files.push_back(std::move(file));
    const auto entries = ParseSafetensors(files.back().bytes());
    if (!entries.ok()) return Annotate(entries.status(), absl::StrCat(dir, "/", path));
    for (const auto& [name, entry] : *entries) {
      if (wanted.empty() ? !IsOwnTensor(name) : wanted.count(name) > 0)
        items.emplace(name, SafetensorsItem{name, entry.dtype, entry.shape, entry.data});
    }
  }
  for (const std::string& name : wanted) {
    if (items.count(name) == 0 && !IsOwnTensor(name))
      return absl::NotFoundError(absl::StrCat("checkpoint ", dir, ": no tensor '",
                                              name.substr(0, 200), "' among its ", request.what()));
  }
  std::vector<SafetensorsItem> list;
  for (auto& [name, item] : items) list.push_back(std::move(item));
  return WriteSafetensors(std::move(list), {{"format", "pt"}});
}

void CheckpointStore::Trim(const std::string& job_id, int keep) {
  const int64_t newest = Newest(job_id);
  std::vector<int64_t> old;
  {
    MutexLock lock(&mutex_);
    auto job = whole_.find(job_id);
    if (job == whole_.end() || job->second.count(newest) == 0) return;
    const uint64_t generation = job->second.at(newest).generation;
    std::vector<std::tuple<bool, uint64_t, int64_t>> order;  // the first ones go
    for (const auto& [step, whole] : job->second) {
      const bool left_behind = whole.generation < generation && step > newest;
      order.emplace_back(!left_behind, whole.generation, step);
    }
    std::sort(order.begin(), order.end());
    const size_t stay = static_cast<size_t>(std::max(1, keep));
    for (size_t i = 0; i + stay < order.size(); ++i) {
      old.push_back(std::get<2>(order[i]));
      job->second.erase(old.back());
    }
  }
  for (int64_t step : old) Remove(fs::path(JobDir(job_id)) / StepName(step));
}

void CheckpointStore::DropPartials(const std::set<std::pair<std::string, uint64_t>>& keep) {
  MutexLock lock(&mutex_);
  std::error_code error;
  std::vector<fs::path> gone;
  for (const fs::directory_entry& job : fs::directory_iterator(dir_, error)) {
    const std::string id = job.path().filename().string();
    if (!job.is_directory()) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(job.path(), error)) {
      int64_t step = 0;
      unsigned long generation = 0;
      const std::string name = entry.path().filename().string();
      if (std::sscanf(name.c_str(), "partial-%ld-g%lu", &step, &generation) != 2) continue;
      if (keep.count({id, generation}) == 0) gone.push_back(entry.path());
    }
  }
  for (const fs::path& p : gone) Remove(p);
}

}  // namespace isthmus::coordinator
