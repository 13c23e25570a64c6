// The reduction of an exchange of gradients (group_reduction.h) on a rank whose stage is on a GPU:
// its own contribution is encoded, the others' are decoded (by the inlets) and all are added up in
// the device's memory, so that only packed bytes cross the bus. The bits are those that a rank on a
// CPU has: each addition is one of fp32, in the order of the ranks. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_SYNC_DEVICE_REDUCTION_H_
#define ISTHMUS_WORKER_SYNC_DEVICE_REDUCTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "proto/plan/parts.h"
#include "worker/device_lane.h"
#include "worker/link/codec_state_store.h"
#include "worker/link/inlet.h"
#include "worker/link/outlet.h"
#include "worker/link/resumable_codec.h"
#include "worker/session_plan.h"
#include "worker/stage.h"

namespace isthmus::worker {

// Whether a group is one that a stage on a GPU reduces there.
bool ReducesOnDevice(const GroupPlan& group);

class DeviceReduction {
 public:
  // Of plan.groups(group), which ReducesOnDevice. Unimplemented: the device has no such codec.
  // `plan` and `states` outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceReduction>> Make(const SessionPlan& plan, int group,
                                                               std::shared_ptr<DeviceLane> lane,
                                                               CodecStateStore* states);

  // `frame` has everything but the tensor's shape and what is encoded.
  absl::StatusOr<Outbound> Offer(DeviceGradients* stage, int64_t step, Outbound frame);
  absl::Status Reduce(DeviceGradients* stage,
                      const std::function<absl::StatusOr<Inbound>(int peer)>& receive);

  ResumableCodec<compress::Encoder>* encoder() { return &encoder_; }

 private:
  DeviceReduction(const SessionPlan& plan, const GroupPlan& group, std::shared_ptr<DeviceLane> lane)
      : plan_(plan),
        group_(group),
        first_(FirstElement(plan.plan(), group)),
        lane_(std::move(lane)) {}

  const SessionPlan& plan_;
  const GroupPlan& group_;
  const int64_t first_;                     // element of the set
  const std::shared_ptr<DeviceLane> lane_;  // outlives the codecs
  ResumableCodec<compress::Encoder> encoder_;
  std::unique_ptr<compress::Decoder> decoder_;  // of its own contribution; null: it changes nothing
  Tensor own_;                                  // between Offer and Reduce
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SYNC_DEVICE_REDUCTION_H_
