#include "proto/codec_size.h"

#include "gtest/gtest.h"
#include "proto/codec_text.h"

namespace isthmus {
namespace {

// GPT2-XL micro-batch, 1 x 1024 x 1600: bytes = S*E*b/8 + 2*E (the delta adds its 5-byte sample header).
TEST(CodecSize, MatchesTheTableOfWireSizes) {
  const TensorDims xl{1, 1024, 1600};
  EXPECT_EQ(EncodedBytes(*ParseCodec("none"), xl, true), 6553600);
  EXPECT_EQ(EncodedBytes(*ParseCodec("quant(2)"), xl, true), 412800);
  EXPECT_EQ(EncodedBytes(*ParseCodec("quant(3)"), xl, true), 617600);
  EXPECT_EQ(EncodedBytes(*ParseCodec("quant(4)"), xl, true), 822400);
  EXPECT_EQ(EncodedBytes(*ParseCodec("quant(6)"), xl, true), 1232000);
  EXPECT_EQ(EncodedBytes(*ParseCodec("quant(8)"), xl, true), 1641600);
  EXPECT_EQ(EncodedBytes(*ParseCodec("delta(quant(3))"), xl, true), 617605);
  EXPECT_EQ(EncodedBytes(*ParseCodec("delta(quant(3))"), xl, false), 6553605);
}

TEST(CodecSize, BuffersAreTwoBytesAnElement) {
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3))"), 20000, 1024, 1600), int64_t{20000} * 1024 * 1600 * 2);
  EXPECT_EQ(BufferBytes(*ParseCodec("quant(3)"), 20000, 1024, 1600), 0);
}

}  // namespace
}  // namespace isthmus
