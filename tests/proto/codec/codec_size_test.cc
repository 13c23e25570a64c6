#include "proto/codec/codec_size.h"

#include "gtest/gtest.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"

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
  EXPECT_DOUBLE_EQ(MeanEncodedBytes(*ParseCodec("delta(quant(3))"), xl, 0.5),
                   (617605 + 6553605) / 2.0);
  EXPECT_DOUBLE_EQ(MeanEncodedBytes(*ParseCodec("quant(3)"), xl, 0.5), 617600);
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
  EXPECT_EQ(EncodedBytes(*ParseCodec("predict(quant(3))"), xl, true), 617600 + 1 + 3 * 1024);
  EXPECT_EQ(MaxEncodedBytes(*ParseCodec("predict(quant(3))"), xl), 617600 + 1 + 5 * 1024);
}

// T3.3: forward K values and K indices, backward K values alone.
TEST(CodecSize, KeptIsTheValuesWithoutTheIndices) {
  const TensorDims xl{2, 1024, 1600};
  const int64_t n = 1024 * 1600;
  const auto bytes = [&](const char* forward, const char* backward) {
    const CodecSpec bound = *BindBackward(*ParseCodec(forward), *ParseCodec(backward));
    EXPECT_EQ(MaxEncodedBytes(bound, xl) - (bound.zstd() ? 5 : 0), EncodedBytes(bound, xl, true));
    return EncodedBytes(bound, xl, true);
  };
  const int64_t kept = 1024 * 80;
  EXPECT_EQ(bytes("topk(0.05)", "kept"), 2 * kept * 4);
  EXPECT_EQ(bytes("topk(0.05)", "kept(bf16) | zstd"), 2 * kept * 2);
  EXPECT_EQ(EncodedBytes(*ParseCodec("topk(0.05)"), xl, true),
            2 * (kept * 2 + IndexSetBytes(n, kept)));
  EXPECT_EQ(bytes("topk(0.05)", "kept(quant(8))"), 2 * (kept + 2 * 1024)) << "a scale a token";
  EXPECT_EQ(bytes("topk(0.05, global)", "kept(quant(8))"), 2 * (kept + 2)) << "one a sample";
  EXPECT_EQ(bytes("randomk(0.05)", "kept(quant(4, group=64))"), 2 * (kept / 2 + 2 * kept / 64));
  EXPECT_EQ(EncodedBytes(*ParseCodec("kept"), xl, true), 2 * n * 4) << "not bound: a bound";
}

TEST(CodecSize, IndicesAreFourBytesEach) {
  const TensorDims xl{2, 1024, 1600};
  const auto bytes = [&](const char* forward, const char* backward) {
    return IndicesBytes(*BindBackward(*ParseCodec(forward), *ParseCodec(backward)), xl);
  };
  EXPECT_EQ(bytes("topk(0.05)", "kept"), 2 * 4 * 1024 * 80);
  EXPECT_EQ(bytes("topk(0.00001)", "kept(bf16)"), 2 * 4 * 1024) << "one a token at least";
  EXPECT_EQ(bytes("topk(0.00001, global)", "kept"), 2 * 4 * 17);
  EXPECT_EQ(bytes("randomk(0.5)", "kept"), 2 * 4 * 1024 * 800);
  EXPECT_EQ(bytes("topk(0.05)", "quant(4)"), 0);
}

TEST(CodecSize, ResidualsAreOfAStepOrOfAFrame) {
  const TensorDims dims{2, 16, 48};
  EXPECT_EQ(ResidualBytes(*ParseCodec("ef(quant(4)) | zstd"), dims, 7), 4 * 7 * 16 * 48);
  EXPECT_EQ(ResidualBytes(*ParseCodec("lep(lowrank(2))"), dims, 7), 4 * 2 * 16 * 48);
  EXPECT_EQ(ResidualBytes(*ParseCodec("delta(quant(4))"), dims, 7), 0);
}

TEST(CodecSize, AnAutoencoderHasItsChannelsBothWays) {
  const TensorDims xl{2, 1024, 1600};
  const CodecSpec forward = *ParseCodec("autoencoder(100, values=bf16)");
  EXPECT_EQ(EncodedBytes(forward, xl, true), 2 * 1024 * 100 * 2);
  EXPECT_EQ(EncodedBytes(*ParseCodec("autoencoder(100)"), xl, true), 2 * 1024 * 100 * 4);
  const TensorDims narrow = WireDims(forward, xl);
  EXPECT_EQ(EncodedBytes(forward, narrow, true), 2 * 1024 * 100 * 2);
  EXPECT_EQ(EncodedBytes(*ParseCodec("none"), narrow, true), 2 * 1024 * 100 * 4);
  EXPECT_EQ(WireDims(*ParseCodec("quant(4)"), xl).hidden, 1600);
}

TEST(CodecSize, BuffersAreTwoBytesAnElement) {
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3))"), 20000, 1024, 1600),
            int64_t{20000} * 1024 * 1600 * 2);
  EXPECT_EQ(BufferBytes(*ParseCodec("quant(3)"), 20000, 1024, 1600), 0);
}

TEST(CodecSize, QuantisedBuffersHaveScalesAndFewerBits) {
  const int64_t n = 1024 * 1600;
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3), buffer=8)"), 3, 1024, 1600), 3 * (n + 3200));
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3), buffer=4)"), 3, 1024, 1600),
            3 * (n / 2 + 3200));
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3), buffer=2)"), 3, 1024, 1600),
            3 * (n / 4 + 3200));
  // 3 x 5 elements of 2 bits are 4 bytes, 5 scales 10; 3 x 3 of 8 bits are 9: up to a whole word.
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3), buffer=2)"), 1, 3, 5), 14);
  EXPECT_EQ(BufferBytes(*ParseCodec("delta(quant(3), buffer=8)"), 1, 3, 3), 16);
  EXPECT_EQ(EncodedBytes(*ParseCodec("delta(quant(3), buffer=8)"), {1, 1024, 1600}, true),
            EncodedBytes(*ParseCodec("delta(quant(3))"), {1, 1024, 1600}, true));
}

TEST(CodecSize, BuffersShareTheCaps) {
  const BufferLayout unknown = LayOutBuffers(10, 105, 49, 0);  // each rounded down
  EXPECT_EQ(unknown.memory_entries, 10);
  EXPECT_EQ(unknown.file_entries, 4);
  EXPECT_EQ(unknown.spare_entries, 0) << "the cap is used up by samples";
  EXPECT_EQ(unknown.capacity(), 14);
  const BufferLayout fits = LayOutBuffers(10, 1000, 100000, 300);
  EXPECT_EQ(fits.memory_entries, 100);
  EXPECT_EQ(fits.file_entries, 200);
  EXPECT_EQ(fits.spare_entries, 25);
  EXPECT_EQ(LayOutBuffers(10, 1000, 2070, 300).spare_entries, 7);
  EXPECT_EQ(LayOutBuffers(10, 1000000, 100000000, 200000).spare_entries, 64);
  EXPECT_EQ(LayOutBuffers(10, 1000, 100000, 80).file_entries, 0) << "all fit in memory";
  EXPECT_EQ(LayOutBuffers(10, 1000, 100000, 80).spare_entries, 0);
  EXPECT_EQ(LayOutBuffers(10, -1, -1, 80).capacity(), 0);
}

TEST(CodecSize, RowsOfAPredictor) {
  const CodecSpec one = *ParseCodec("predict(quant(3))");
  const CodecSpec three = *ParseCodec("predict(quant(3), context=3)");
  PredictorRows rows = PredictorRowsOf(one, 4 * 8 * 1000, 100, 8);
  EXPECT_EQ(rows.positions, 100);
  EXPECT_EQ(rows.tokens, 900);
  EXPECT_EQ(rows.slots, 0);
  rows = PredictorRowsOf(three, 4 * 8 * 1000, 100, 8);
  EXPECT_EQ(rows.slots, 128) << "a power of two, twice, out of 450";
  EXPECT_EQ(rows.tokens, 900 - 2 * 128);
  EXPECT_EQ(PredictorRowsOf(three, int64_t{1} << 40, 1024, 64).slots, 65536);
  for (int64_t bytes : {0, 31, 32, 4 * 8 * 101}) {
    rows = PredictorRowsOf(three, bytes, 100, 8);
    EXPECT_EQ(rows.slots, 0) << bytes;
    EXPECT_EQ(rows.tokens, 1) << bytes;
  }
  EXPECT_EQ(PredictorRowsOf(three, 100, 0, 0).positions, 0);
}

TEST(CodecSize, BytesOfAPredictor) {
  const TensorDims dims{2, 16, 8};
  EXPECT_EQ(PredictorBytes(*ParseCodec("quant(3)"), dims, 256), 0);
  EXPECT_EQ(PredictorBytes(*ParseCodec("predict(quant(3))"), dims, 256),
            4 * 8 * (2 * 16 + 257 + 32))
      << "positions and their sums, tokens and the mean of all, sums of a frame's tokens";
  EXPECT_EQ(
      PredictorBytes(*ParseCodec("delta(quant(3), cold=predict(quant(3), context=2))"), dims, 256),
      4 * 8 * (2 * 16 + 257 + 65536 + 32 + 32));
  EXPECT_LT(PredictorBytes(*ParseCodec("predict(quant(3), context=4)"), {1, 1024, 1600}, 50257),
            kPredictorBytes + 4 * 1600 * 5 * 1024);
}

}  // namespace
}  // namespace isthmus
