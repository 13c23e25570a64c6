#include "worker/sync/device_reduction.h"

#include <utility>

#include "base/huge_pages.h"
#include "base/status.h"
#include "proto/codec/codec_size.h"
#include "worker/link/codec_options.h"

namespace isthmus::worker {

bool ReducesOnDevice(const GroupPlan& group) {
  return group.rule() == GroupPlan::EXCHANGE && group.value() == GroupPlan::GRADIENT &&
         group.shapes().empty();
}

absl::StatusOr<std::unique_ptr<DeviceReduction>> DeviceReduction::Make(
    const SessionPlan& plan, int group, std::shared_ptr<DeviceLane> lane, CodecStateStore* states) {
  const GroupPlan& g = plan.plan().groups(group);
  lane->Enter();
  compress::CodecOptions options =
      GroupCodecOptions(plan, group, FrameHeader::CONTRIBUTION, plan.rank(), plan.rank());
  options.device = lane->device();
  options.stream = lane->stream();
  std::unique_ptr<DeviceReduction> made(new DeviceReduction(plan, g, std::move(lane)));
  ASSIGN_OR_RETURN(made->encoder_,
                   ResumableCodec<compress::Encoder>::Make(
                       plan, CodecPlace::Group(plan, group, FrameHeader::CONTRIBUTION, -1),
                       g.contribution(), options, states));
  if (g.contribution().kind() != CodecSpec::NONE) {
    ASSIGN_OR_RETURN(made->decoder_, compress::MakeDecoder(g.contribution(), options));
  }
  return made;
}

absl::StatusOr<Outbound> DeviceReduction::Offer(DeviceGradients* stage, int64_t step,
                                                Outbound frame) {
  frame.tensor.dims = {1, group_.rows(), group_.width()};
  ASSIGN_OR_RETURN(own_, stage->CopyGradient(group_.tensors(), first_, frame.tensor.dims));
  compress::FrameContext context;
  context.step = step;
  RETURN_IF_ERROR(lane_->Read(own_));
  const compress::TensorView in{own_.device->data(), compress::DType::kF32, lane_->device(),
                                own_.dims};
  ReserveOnHugePages(MaxEncodedBytes(group_.contribution(), own_.dims), &frame.payload);
  RETURN_IF_ERROR(encoder_->Encode(in, context, &frame.payload));
  frame.header.set_state_version(encoder_->version());
  if (decoder_ == nullptr) return frame;
  const compress::MutableTensorView out{own_.device->data(), compress::DType::kF32, lane_->device(),
                                        own_.dims};
  RETURN_IF_ERROR(decoder_->Decode(frame.payload, frame.header.state_version(), context, out));
  RETURN_IF_ERROR(lane_->Written(&own_));
  return frame;
}

absl::Status DeviceReduction::Reduce(
    DeviceGradients* stage, const std::function<absl::StatusOr<Inbound>(int peer)>& receive) {
  Tensor sum;
  for (int rank : group_.ranks()) {
    Tensor part;
    if (rank == plan_.rank()) {
      part = std::move(own_);
    } else {
      ASSIGN_OR_RETURN(Inbound item, receive(rank));
      part = std::move(item.tensor);
    }
    ISTHMUS_CHECK(part.device != nullptr);  // the inlets of this group decode on lanes
    if (sum.device == nullptr) {
      sum = std::move(part);
    } else {
      RETURN_IF_ERROR(lane_->Add(part, &sum));
    }
  }
  return stage->PutGradient(group_.tensors(), first_, std::move(sum));
}

}  // namespace isthmus::worker
