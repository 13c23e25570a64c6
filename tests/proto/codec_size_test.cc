#include "proto/codec_size.h"

#include "gtest/gtest.h"
#include "proto/codec_text.h"

namespace isthmus {
namespace {

// GPT2-XL micro-batch, 1 x 1024 x 1600: bytes = S*E*b/8 + 2*E (the delta adds its 5-byte sample
// header).
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

TEST(CodecSize, SparseCodecsCountTheirIndices) {
  EXPECT_EQ(KeptOf(0.05, 1600), 80);
  EXPECT_EQ(KeptOf(1e-9, 3), 1);
  EXPECT_EQ(KeptOf(1.0, 7), 7);
  EXPECT_EQ(KeptOf(0.5, 0), 0);
  // 1 of 20: 4 low bits and 1 + 20 / 16 high bits an index.
  EXPECT_EQ(IndexSetBytes(1638400, 81920), 81920 * 4 / 8 + (81920 + 1638400 / 16 + 1 + 7) / 8);
  EXPECT_EQ(IndexSetBytes(1000, 500), 125);  // a bitmap is less
  EXPECT_EQ(IndexSetBytes(8, 0), 0);
  const TensorDims xl{1, 1024, 1600};
  EXPECT_EQ(EncodedBytes(*ParseCodec("topk(0.05)"), xl, true),
            IndexSetBytes(1638400, 81920) + 2 * 81920);
  EXPECT_EQ(EncodedBytes(*ParseCodec("randomk(0.05)"), xl, true), 4 + 2 * 81920);
  EXPECT_EQ(EncodedBytes(*ParseCodec("lowrank(16)"), xl, true),
            4 * 16 * (1024 + 1600));  // 39 times less
  EXPECT_EQ(EncodedBytes(*ParseCodec("sign"), xl, true), 2 * 1600 + 204800);
  EXPECT_EQ(EncodedBytes(*ParseCodec("predict(quant(3))"), xl, true), 617600 + 1 + 2 * 1024);
  EXPECT_EQ(MaxEncodedBytes(*ParseCodec("predict(quant(3))"), xl), 617600 + 1 + 4 * 1024);
}

TEST(CodecSize, BuffersAreTwoBytesAnElement) {
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3))"), 20000, 1024, 1600),
            int64_t{20000} * 1024 * 1600 * 2);
  EXPECT_EQ(BufferBytes(*ParseCodec("quant(3)"), 20000, 1024, 1600), 0);
}

}  // namespace
}  // namespace isthmus
