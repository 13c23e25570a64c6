// Ranks of a group hold the same weights: replicas of a stage all of theirs, the two ends of a tied
// embedding that. Each contribution shows a hash of them, and ranks whose hashes differ are refused
// in words, before anything of that reduction is applied. Without that, replicas that began with
// other weights, or one whose memory lost a bit, would train on in silence.
//
// When. Hashes are taken where nothing is under way and the weights must be equal: as the session
// begins; then, on a CPU, every kEvery steps; with compression.check_buffers each time. Where steps
// overlap that is after drained ones, with local steps after an agreement on all weights.
// Subnetworks hold other weights by design and show none. A peer that shows none (an older daemon)
// is taken as it is.
//
// Cost: one pass over the weights, as fp32 and in pieces: 0.06 to 0.08 s for 100 million of them on
// one core, where an AdamW step of the same takes 0.44 s. Every hundredth step that is far below
// 1 % of a step. On a GPU the weights would cross to the host first: there they are hashed as the
// session begins.
// Thread: the compute thread.
#ifndef ISTHMUS_WORKER_SYNC_EQUAL_WEIGHTS_H_
#define ISTHMUS_WORKER_SYNC_EQUAL_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/session_plan.h"
#include "worker/stage.h"

namespace isthmus::worker {

class EqualWeights {
 public:
  static constexpr int64_t kEvery = 100;  // steps, on a CPU

  // `plan` outlives it. `on_device`: the stage's weights lie on a GPU.
  EqualWeights(const SessionPlan& plan, bool on_device);

  // Before the passes of `step`, while nothing is under way and the weights of `stage` are those
  // that all must hold. All ranks of the plan call it at the same steps.
  absl::Status Take(int64_t step, Stage* stage);

  // What contributions of this group show; 0: nothing.
  uint64_t hash(int group) const;
  // What a contribution of `rank` showed.
  void Heard(int group, int rank, uint64_t hash);
  // Once all were heard. FailedPrecondition: not all are this rank's; it names the rank whose
  // weights fewest others hold, one that holds others, the steps and what to do.
  absl::Status Compare(int group);

 private:
  struct Shown {
    int rank = 0;
    uint64_t hash = 0;
  };
  absl::Status Differ(int group, const Shown& odd, const Shown& usual) const;

  const SessionPlan& plan_;
  const bool on_device_;
  bool shows_ = false;  // a group of this rank compares
  int64_t taken_ = -1;  // before this step; -1: never
  uint64_t own_ = 0, tied_ = 0;
  std::map<int, std::vector<Shown>> heard_;  // by group
  std::map<int, int64_t> equal_at_;          // by group: `taken_` of the last comparison that held
};

// XXH3-64 of weights of the stage as fp32, never 0. OWN: all that it holds; TIED: its copy of the
// embedding.
absl::StatusOr<uint64_t> HashWeights(GroupPlan::Tensors set, bool embeds, Stage* stage);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SYNC_EQUAL_WEIGHTS_H_
