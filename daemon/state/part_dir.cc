#include "daemon/state/part_dir.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file/durable_file.h"
#include "base/file/file_name.h"
#include "base/file/random_access_file.h"
#include "base/file/tree.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr char kUnfinished[] = ".tmp";
constexpr char kLocal[] = "local";  // empty files that say so of the directory that they are in
constexpr char kCopy[] = "copy";
constexpr const char* kFiles[] = {"weights.safetensors", "optimizer.safetensors", "state.json"};

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  return names;
}

void RemoveAll(const std::string& path) {
  if (const absl::Status removed = RemoveTree(path); !removed.ok()) LogWarning(removed.message());
}

// What a process that was killed was writing. A link somewhere else is not looked into.
void RemoveUnfinished(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(directory, error))) return;
  for (const std::string& name : NamesIn(directory)) {
    if (absl::EndsWith(name, kUnfinished)) RemoveAll(absl::StrCat(directory, "/", name));
  }
}

// One checkpoint's parts of a job.
struct Kept {
  std::string name;  // of its directory
  int64_t step = 0;
  uint64_t generation = 0;
  int stage = 0;
  int stages = 0;
  int replica = 0;
};

std::string DirectoryName(int64_t step, uint64_t generation, int stage, int stages, int replica) {
  return absl::StrCat(absl::StrFormat("%d-g%d-s%dof%d", step, generation, stage, stages),
                      replica == 0 ? "" : absl::StrCat("-r", replica));
}

std::string FileName(const std::string& file, int64_t bytes, uint64_t checksum) {
  return absl::StrFormat("%s.%d.%016x", file, bytes, checksum);
}

// Oldest first.
std::vector<Kept> KeptIn(const std::string& job_dir) {
  std::vector<Kept> all;
  for (const std::string& name : NamesIn(job_dir)) {
    Kept k{name};
    long step = 0;
    unsigned long generation = 0;
    if (std::sscanf(name.c_str(), "%ld-g%lu-s%dof%d-r%d", &step, &generation, &k.stage, &k.stages,
                    &k.replica) < 4)
      continue;
    k.step = step;
    k.generation = generation;
    if (name == DirectoryName(k.step, k.generation, k.stage, k.stages, k.replica))
      all.push_back(std::move(k));
  }
  std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) {
    return std::tie(a.step, a.generation, a.name) < std::tie(b.step, b.generation, b.name);
  });
  return all;
}

// Of a name that FileName made; what is being written, or was when its process was killed, has
// another one.
bool ParseFileName(const std::string& name, LocalPart* part) {
  const size_t dot = name.rfind('.');
  const size_t before = dot == std::string::npos || dot == 0 ? dot : name.rfind('.', dot - 1);
  if (before == std::string::npos || before == 0) return false;
  uint64_t checksum = 0;
  int64_t bytes = 0;
  if (!absl::SimpleHexAtoi(name.substr(dot + 1), &checksum) ||
      !absl::SimpleAtoi(name.substr(before + 1, dot - before - 1), &bytes)) {
    return false;
  }
  part->set_file(name.substr(0, before));
  part->set_bytes(bytes);
  part->set_checksum(checksum);
  return name == FileName(part->file(), bytes, checksum);
}

bool HasMark(const std::string& directory, const char* mark) {
  std::error_code error;
  return fs::exists(absl::StrCat(directory, "/", mark), error);
}

void Mark(const std::string& directory, const char* mark) {
  std::ofstream(absl::StrCat(directory, "/", mark), std::ios::app).flush();
}

// Every file of its checkpoint is there.
bool IsWhole(const std::string& directory, int replica) {
  std::set<std::string> files;
  for (const std::string& name : NamesIn(directory)) {
    LocalPart file;
    if (ParseFileName(name, &file) && IsCheckpointFile(file.file())) files.insert(file.file());
  }
  return static_cast<int>(files.size()) >= CheckpointFiles(replica);
}

// Oldest first: by the time when something was last put into them.
std::vector<std::string> JobsIn(const std::string& root, const std::string& except) {
  std::vector<std::pair<fs::file_time_type, std::string>> jobs;
  for (const std::string& name : NamesIn(root)) {
    std::error_code error;
    const std::string path = absl::StrCat(root, "/", name);
    if (name != except && fs::is_directory(fs::symlink_status(path, error)))
      jobs.emplace_back(fs::last_write_time(path, error), name);
  }
  std::sort(jobs.begin(), jobs.end());
  std::vector<std::string> names;
  for (auto& [when, name] : jobs) names.push_back(std::move(name));
  return names;
}

}  // namespace

bool IsCheckpointFile(const std::string& file) {
  return std::find(std::begin(kFiles), std::end(kFiles), file) != std::end(kFiles);
}

PartDir::PartDir(std::string root, Options options)
    : root_(std::move(root)), options_(std::move(options)) {
  MutexLock lock(&mutex_);
  for (const std::string& job_id : JobsIn(root_, "")) {
    const std::string job_dir = absl::StrCat(root_, "/", job_id);
    for (const Kept& kept : KeptIn(job_dir))
      RemoveUnfinished(absl::StrCat(job_dir, "/", kept.name));
  }
  Look();
}

void PartDir::Look() const {
  KeptParts all;
  decltype(disowned_) still;
  for (const std::string& job_id : JobsIn(root_, "")) {
    const std::string job_dir = absl::StrCat(root_, "/", job_id);
    for (const Kept& kept : KeptIn(job_dir)) {
      const Key key(job_id, kept.step, kept.generation, kept.stage, kept.replica);
      if (disowned_.count(key) > 0) still.insert(key);
      if (disowned_.count(key) > 0 || !IsWhole(absl::StrCat(job_dir, "/", kept.name), kept.replica))
        continue;
      KeptPart& part = *all.add_parts();
      part.set_job_id(job_id);
      part.set_step(kept.step);
      part.set_generation(kept.generation);
      part.set_stage(kept.stage);
      part.set_stages(kept.stages);
      part.set_replica(kept.replica);
    }
  }
  disowned_ = std::move(still);
  MutexLock lock(&kept_mutex_);
  kept_ = std::move(all);
}

KeptParts PartDir::Whole() const {
  MutexLock lock(&kept_mutex_);
  return kept_;
}

void PartDir::Disown(const KeptPart& part) {
  MutexLock lock(&mutex_);
  disowned_.emplace(part.job_id(), part.step(), part.generation(), part.stage(), part.replica());
  Look();
}

void PartDir::Remove(const std::string& job_id) {
  if (!IsFileName(job_id)) return;
  MutexLock lock(&mutex_);
  RemoveAll(absl::StrCat(root_, "/", job_id));
  Look();
}

void PartDir::Begin(const std::string& job_id, int64_t step) {
  if (!IsFileName(job_id)) return;
  MutexLock lock(&mutex_);
  const std::string job_dir = absl::StrCat(root_, "/", job_id);
  for (const Kept& kept : KeptIn(job_dir)) {
    if (kept.step > step) RemoveAll(absl::StrCat(job_dir, "/", kept.name));
  }
  const std::vector<std::string> others = JobsIn(root_, job_id);
  for (size_t i = 0; i + kKeptJobs <= others.size(); ++i)
    RemoveAll(absl::StrCat(root_, "/", others[i]));
  Look();
}

// Beside what is written: what goes in any case, and then what goes where there is no room else.
PartDir::Going PartDir::WhatGoes(const PutCheckpointHeader& header,
                                 const std::string& part_dir) const {
  const std::string job_dir = absl::StrCat(root_, "/", header.job_id());
  Going going;
  // A local checkpoint is worth no other job's parts, and no stored one's.
  for (const std::string& other : JobsIn(root_, header.job_id())) {
    if (!header.local()) going.dispensable.push_back(absl::StrCat(root_, "/", other));
  }
  std::vector<Kept> mine = KeptIn(job_dir);
  std::reverse(mine.begin(), mine.end());  // the newest first
  std::vector<std::string> older;
  size_t whole = 0;
  for (const Kept& k : mine) {
    const std::string path = absl::StrCat(job_dir, "/", k.name);
    // Other parts of this generation have as many steps of their own, and so has the other kind.
    const bool apart = k.generation == header.generation() &&
                       (k.stage != header.stage() || k.replica != header.replica());
    if (k.name == part_dir) continue;
    if (apart || HasMark(path, kLocal) != header.local()) {
      if (!header.local()) older.push_back(path);
      continue;
    }
    // A local one that broke off never becomes whole.
    const bool counts = !header.local() || IsWhole(path, k.replica);
    if (whole + 1 >= kKeptSteps || !counts) {
      going.old.push_back(path);
    } else if (!header.local()) {
      older.push_back(path);
    }
    whole += counts;
  }
  going.dispensable.insert(going.dispensable.end(), older.rbegin(), older.rend());
  return going;
}

// Nothing goes where it would not do.
absl::Status PartDir::MakeRoom(const PutCheckpointHeader& header, const std::string& part_dir,
                               int64_t bytes) {
  int64_t beside = 0;
  for (const std::string& neighbour : options_.neighbours) beside += TreeBytes(neighbour);
  const Going going = WhatGoes(header, part_dir);
  int64_t left = std::min(FreeBytes(root_) - options_.free_bytes,
                          options_.max_bytes > 0 ? options_.max_bytes - beside - TreeBytes(root_)
                                                 : std::numeric_limits<int64_t>::max());
  const auto add = [&left](const std::string& path) {
    const int64_t more = TreeBytes(path);
    left = left > std::numeric_limits<int64_t>::max() - more ? left : left + more;
  };
  for (const std::string& path : going.old) add(path);
  size_t needed = 0;
  for (; bytes > left && needed < going.dispensable.size(); ++needed)
    add(going.dispensable[needed]);
  if (bytes > left)
    return absl::ResourceExhaustedError(
        absl::StrCat("there is room for ", std::max<int64_t>(0, left), " of ", bytes,
                     " bytes, beside what stays free on that disk"));
  for (const std::string& path : going.old) RemoveAll(path);
  for (size_t i = 0; i < needed; ++i) RemoveAll(going.dispensable[i]);
  return absl::OkStatus();
}

absl::StatusOr<worker::KeptFile> PartDir::Keep(const PutCheckpointHeader& header,
                                               const ByteSource& part) {
  if (!IsFileName(header.job_id()) || !IsFileName(header.file()) || header.step() < 0 ||
      header.stage() < 0 || header.replica() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", header.job_id().substr(0, kMaxFileNameBytes), "' is not a name for a directory"));
  }
  absl::StatusOr<worker::KeptFile> kept = Write(header, part);
  MutexLock lock(&mutex_);
  if (kept.ok())
    disowned_.erase(
        Key(header.job_id(), header.step(), header.generation(), header.stage(), header.replica()));
  Look();  // others may have made room, too
  return kept;
}

// Not under the lock: it takes as long as the disk does.
absl::StatusOr<worker::KeptFile> PartDir::Write(const PutCheckpointHeader& header,
                                                const ByteSource& part) {
  const std::string part_dir = DirectoryName(header.step(), header.generation(), header.stage(),
                                             header.stages(), header.replica());
  const std::string job_dir = absl::StrCat(root_, "/", header.job_id());
  const std::string directory = absl::StrCat(job_dir, "/", part_dir);
  std::error_code error;
  {
    MutexLock lock(&mutex_);
    fs::create_directories(directory, error);
    if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
    if (header.local()) Mark(directory, kLocal);
    if (!header.to_node_id().empty()) Mark(directory, kCopy);
    RETURN_IF_ERROR(MakeRoom(header, part_dir, part.bytes()));
  }
  ASSIGN_OR_RETURN(const auto file,
                   DurableFile::Create(absl::StrCat(directory, "/", header.file()), kUnfinished));
  Hasher hasher;
  RETURN_IF_ERROR(ForEachPiece(part, kPieceBytes, [&](absl::string_view piece) {
    hasher.Update(piece.data(), piece.size());
    return file->Append(piece);
  }));
  if (header.checksum() != 0 && header.checksum() != hasher.Digest()) {
    return absl::DataLossError(absl::StrCat(header.file(), " of checkpoint ", header.step(),
                                            " arrived with another checksum"));
  }
  const std::string path =
      absl::StrCat(directory, "/", FileName(header.file(), file->bytes(), hasher.Digest()));
  RETURN_IF_ERROR(header.local() ? file->CommitUnsyncedAs(path) : file->CommitAs(path));
  fs::last_write_time(job_dir, fs::file_time_type::clock::now(), error);  // see JobsIn
  ASSIGN_OR_RETURN(RandomAccessFile kept, RandomAccessFile::Open(path));
  return worker::KeptFile{hasher.Digest(), std::make_unique<RandomAccessFile>(std::move(kept))};
}

std::vector<LocalPart> PartDir::Parts(const std::string& job_id, int64_t step) const {
  std::vector<LocalPart> parts;
  if (!IsFileName(job_id)) return parts;
  MutexLock lock(&mutex_);
  const std::string job_dir = absl::StrCat(root_, "/", job_id);
  const std::vector<Kept> all = KeptIn(job_dir);
  uint64_t newest = 0;
  for (const Kept& kept : all) {
    if (kept.step == step) newest = std::max(newest, kept.generation);
  }
  for (const bool copies : {false, true}) {  // its own before those of others
    for (const Kept& kept : all) {
      const std::string directory = absl::StrCat(job_dir, "/", kept.name);
      if (kept.step != step || kept.generation != newest || HasMark(directory, kCopy) != copies)
        continue;
      LocalPart of;
      of.set_generation(kept.generation);
      of.set_stage(kept.stage);
      of.set_stages(kept.stages);
      of.set_replica(kept.replica);
      AddParts(directory, of, &parts);
    }
  }
  return parts;
}

void PartDir::AddParts(const std::string& directory, const LocalPart& of,
                       std::vector<LocalPart>* parts) const {
  for (const std::string& name : NamesIn(directory)) {
    LocalPart part = of;
    if (!ParseFileName(name, &part)) continue;
    // One of another size is damaged; it is not read, however large it is.
    std::error_code gone;
    const std::string path = absl::StrCat(directory, "/", name);
    const uintmax_t size = fs::file_size(path, gone);
    if (gone || size != static_cast<uintmax_t>(part.bytes())) {
      LogWarning(path, " has not the ", part.bytes(), " bytes of its name: it is removed");
      RemoveAll(path);
      Look();
      continue;
    }
    parts->push_back(std::move(part));
  }
}

absl::StatusOr<std::unique_ptr<ByteSource>> PartDir::Open(const std::string& job_id, int64_t step,
                                                          const LocalPart& part) const {
  if (!IsFileName(job_id) || !IsFileName(part.file()))
    return absl::InvalidArgumentError("not a name for a file");
  const std::string path = absl::StrCat(
      root_, "/", job_id, "/",
      DirectoryName(step, part.generation(), part.stage(), part.stages(), part.replica()), "/",
      FileName(part.file(), part.bytes(), part.checksum()));
  // Not mapped: a failing disk is an error, no signal.
  absl::StatusOr<RandomAccessFile> file = RandomAccessFile::Open(path);
  if (!file.ok())
    return absl::NotFoundError(absl::StrCat(path, " can't be opened: ", file.status().message()));
  const absl::StatusOr<uint64_t> found = file->Hash();
  if (found.ok() && file->bytes() == part.bytes() && *found == part.checksum())
    return std::make_unique<RandomAccessFile>(*std::move(file));
  MutexLock lock(&mutex_);
  RemoveAll(path);
  Look();
  return absl::DataLossError(absl::StrCat(
      path, " is damaged: ", found.ok() ? "" : found.status().message(),
      found.ok() ? absl::StrCat("its ", file->bytes(), " bytes have another checksum") : ""));
}

}  // namespace isthmus::daemon
