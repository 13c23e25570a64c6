// The end of a round of subnetworks (proto/plan/deal.h), on one rank: weights of units go from who
// held them to who holds them next, straight, each once. Where the model is validated or stored the
// rank that gathers gets all of them, and has the whole model beside its slice until the next step.
// Whoever keeps a unit takes no codec's loss, but where the model comes together: there all weights
// are rounded as those are that travel, and a resume from the checkpoint has the same bits.
// Thread: the compute thread.
#ifndef ISTHMUS_WORKER_SYNC_SLICE_EXCHANGE_H_
#define ISTHMUS_WORKER_SYNC_SLICE_EXCHANGE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "worker/session_plan.h"
#include "worker/stage.h"
#include "worker/sync/group_reduction.h"

namespace isthmus::worker {

class SliceExchange {
 public:
  // Of plan.groups(group), which this rank is in. `plan` and `stage` outlive it. Internal: `stage`
  // is null, the stage trains no slice.
  static absl::StatusOr<std::unique_ptr<SliceExchange>> Make(const SessionPlan& plan, int group,
                                                             StageSlice* stage);

  // The actions of the same names, after `step`. `merged`: the whole model comes together.
  absl::Status Deal(int64_t step, bool merged, const GroupWires& wires);
  // False: what came is not finite.
  absl::StatusOr<bool> Merge(int64_t step, bool merged, const GroupWires& wires);

  // The whole model is not needed any more.
  void BeginStep();

 private:
  SliceExchange(const SessionPlan& plan, int group, StageSlice* stage);
  absl::Status Round(int64_t step);

  const SessionPlan& plan_;
  const int index_;
  const GroupPlan& group_;
  StageSlice* const stage_;
  std::unique_ptr<compress::Encoder> encoder_;
  std::unique_ptr<compress::Decoder> decoder_;
  bool together_ = false;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SYNC_SLICE_EXCHANGE_H_
