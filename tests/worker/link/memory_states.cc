#include "tests/worker/link/memory_states.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file/file_name.h"
#include "tests/compress/string_state.h"

namespace isthmus::worker {

class MemoryStateWriter : public CodecStateStore::Writer {
 public:
  MemoryStateWriter(MemoryStates* states, CodecStateKey key, int64_t disk_bytes)
      : states_(states), key_(std::move(key)) {
    sink_.limit = static_cast<size_t>(disk_bytes);
  }
  absl::Status Append(absl::string_view bytes) override { return sink_.Append(bytes); }
  absl::Status Commit() override {
    states_->Commit(key_, std::move(sink_.text));
    return absl::OkStatus();
  }

 private:
  MemoryStates* const states_;
  const CodecStateKey key_;
  compress::StringSink sink_;
};

void MemoryStates::Begin(const std::string& job_id, int64_t step) {
  MutexLock lock(&mutex_);
  for (auto& [place, steps] : states_) {
    if (place.first == job_id) steps.erase(steps.upper_bound(step), steps.end());
  }
}

absl::StatusOr<std::unique_ptr<CodecStateStore::Writer>> MemoryStates::Create(
    const CodecStateKey& key) {
  if (!IsFileName(key.name))
    return absl::InvalidArgumentError(absl::StrCat("no name for a file: ", key.name));
  MutexLock lock(&mutex_);
  states_[{key.job_id, key.name}].erase(key.step);
  return std::make_unique<MemoryStateWriter>(this, key, disk_bytes_);
}

void MemoryStates::Commit(const CodecStateKey& key, std::string bytes) {
  std::function<void(const CodecStateKey&)> hook;
  {
    MutexLock lock(&mutex_);
    hook = on_commit_;
  }
  if (hook) hook(key);
  MutexLock lock(&mutex_);
  std::map<int64_t, std::string>& steps = states_[{key.job_id, key.name}];
  steps[key.step] = std::move(bytes);
  while (steps.size() > 2) steps.erase(steps.begin());
}

absl::StatusOr<std::unique_ptr<compress::StateSource>> MemoryStates::Open(
    const CodecStateKey& key) {
  MutexLock lock(&mutex_);
  const auto found = states_.find({key.job_id, key.name});
  if (found == states_.end() || found->second.count(key.step) == 0)
    return absl::NotFoundError("none is kept");
  return std::make_unique<compress::StringSource>(found->second[key.step]);
}

std::vector<std::string> MemoryStates::names() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [place, steps] : states_) {
    for (const auto& [step, bytes] : steps) names.push_back(absl::StrCat(place.second, "@", step));
  }
  return names;
}

void MemoryStates::Lose(const std::string& part) {
  MutexLock lock(&mutex_);
  for (auto& [place, steps] : states_) {
    if (absl::StrContains(place.second, part)) steps.clear();
  }
}

void MemoryStates::Damage(const std::string& part) {
  MutexLock lock(&mutex_);
  for (auto& [place, steps] : states_) {
    if (!absl::StrContains(place.second, part)) continue;
    for (auto& [step, bytes] : steps) bytes[bytes.size() / 2] ^= 4;
  }
}

void MemoryStates::set_disk_bytes(int64_t bytes) {
  MutexLock lock(&mutex_);
  disk_bytes_ = bytes;
}

void MemoryStates::set_on_commit(std::function<void(const CodecStateKey&)> hook) {
  MutexLock lock(&mutex_);
  on_commit_ = std::move(hook);
}

}  // namespace isthmus::worker
