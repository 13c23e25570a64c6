// The reduction of one group at the end of a step: gradients that several ranks hold a part of add
// up, and all ranks of the group then hold the same bits, whatever the codec: each takes what was
// decoded, of its own contribution too.
//
//   EXCHANGE  everyone sends all of its own to everyone; each adds up in the order of the ranks
//   SHARDED   each rank owns some rows: it gets the others' contributions to them, adds them up in
//             the order of the ranks and sends the sum back (reduce-scatter, then all-gather)
// Of differences (proto/plan/groups.h, local steps; DiLoCo, arXiv 2311.08105): each contribution is
// what the weights changed since the replicas last agreed, times its replica's share of the batch;
// the sum waits for Settle, which makes the outer step.
// Of momentum (recipe.optimizer quantized_adam): gradients as fp32 in the warm-up; then each rank's
// part of the first moment by the group's codecs (AC-SGD, arXiv 2206.01299).
// Contributions are decoded by the inlets. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_SYNC_GROUP_REDUCTION_H_
#define ISTHMUS_WORKER_SYNC_GROUP_REDUCTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "worker/device_lane.h"
#include "worker/link/inlet.h"
#include "worker/link/outlet.h"
#include "worker/link/resumable_codec.h"
#include "worker/session_plan.h"
#include "worker/stage.h"
#include "worker/sync/device_reduction.h"

namespace isthmus::worker {

// How a reduction reaches the other ranks of its group.
struct GroupWires {
  // Of `frame` everything but kind, group and what is encoded is there already.
  std::function<Outbound()> new_frame;
  std::function<absl::Status(int peer, Outbound frame)> send;
  // The next frame of this kind from `peer`, decoded.
  std::function<absl::StatusOr<Inbound>(int peer, FrameHeader::Kind kind)> receive;
};

class GroupReduction {
 public:
  // Of plan.groups(group), which this rank is in. `states`: where the encoders' states go with
  // checkpoints; null: nowhere. `plan` and `states` outlive it.
  // `lane`: of a stage on a GPU, where it can work there (device_reduction.h).
  static absl::StatusOr<std::unique_ptr<GroupReduction>> Make(
      const SessionPlan& plan, int group, CodecStateStore* states = nullptr,
      std::shared_ptr<DeviceLane> lane = nullptr);

  // Takes up the encoders' states of plan.start_step; what became of them, in words. Empty: they
  // keep none. A contribution carries no state that its decoder must have: no peer is asked.
  absl::StatusOr<std::string> LoadStates();
  void SaveStates(int64_t step);

  // The actions of the same names. Internal: the stage's tensors are not those of the plan.
  absl::Status Offer(Stage* stage, int64_t step, const GroupWires& wires);
  absl::Status Reduce(Stage* stage, int64_t step, const GroupWires& wires);
  absl::Status Collect(Stage* stage, const GroupWires& wires);

  // Of differences. `finite`: the sum was, on this rank. Settle applies it, and leaves the share
  // `mix` of what the weights are, or takes them back to those last agreed on.
  bool finite() const { return finite_; }
  absl::Status Settle(bool commit, double mix, Stage* stage);

 private:
  // One thing that is encoded, and decoded again here where a rank takes its own.
  struct Channel {
    ResumableCodec<compress::Encoder> encoder;
    std::unique_ptr<compress::Decoder> decoder;  // null: decoding changes nothing, or is not needed
  };

  struct Channels {
    std::vector<Channel> contributions;  // EXCHANGE: one. SHARDED: of each position, but its own
    Channel sum;                         // SHARDED
  };

  GroupReduction(const SessionPlan& plan, int group);
  absl::Status FindElements(const Stage& stage);
  bool sharded() const { return group_.rule() == GroupPlan::SHARDED; }
  bool differences() const { return group_.value() == GroupPlan::DIFFERENCE; }
  absl::Status Read(Stage* stage, int64_t step);
  absl::StatusOr<Channel> MakeChannel(const CodecSpec& codec, FrameHeader::Kind kind, int part,
                                      CodecStateStore* states);
  // Of what this rank sends, by these codecs.
  absl::StatusOr<Channels> MakeChannels(const CodecSpec& contribution, const CodecSpec& sum,
                                        CodecStateStore* states);
  Channels& ChannelsOf(int64_t step) {
    return GoesExact(plan_.plan(), group_, step) ? exact_ : coded_;
  }
  absl::StatusOr<Outbound> Encode(Channel* channel, FrameHeader::Kind kind, int64_t step,
                                  float* data, int64_t rows, const GroupWires& wires);
  Outbound NewFrame(FrameHeader::Kind kind, const GroupWires& wires) const;
  absl::Status SendToAll(Outbound frame, const GroupWires& wires);
  absl::Status Write(Stage* stage, int64_t first_row, const std::vector<float>& values);

  const SessionPlan& plan_;
  const int index_;
  const GroupPlan& group_;
  const int position_;
  std::unique_ptr<DeviceReduction> device_;  // null: the host's
  std::vector<Rows> pieces_;   // elements of the stage's set that are the group's, ascending
  Channels coded_, exact_;     // exact: of steps in which nothing is coded (GoesExact)
  int64_t elements_ = 0;       // that the stage has of it
  std::vector<float> mine_;    // between Offer and Reduce
  std::vector<float> agreed_;  // differences: between Reduce and Settle
  bool finite_ = true;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SYNC_GROUP_REDUCTION_H_
