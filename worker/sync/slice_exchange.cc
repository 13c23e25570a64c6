#include "worker/sync/slice_exchange.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "proto/plan/deal.h"
#include "worker/link/codec_options.h"

namespace isthmus::worker {

SliceExchange::SliceExchange(const SessionPlan& plan, int group, StageSlice* stage)
    : plan_(plan), index_(group), group_(plan.plan().groups(group)), stage_(stage) {}

absl::StatusOr<std::unique_ptr<SliceExchange>> SliceExchange::Make(const SessionPlan& plan,
                                                                   int group, StageSlice* stage) {
  if (stage == nullptr)
    return absl::InternalError("the plan deals slices, and the stage trains none");
  std::unique_ptr<SliceExchange> made(new SliceExchange(plan, group, stage));
  const CodecSpec& codec = made->group_.contribution();
  const compress::CodecOptions options =
      GroupCodecOptions(plan, group, FrameHeader::SLICE, plan.rank(), plan.rank());
  ASSIGN_OR_RETURN(made->encoder_, compress::MakeEncoder(codec, options));
  ASSIGN_OR_RETURN(made->decoder_, compress::MakeDecoder(codec, options));
  return made;
}

// All that this rank holds, as others would get it.
absl::Status SliceExchange::Round(int64_t step) {
  if (group_.contribution().kind() == CodecSpec::NONE) return absl::OkStatus();
  const Slice mine = SliceOf(plan_.plan(), plan_.rank(), RoundOf(plan_.plan(), step));
  const TensorDims dims{SliceRows(plan_.plan(), mine), 1, kSliceRow};
  std::vector<float> values(dims.elements());
  const auto own = absl::MakeSpan(values).first(SliceElements(plan_.job().model(), mine));
  RETURN_IF_ERROR(stage_->Read(mine, own));
  compress::FrameContext context;
  context.step = step;
  std::string payload;
  RETURN_IF_ERROR(encoder_->Encode(
      {values.data(), compress::DType::kF32, compress::Device::kCpu, dims}, context, &payload));
  RETURN_IF_ERROR(
      decoder_->Decode(payload, encoder_->version(), context,
                       {values.data(), compress::DType::kF32, compress::Device::kCpu, dims}));
  return stage_->Write(mine, own);
}

absl::Status SliceExchange::Deal(int64_t step, bool merged, const GroupWires& wires) {
  if (merged) RETURN_IF_ERROR(Round(step));
  for (const int peer : group_.ranks()) {
    if (peer == plan_.rank()) continue;
    const Slice units = Moves(plan_.plan(), plan_.rank(), peer, step, merged);
    const int64_t elements = SliceElements(plan_.job().model(), units);
    Outbound frame = wires.new_frame();
    frame.header.set_kind(FrameHeader::SLICE);
    frame.header.set_group(index_);
    frame.encoded = true;
    frame.tensor.dims = SliceDims(plan_.plan(), plan_.rank(), peer, step, merged);
    std::vector<float> values(frame.tensor.dims.elements());
    if (elements > 0) {
      RETURN_IF_ERROR(stage_->Read(units, absl::MakeSpan(values).first(elements)));
      compress::FrameContext context;
      context.step = step;
      const compress::TensorView in{values.data(), compress::DType::kF32, compress::Device::kCpu,
                                    frame.tensor.dims};
      RETURN_IF_ERROR(encoder_->Encode(in, context, &frame.payload));
      frame.header.set_state_version(encoder_->version());
    }
    RETURN_IF_ERROR(wires.send(peer, std::move(frame)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SliceExchange::Merge(int64_t step, bool merged, const GroupWires& wires) {
  const Slice next = SliceOf(plan_.plan(), plan_.rank(), RoundOf(plan_.plan(), step) + 1);
  const bool gathers = merged && Gathers(plan_.plan(), plan_.rank());
  if (gathers) {
    RETURN_IF_ERROR(stage_->BeginWhole());
    together_ = true;
  } else {
    RETURN_IF_ERROR(stage_->Hold(next));
  }
  bool finite = true;
  for (const int peer : group_.ranks()) {
    if (peer == plan_.rank()) continue;
    ASSIGN_OR_RETURN(const Inbound item, wires.receive(peer, FrameHeader::SLICE));
    const Slice units = Moves(plan_.plan(), peer, plan_.rank(), step, merged);
    const auto values =
        absl::MakeConstSpan(item.tensor.data).subspan(0, SliceElements(plan_.job().model(), units));
    if (values.empty()) continue;
    finite = finite && std::all_of(values.begin(), values.end(),
                                   [](float value) { return std::isfinite(value); });
    RETURN_IF_ERROR(gathers ? stage_->WriteWhole(units, values) : stage_->Write(units, values));
  }
  if (gathers) RETURN_IF_ERROR(stage_->Hold(next));
  return finite;
}

void SliceExchange::BeginStep() {
  if (std::exchange(together_, false)) stage_->EndWhole();
}

}  // namespace isthmus::worker
