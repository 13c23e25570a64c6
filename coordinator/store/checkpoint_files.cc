#include "coordinator/store/checkpoint_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "proto/model/tensor_names.h"

namespace isthmus::coordinator {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxManifestBytes = int64_t{1} << 20;  // three files a daemon, 100 bytes each

absl::Status Damaged(const std::string& file, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(file, " is damaged: ", why));
}

// Missing, cut off or unreadable is damage; a lack of file descriptors is not.
absl::Status AsDamage(const std::string& file, const absl::Status& status) {
  if (absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status))
    return Damaged(file, status.message());
  return status;
}

absl::StatusOr<RandomAccessFile> OpenFile(const std::string& dir, const std::string& file) {
  absl::StatusOr<RandomAccessFile> opened = RandomAccessFile::Open(absl::StrCat(dir, "/", file));
  if (!opened.ok()) return AsDamage(file, opened.status());
  return opened;
}

absl::Status CheckFile(const CheckpointManifest& manifest, const std::string& path,
                       const RandomAccessFile& file, bool contents) {
  const auto known = manifest.files.find(path);
  if (known == manifest.files.end()) return Damaged(path, "manifest.json has no checksum of it");
  if (file.bytes() != known->second.bytes) {
    return Damaged(path, absl::StrCat("it has ", file.bytes(), " bytes, manifest.json says ",
                                      known->second.bytes));
  }
  if (!contents) return absl::OkStatus();
  const absl::StatusOr<uint64_t> found = file.Hash();
  if (!found.ok()) return AsDamage(path, found.status());
  if (*found == known->second.checksum) return absl::OkStatus();
  return Damaged(path,
                 absl::StrFormat("its %d bytes have the checksum %016x, manifest.json says %016x",
                                 file.bytes(), *found, known->second.checksum));
}

// A file's entry in the manifest; false: not one.
bool ReadEntry(const Json& json, CheckpointManifest::File* file) {
  if (!json.is_object()) return false;
  const auto bytes = json.find("bytes"), checksum = json.find("xxh3_64");
  if (bytes == json.end() || !bytes->is_number_unsigned()) return false;
  if (checksum == json.end() || !checksum->is_string()) return false;
  file->bytes = bytes->get<int64_t>();
  return absl::SimpleHexAtoi(checksum->get<std::string>(), &file->checksum);
}

}  // namespace

std::string StageName(int stage) { return absl::StrFormat("stage-%03d", stage); }

std::string PartName(int replica, const std::string& file) {
  return replica == 0 ? file : absl::StrFormat("replica-%03d-%s", replica, file);
}

std::vector<std::string> PartNames(int replica, bool upload) {
  if (upload) return {kCheckpointFiles[0]};
  std::vector<std::string> names;
  if (replica == 0) return {std::begin(kCheckpointFiles), std::end(kCheckpointFiles)};
  for (const char* file : kReplicaFiles) names.push_back(PartName(replica, file));
  return names;
}

std::string StepName(int64_t step) { return absl::StrFormat("step-%08d", step); }

void RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) LogWarning("checkpoints: removing ", path, ": ", error.message());
}

int64_t CheckpointManifest::bytes() const {
  int64_t sum = 0;
  for (const auto& [path, file] : files) sum += file.bytes;
  return sum;
}

std::string CheckpointManifest::ToJson() const {
  nlohmann::json list = nlohmann::json::object();
  for (const auto& [path, file] : files)
    list[path] = {{"bytes", file.bytes}, {"xxh3_64", absl::StrFormat("%016x", file.checksum)}};
  nlohmann::json json = {{"job", job_id},
                         {"step", step},
                         {"generation", generation},
                         {"stages", stages},
                         {"files", list}};
  if (replicas > 1) json["replicas"] = replicas;
  if (!made.empty()) json["made"] = made;
  return json.dump(1) + "\n";
}

absl::StatusOr<CheckpointManifest> CheckpointManifest::Read(const std::string& dir) {
  ASSIGN_OR_RETURN(const RandomAccessFile file,
                   RandomAccessFile::Open(absl::StrCat(dir, "/", kManifest)));
  const absl::Status bad = absl::FailedPreconditionError("it is not a manifest");
  if (file.bytes() > kMaxManifestBytes) return bad;
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, text.size(), text.data()));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&json](const char* key, uint64_t limit, uint64_t* out) {
    const auto it = json.find(key);
    if (it == json.end() || !it->is_number_unsigned() || it->get<uint64_t>() > limit) return false;
    *out = it->get<uint64_t>();
    return true;
  };
  uint64_t step = 0, stages = 0, replicas = 1;
  CheckpointManifest manifest;
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object() ||
      !number("step", uint64_t{1} << 62, &step) || !number("stages", kMaxStages, &stages) ||
      !number("generation", ~uint64_t{0}, &manifest.generation) ||
      (json.contains("replicas") && !number("replicas", kMaxReplicas, &replicas))) {
    return bad;
  }
  manifest.step = static_cast<int64_t>(step);
  manifest.stages = static_cast<int>(stages);
  manifest.replicas = static_cast<int>(std::max<uint64_t>(1, replicas));
  if (const auto job = json.find("job"); job != json.end() && job->is_string())
    manifest.job_id = job->get<std::string>();
  if (const auto made = json.find("made"); made != json.end() && made->is_string())
    manifest.made = made->get<std::string>();
  for (const auto& item : json["files"].items()) {
    if (!ReadEntry(item.value(), &manifest.files[item.key()])) manifest.files.erase(item.key());
  }
  return manifest;
}

absl::Status CheckIdentity(const CheckpointManifest& manifest, const CheckpointIdentity& identity) {
  const auto says = [](const auto&... words) {
    return absl::FailedPreconditionError(absl::StrCat(kManifest, " ", words...));
  };
  const bool other_job = !manifest.job_id.empty() && manifest.job_id != identity.job_id;
  if (other_job || manifest.step != identity.step) {
    return says("is that of checkpoint ", manifest.step, " of job ",
                other_job ? manifest.job_id : identity.job_id,
                ": the directory was copied or renamed by hand. It can be used in its own place, ",
                other_job ? manifest.job_id : identity.job_id, "/", StepName(manifest.step));
  }
  if (identity.generation.has_value() && manifest.generation != *identity.generation) {
    return says("is of generation ", manifest.generation, ", and the checkpoint was stored by ",
                *identity.generation, ": another one was copied into its place by hand");
  }
  const bool upload = manifest.generation == 0;
  if (manifest.stages < 1 || (upload && (manifest.step != 0 || manifest.stages != 1)))
    return says("says ", manifest.stages, " stages, of generation ", manifest.generation,
                ": it is not as it was written");
  std::set<std::string> named, of_stages;
  for (const auto& [path, file] : manifest.files) named.insert(path);
  for (int s = 0; s < manifest.stages; ++s) {
    for (int r = 0; r < manifest.replicas; ++r) {
      for (const std::string& file : PartNames(r, upload))
        of_stages.insert(absl::StrCat(StageName(s), "/", file));
    }
  }
  if (named == of_stages) return absl::OkStatus();
  for (const std::string& path : of_stages) {
    if (named.count(path) == 0)
      return says("does not name ", path, ", though it says ", manifest.stages, " stages");
  }
  for (const std::string& path : of_stages) named.erase(path);
  return says("names ", *named.begin(), ", though it says ", manifest.stages, " stages");
}

namespace {

// One more than the manifest knows: put there by hand. Nobody can say what belongs together.
absl::Status CheckStageFolders(const std::string& dir, int stages) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    int stage = -1;
    if (!absl::StartsWith(name, "stage-") || !absl::SimpleAtoi(name.substr(6), &stage)) continue;
    if (name == StageName(stage) && stage < stages) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("there is a folder ", name, ", though ", kManifest, " says ", stages,
                     stages == 1 ? " stage" : " stages", ": it was put there by hand"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCheckpoint(const std::string& dir, const CheckpointIdentity& identity,
                             bool contents, const std::function<bool()>& cancelled) {
  const absl::StatusOr<CheckpointManifest> manifest = CheckpointManifest::Read(dir);
  if (!manifest.ok()) return AsDamage(kManifest, manifest.status());
  RETURN_IF_ERROR(CheckIdentity(*manifest, identity));
  RETURN_IF_ERROR(CheckStageFolders(dir, manifest->stages));
  for (const auto& [path, known] : manifest->files) {
    if (cancelled && cancelled()) return absl::CancelledError("the caller has gone");
    ASSIGN_OR_RETURN(const RandomAccessFile file, OpenFile(dir, path));
    RETURN_IF_ERROR(CheckFile(*manifest, path, file, contents));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> ReadStartManifest(const std::string& dir,
                                                     const CheckpointIdentity& identity) {
  const absl::StatusOr<CheckpointManifest> manifest =
      CheckpointManifest::Read(absl::StrCat(dir, "/", kStart));
  if (absl::IsNotFound(manifest.status()))
    return absl::NotFoundError(absl::StrCat("checkpoint of step ", identity.step,
                                            ": no weights of a next phase are made of it"));
  if (!manifest.ok()) return AsDamage(absl::StrCat(kStart, "/", kManifest), manifest.status());
  const bool own = manifest->job_id == identity.job_id && manifest->step == identity.step &&
                   manifest->generation == identity.generation.value_or(manifest->generation) &&
                   manifest->files.size() == 1 && manifest->files.count(kStartWeights) == 1;
  if (own) return manifest;
  return Damaged(absl::StrCat(kStart, "/", kManifest), "it is not that of this checkpoint");
}

absl::Status CheckStart(const std::string& dir, const CheckpointManifest& manifest) {
  ASSIGN_OR_RETURN(const RandomAccessFile file,
                   OpenFile(absl::StrCat(dir, "/", kStart), kStartWeights));
  return CheckFile(manifest, kStartWeights, file, /*contents=*/true);
}

// ---- CheckpointReader ----

CheckpointReader::~CheckpointReader() {
  if (done) done();
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& dir, const CheckpointIdentity& identity,
    const FetchCheckpointRequest& request) {
  const std::string& what = request.what();
  if (what != "weights" && what != "optimizer" && what != "state" && what != kStart) {
    return absl::InvalidArgumentError(
        "fetch checkpoint: `what` must be weights, optimizer, state or start");
  }
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(request));
  if (what == kStart) {
    RETURN_IF_ERROR(reader->OpenStart(dir, identity));
    return reader;
  }
  absl::StatusOr<CheckpointManifest> manifest = CheckpointManifest::Read(dir);
  if (!manifest.ok()) return AsDamage(kManifest, manifest.status());
  RETURN_IF_ERROR(CheckIdentity(*manifest, identity));
  reader->manifest_ = *std::move(manifest);
  // A further replica's, where there is one; then those of replica 0, for what it has not.
  std::vector<int> replicas;
  if (what != "weights" && request.replica() > 0 && request.replica() < reader->manifest_.replicas)
    replicas.push_back(request.replica());
  if (what != "state" || replicas.empty()) replicas.push_back(0);
  const int stages = what == "state" ? 1 : reader->manifest_.stages;
  for (const int replica : replicas) {
    for (int s = 0; s < stages; ++s) {
      const std::string path =
          absl::StrCat(StageName(s), "/",
                       PartName(replica, what == "state" ? "state.json" : what + ".safetensors"));
      ASSIGN_OR_RETURN(RandomAccessFile file, OpenFile(dir, path));
      reader->order_.push_back(path);
      reader->files_.emplace(path, std::move(file));
    }
  }
  return reader;
}

absl::Status CheckpointReader::OpenStart(const std::string& dir,
                                         const CheckpointIdentity& identity) {
  ASSIGN_OR_RETURN(manifest_, ReadStartManifest(dir, identity));
  const std::string path = absl::StrCat(kStart, "/", kStartWeights);
  manifest_.files[path] = manifest_.files[kStartWeights];
  ASSIGN_OR_RETURN(RandomAccessFile file, OpenFile(dir, path));
  order_.push_back(path);
  files_.emplace(path, std::move(file));
  return absl::OkStatus();
}

absl::Status CheckpointReader::VerifyFile(const std::string& path) const {
  return CheckFile(manifest_, path, files_.at(path), /*contents=*/true);
}

absl::Status CheckpointReader::Verify(const std::function<bool()>& cancelled) {
  if (request_.what() == "state") {
    const auto& [path, file] = *files_.begin();
    RETURN_IF_ERROR(VerifyFile(path));
    pieces_.push_back({&file, 0, file.bytes()});
  } else {
    RETURN_IF_ERROR(Merge(cancelled));
  }
  total_ = static_cast<int64_t>(head_.size());
  for (const Piece& piece : pieces_) total_ += piece.bytes;
  return absl::OkStatus();
}

absl::Status CheckpointReader::Merge(const std::function<bool()>& cancelled) {
  const std::set<std::string> wanted(request_.tensors().begin(), request_.tensors().end());
  std::map<std::string, std::pair<SafetensorsPlace, const RandomAccessFile*>> found;
  std::set<std::string> unread;  // files that nothing is taken from
  for (const std::string& path : order_) {
    const RandomAccessFile& file = files_.at(path);
    if (cancelled && cancelled()) return absl::CancelledError("the caller has gone");
    auto places = ReadSafetensorsPlaces(file);
    bool needed = !places.ok();
    if (places.ok()) {
      for (auto& [name, place] : *places) {
        if (wanted.empty() ? IsOwnTensor(name) : wanted.count(name) == 0) continue;
        needed = found.emplace(name, std::make_pair(std::move(place), &file)).second || needed;
      }
    }
    if (needed) RETURN_IF_ERROR(VerifyFile(path));
    if (!needed) unread.insert(path);
    if (!places.ok()) return Annotate(places.status(), path);  // stored so
  }
  for (const std::string& name : wanted) {
    if (found.count(name) > 0 || IsOwnTensor(name)) continue;
    for (const std::string& path : unread) RETURN_IF_ERROR(VerifyFile(path));  // is it hidden?
    return absl::NotFoundError(absl::StrCat("checkpoint of step ", manifest_.step, ": no tensor '",
                                            name.substr(0, 200), "' among its ", request_.what()));
  }
  std::vector<SafetensorsSpec> specs;
  for (auto& [name, tensor] : found) {
    const auto& [place, file] = tensor;
    specs.push_back({name, place.dtype, place.shape});
    pieces_.push_back({file, place.at, place.bytes});
  }
  ASSIGN_OR_RETURN(head_, SafetensorsHead(specs, {{"format", "pt"}}));
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(size_t count, std::string* out) {
  out->clear();
  if (in_head_) {
    *out = head_.substr(static_cast<size_t>(at_), count);
    at_ += static_cast<int64_t>(out->size());
    in_head_ = at_ < static_cast<int64_t>(head_.size());
    if (!in_head_) at_ = 0;
  }
  while (out->size() < count && !in_head_ && piece_ < pieces_.size()) {
    const Piece& piece = pieces_[piece_];
    const size_t have = out->size();
    const auto more = static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(count - have), piece.bytes - at_));
    out->resize(have + more);
    RETURN_IF_ERROR(piece.file->ReadAt(piece.at + at_, more, &(*out)[have]));
    at_ += static_cast<int64_t>(more);
    if (at_ < piece.bytes) break;
    at_ = 0;
    ++piece_;
  }
  hasher_.Update(out->data(), out->size());
  return absl::OkStatus();
}

}  // namespace isthmus::coordinator
