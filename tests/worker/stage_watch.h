// Stages that write down what crosses their edges, around any stage: what was sent up and came down
// at each boundary, step and micro-batch. Thread: any.
#ifndef ISTHMUS_TESTS_WORKER_STAGE_WATCH_H_
#define ISTHMUS_TESTS_WORKER_STAGE_WATCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "worker/session.h"

namespace isthmus::worker {

class StageWatch {
 public:
  // One micro-batch at one boundary, in training.
  struct Passage {
    Tensor activation_below;   // as the stage below makes it
    Tensor activation;         // of that, as the stage above has it, decoded
    Tensor gradient_above;     // of that, as the stage above makes it
    Tensor gradient_received;  // as the stage below has it, decoded
  };
  using Key = std::tuple<int, int64_t, int32_t>;  // lower stage, step, micro

  // Stages of `inner` that report to this watch, which outlives them.
  StageFactory Around(StageFactory inner);

  const std::map<Key, Passage>& passages() const { return passages_; }  // after the session
  // Before the session: the weights of each rank after its last step.
  void KeepWeights() { keeps_weights_ = true; }
  const std::map<int, std::vector<float>>& weights() const { return weights_; }

 private:
  class Watched;
  Mutex mutex_;
  std::map<Key, Passage> passages_;
  bool keeps_weights_ = false;
  std::map<int, std::vector<float>> weights_;  // by rank
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_STAGE_WATCH_H_
