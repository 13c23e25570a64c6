// The newest generation that this daemon has accepted of each job: an older plan that comes late
// starts nothing. Remembers the kMaxJobs jobs seen last; a refused plan of an unknown job is not
// remembered. Thread: one owner.
#ifndef ISTHMUS_DAEMON_GENERATION_FENCE_H_
#define ISTHMUS_DAEMON_GENERATION_FENCE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace isthmus::daemon {

class GenerationFence {
 public:
  static constexpr size_t kMaxJobs = 64;

  // 0: none is known. To ask is to see the job.
  uint64_t Newest(const std::string& job) {
    const auto it =
        std::find_if(seen_.begin(), seen_.end(), [&](const auto& s) { return s.first == job; });
    if (it == seen_.end()) return 0;
    std::rotate(seen_.begin(), it, it + 1);
    return seen_.front().second;
  }

  void Accept(const std::string& job, uint64_t generation) {
    if (Newest(job) == 0) seen_.emplace_front(job, 0);
    seen_.front().second = generation;
    if (seen_.size() > kMaxJobs) seen_.pop_back();
  }

 private:
  std::deque<std::pair<std::string, uint64_t>> seen_;  // the one seen last in front
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_GENERATION_FENCE_H_
