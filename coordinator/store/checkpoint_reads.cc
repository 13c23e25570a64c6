// The half of CheckpointStore that looks at whole checkpoints: which there are, whether they are
// sound, and answers that are made of them.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {
namespace {

constexpr int kLookedAt = 4;  // of other checkpoints, when one is damaged

}  // namespace

CheckpointStore::Whole* CheckpointStore::Find(const std::string& job_id, int64_t step) {
  auto job = whole_.find(job_id);
  if (job == whole_.end()) return nullptr;
  auto it = job->second.find(step);
  return it == job->second.end() ? nullptr : &it->second;
}

CheckpointIdentity CheckpointStore::Identity(const std::string& job_id, int64_t step) const {
  const auto job = whole_.find(job_id);
  CheckpointIdentity identity{job_id, step, {}};
  if (job != whole_.end() && job->second.count(step) > 0)
    identity.generation = job->second.at(step).generation;
  return identity;
}

bool CheckpointStore::Has(const std::string& job_id, int64_t step, const LocalPart& part) {
  MutexLock lock(&mutex_);
  const Whole* whole = Find(job_id, step);
  if (whole == nullptr || whole->generation != part.generation()) return false;
  const auto manifest = CheckpointManifest::Read(StepDir(job_id, step));
  if (!manifest.ok() || manifest->stages != part.stages()) return false;
  if (!CheckIdentity(*manifest, Identity(job_id, step)).ok()) return false;
  const auto file = manifest->files.find(
      absl::StrCat(StageName(part.stage()), "/", PartName(part.replica(), part.file())));
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

std::string CheckpointStore::DamageOf(const std::string& job_id, int64_t step) {
  MutexLock lock(&mutex_);
  const Whole* whole = Find(job_id, step);
  if (whole == nullptr || whole->damage.empty()) return "";
  return absl::StrCat(whole->damage, " (in ", StepDir(job_id, step), ")");
}

void CheckpointStore::SetDamage(const std::string& job_id, int64_t step, absl::string_view damage) {
  MutexLock lock(&mutex_);
  Whole* whole = Find(job_id, step);
  if (whole != nullptr) whole->damage = std::string(damage);
}

absl::Status CheckpointStore::Check(const std::string& job_id, int64_t step, bool contents,
                                    const Cancelled& cancelled) {
  CheckpointIdentity identity;
  absl::Status status;
  for (bool replaced = true; replaced;) {  // by another generation's, while its files were read
    {
      MutexLock lock(&mutex_);
      identity = Identity(job_id, step);
    }
    status = CheckCheckpoint(StepDir(job_id, step), identity, contents, cancelled);
    MutexLock lock(&mutex_);
    replaced = absl::IsFailedPrecondition(status) &&
               Identity(job_id, step).generation != identity.generation;
  }
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
    const std::string of_start = verify && status.ok() ? DamageOfStart(job_id, step) : "";
    MutexLock lock(&mutex_);
    const Whole* whole = Find(job_id, step);
    if (whole == nullptr) continue;  // retention removed it meanwhile
    CheckpointInfo& info = list.emplace_back();
    info.set_step(step);
    info.set_bytes(whole->bytes);
    info.set_damage(!status.ok()             ? std::string(status.message())
                    : !whole->damage.empty() ? whole->damage
                                             : of_start);
    info.set_left_behind(std::any_of(later.begin(), later.end(), [&](const Run& r) {
      return r.generation > whole->generation && r.start_step < step;
    }));
    if (!whole->misplaced) later.push_back({whole->generation, step});
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
    reader = CheckpointReader::Open(StepDir(job_id, *step), Identity(job_id, *step), request);
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
  if (request.what() == kStart) {  // made of the checkpoint, and made anew where it is damaged
    RETURN_IF_ERROR(sound);
    return reader;
  }
  if (!sound.ok()) return Damaged(job_id, *step, sound, cancelled);
  return reader;
}

}  // namespace isthmus::coordinator
