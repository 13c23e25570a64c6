// Codec states in memory, as a daemon keeps them in files; one for all ranks of a world. Thread:
// any.
#ifndef ISTHMUS_TESTS_WORKER_LINK_MEMORY_STATES_H_
#define ISTHMUS_TESTS_WORKER_LINK_MEMORY_STATES_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "worker/link/codec_state_store.h"

namespace isthmus::worker {

class MemoryStates : public CodecStateStore {
 public:
  void Begin(const std::string& job_id, int64_t step) override;
  absl::StatusOr<std::unique_ptr<Writer>> Create(const CodecStateKey& key) override;
  absl::StatusOr<std::unique_ptr<compress::StateSource>> Open(const CodecStateKey& key) override;

  // "b0-lower-up@10", sorted.
  std::vector<std::string> names() const;
  // States whose name has `part` are gone.
  void Lose(const std::string& part);
  // Flips a bit in the middle of those.
  void Damage(const std::string& part);
  void set_disk_bytes(int64_t bytes);  // of each state; more: the disk is full
  // Called before each Commit.
  void set_on_commit(std::function<void(const CodecStateKey& key)> hook);

 private:
  friend class MemoryStateWriter;
  using Place = std::pair<std::string, std::string>;  // job, name
  void Commit(const CodecStateKey& key, std::string bytes);

  mutable Mutex mutex_;
  std::map<Place, std::map<int64_t, std::string>> states_ ABSL_GUARDED_BY(mutex_);
  int64_t disk_bytes_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  std::function<void(const CodecStateKey& key)> on_commit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_LINK_MEMORY_STATES_H_
