// Indices board: at the lower end of a boundary whose backward codec is a `kept`, which elements
// each activation held, from the moment it is encoded until its gradient comes.
//
// The outlet puts them before the frame is sent, so they are there when the gradient arrives; the
// inlet takes them. One step's gradients all arrive before the next step begins: nothing is kept
// from step to step, and validation passes do not touch it. Bounded by the micro-batches that the
// schedule has under way at once. Thread: any.
#ifndef ISTHMUS_WORKER_INDICES_BOARD_H_
#define ISTHMUS_WORKER_INDICES_BOARD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

class IndicesBoard {
 public:
  // `limit`: most micro-batches at once.
  explicit IndicesBoard(size_t limit) : limit_(limit) {}

  // Most activations that the stage has sent before it receives their gradients.
  static size_t LimitOf(const SessionPlan& plan);

  // Fewer than `limit` are there, and none of this micro-batch.
  void Put(int64_t step, int32_t micro, absl::Span<const uint32_t> indices);
  // DataLoss: they were never put, or are taken already.
  absl::StatusOr<std::vector<uint32_t>> Take(int64_t step, int32_t micro);

  size_t size() const;

 private:
  const size_t limit_;
  mutable Mutex mutex_;
  std::map<std::pair<int64_t, int32_t>, std::vector<uint32_t>> indices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_INDICES_BOARD_H_
