// Links in memory between ranks that are threads of one process: for tests, benches and the study.
//
// A hub joins the two ends of each LinkPlan. Windows are bounded as on a network: a sender blocks
// while `window_bytes` are under way. A shaped link has a rate and a delay in real time (benches);
// otherwise a frame arrives at once. Thread: the hub from any; a link as link.h says. The hub
// outlives its links.
#ifndef ISTHMUS_WORKER_LINK_MEMORY_LINK_H_
#define ISTHMUS_WORKER_LINK_MEMORY_LINK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "worker/link/link.h"

namespace isthmus::worker {

struct MemoryLinkOptions {
  int64_t window_bytes = 0;    // of each direction; 0: the plan's, or 4 MiB where it has none
  double rate_bits_per_s = 0;  // of each direction; 0: unlimited
  absl::Duration delay;        // one way
};

class MemoryLinkHub : public LinkOpener {
 public:
  explicit MemoryLinkHub(MemoryLinkOptions options = {}) : options_(options) {}

  // Waits for the other end. Unavailable after `timeout`; FailedPrecondition: the other end is at
  // another generation.
  absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link, int my_rank,
                                             absl::Duration timeout) override;

 private:
  struct Waiter {  // the end that came first; it lives on the stack of its Open
    uint64_t generation = 0;
    int rank = 0;
    std::shared_ptr<class MemoryChannel> channel;  // both ends truly end its life
    bool joined = false;
    uint64_t newer_generation = 0;
  };

  const MemoryLinkOptions options_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<std::string, std::string>, Waiter*> waiting_
      ABSL_GUARDED_BY(mutex_);  // by job and link
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_MEMORY_LINK_H_
