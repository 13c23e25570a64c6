#include "worker/tied.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/link/inlet.h"

namespace isthmus::worker {

absl::StatusOr<std::unique_ptr<TiedExchange>> TiedExchange::Make(const SessionPlan& plan,
                                                                 CodecStateStore* states) {
  std::unique_ptr<TiedExchange> tied(new TiedExchange(plan));
  const compress::CodecOptions options =
      MakeCodecOptions(plan, *plan.tied(), plan.tied_codec(), plan.first(), "");
  ASSIGN_OR_RETURN(tied->encoder_,
                   ResumableCodec<compress::Encoder>::Make(plan, *plan.tied(), plan.tied_codec(),
                                                           plan.first(), options, states));
  ASSIGN_OR_RETURN(tied->decoder_, compress::MakeDecoder(plan.tied_codec(), options));
  return tied;
}

absl::Status TiedExchange::Offer(Tensor mine, int64_t step, Outbound* frame) {
  const TensorDims want = plan_.tied_dims();
  if (mine.dims.samples != 1 || mine.dims.positions != want.positions ||
      mine.dims.hidden != want.hidden) {
    return absl::InternalError(
        absl::StrCat("the stage gave a tied gradient of ", mine.dims.positions, "x",
                     mine.dims.hidden, " where the model has ", want.positions, "x", want.hidden));
  }
  compress::FrameContext context;
  context.step = step;
  const compress::TensorView in{mine.data.data(), compress::DType::kF32, compress::Device::kCpu,
                                mine.dims};
  RETURN_IF_ERROR(encoder_->Encode(in, context, &frame->payload));
  frame->encoded = true;
  frame->header.set_state_version(encoder_->version());
  frame->tensor.dims = mine.dims;
  mine_ = std::move(mine);
  if (plan_.tied_codec().kind() == CodecSpec::NONE)
    return absl::OkStatus();  // decoding changes nothing
  const compress::MutableTensorView out{mine_.data.data(), compress::DType::kF32,
                                        compress::Device::kCpu, mine_.dims};
  return decoder_->Decode(frame->payload, encoder_->version(), context, out);
}

absl::StatusOr<Tensor> TiedExchange::Add(Tensor theirs) {
  if (theirs.data.size() != mine_.data.size())
    return absl::InternalError("tied gradients of two sizes");
  const Tensor& first = plan_.first() ? mine_ : theirs;
  const Tensor& last = plan_.first() ? theirs : mine_;
  for (size_t i = 0; i < theirs.data.size(); ++i) theirs.data[i] = first.data[i] + last.data[i];
  mine_ = {};
  return theirs;
}

}  // namespace isthmus::worker
