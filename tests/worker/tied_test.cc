#include "worker/tied.h"

#include <gtest/gtest.h>

#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

Tensor Part(const TensorDims& dims, float scale) {
  Tensor tensor = Tensor::Zeros(dims);
  for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = scale * (0.1f + 0.37f * i);
  return tensor;
}

// What the other end's inlet decodes.
Tensor Decoded(const SessionPlan& plan, const Outbound& frame) {
  const compress::CodecOptions options =
      MakeCodecOptions(plan, *plan.tied(), plan.tied_codec(), true, "");
  auto decoder = compress::MakeDecoder(plan.tied_codec(), options).value();
  Tensor out = Tensor::Zeros(plan.tied_dims());
  const compress::MutableTensorView view{out.data.data(), compress::DType::kF32,
                                         compress::Device::kCpu, out.dims};
  EXPECT_TRUE(decoder->Decode(frame.payload, frame.header.state_version(), {}, view).ok());
  return out;
}

TEST(TiedExchange, BothEndsGetTheSameBits) {
  for (const char* codec : {"none", "bf16", "fp16", "none | zstd", "bf16 | zstd"}) {
    WorldShape shape;
    shape.tied = codec;
    const auto first = SessionPlan::Make(MakePlan(shape), 0).value();
    const auto last = SessionPlan::Make(MakePlan(shape), 1).value();
    auto at_first = TiedExchange::Make(*first).value();
    auto at_last = TiedExchange::Make(*last).value();
    const TensorDims dims = first->tied_dims();
    Outbound up, down;
    ASSERT_TRUE(at_first->Offer(Part(dims, 1.0f), 0, &up).ok());
    ASSERT_TRUE(at_last->Offer(Part(dims, -0.7f), 0, &down).ok());
    const Tensor a = at_first->Add(Decoded(*first, down)).value();
    const Tensor b = at_last->Add(Decoded(*last, up)).value();
    EXPECT_EQ(a.data, b.data) << codec;
    for (size_t i = 0; i < a.data.size(); ++i) {
      EXPECT_NEAR(a.data[i], 0.3f * (0.1f + 0.37f * i), 0.02f * (0.1f + 0.37f * i))
          << codec;  // bf16 rounds to 2^-9 of each part
    }
  }
}

// Most tokens of a vocabulary do not occur in a step.
TEST(TiedExchange, RowsOfTokensThatDidNotOccurCostNothingWithZstd) {
  WorldShape shape;
  shape.tied = "none | zstd";
  const auto plan = SessionPlan::Make(MakePlan(shape), 0).value();
  auto tied = TiedExchange::Make(*plan).value();
  const TensorDims dims = plan->tied_dims();
  Tensor part = Tensor::Zeros(dims);
  part.data[0] = 0.3f;
  Outbound frame;
  ASSERT_TRUE(tied->Offer(part, 0, &frame).ok());
  EXPECT_LT(frame.payload.size(), 64u);
  EXPECT_EQ(Decoded(*plan, frame).data, part.data);
}

TEST(TiedExchange, AWrongShapeIsAnError) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 0).value();
  auto tied = TiedExchange::Make(*plan).value();
  Outbound frame;
  EXPECT_FALSE(tied->Offer(Tensor::Zeros({1, 2, 2}), 0, &frame).ok());
}

}  // namespace
}  // namespace isthmus::worker
