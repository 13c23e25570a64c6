#include "coordinator/codec_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec_text.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

// A link that carries `bits` an element within the compute time, margin included.
CodecQuestion Fits(double bits, bool forward = true) {
  CodecQuestion q;
  q.forward = forward;
  q.dims = {4, 128, 256};
  q.compute_s = 0.5;
  q.rate_bits_per_s = bits * q.dims.elements() / q.compute_s / kRateMargin;
  q.passes_known = true;
  q.passes = 1;
  return q;
}

std::string Codec(const CodecQuestion& q) { return FormatCodec(ChooseCodec(q).codec); }

TEST(CodecChoice, TheMildestThatFits) {
  EXPECT_EQ(Codec(Fits(1000)), "none");
  EXPECT_EQ(Codec(Fits(32.5)), "none");
  EXPECT_EQ(Codec(Fits(32)), "bf16") << "frames have headers";
  EXPECT_EQ(Codec(Fits(17)), "bf16");
  EXPECT_EQ(Codec(Fits(15)), "quant(8)");
  EXPECT_EQ(Codec(Fits(6.5)), "quant(6)");
  EXPECT_EQ(Codec(Fits(2.3)), "quant(2)");
  EXPECT_EQ(Codec(Fits(0.1)), "quant(2)") << "never 1 bit";
}

TEST(CodecChoice, GradientsKeepFourBitsAndNoState) {
  CodecQuestion q = Fits(0.5, false);
  q.passes = 10;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "quant(4, token, symmetric)");
  EXPECT_FALSE(ChooseCodec(q).fits);
  EXPECT_TRUE(ChooseCodec(Fits(5, false)).fits);
}

TEST(CodecChoice, DeltaWhenSamplesComeAgainAndBuffersFit) {
  CodecQuestion q = Fits(4.5);
  q.passes = 3;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "delta(quant(4), cold=bf16)");
  q.buffers_fit = false;
  EXPECT_EQ(Codec(q), "quant(4)");
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("no delta: its buffers do not fit"));
  q.buffers_fit = true;
  q.passes = 1.5;
  EXPECT_EQ(Codec(q), "quant(4)");
  q.passes_known = false;
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("number of samples is not known"));
  q = Fits(20);
  q.passes = 3;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "bf16") << "no state where none is needed";
}

TEST(CodecChoice, PredictsWhereTokensComeAlongAndSamplesDoNotComeAgain) {
  CodecQuestion q = Fits(4.5);
  q.tokens_known = true;
  q.vocabulary = 256;
  q.free_bytes = int64_t{1} << 30;
  EXPECT_EQ(Codec(q), "predict(quant(4, token), context=3)");
  EXPECT_THAT(ChooseCodec(q).why,
              HasSubstr("(no delta: 1.00 passes over the data, it needs more than 1.5; predict: "));
  q.forward = false;
  EXPECT_EQ(Codec(q), "predict(quant(4, token, symmetric), context=2, next)");
  q.passes = 3;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "predict(quant(4, token, symmetric), context=2, next)");
  q.forward = true;
  EXPECT_EQ(Codec(q), "delta(quant(4), cold=bf16)") << "a sample's own buffer is better";
  q.buffers_fit = false;
  EXPECT_EQ(Codec(q), "predict(quant(4, token), context=3)");
  const CodecSpec chosen = ChooseCodec(q).codec;
  q.free_bytes = PredictorBytes(chosen, q.dims, q.vocabulary);
  EXPECT_EQ(FormatCodec(ChooseCodec(q).codec), FormatCodec(chosen));
  --q.free_bytes;
  EXPECT_EQ(Codec(q), "quant(4)");
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("no predict: its tables take "));
  ++q.free_bytes;
  q.compute_s *= 1e-3;  // an accelerator on a fast link: one core can't follow
  q.rate_bits_per_s *= 1e3;
  EXPECT_EQ(Codec(q), "quant(4)");
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("no predict: it would take 1.05 ms of a core"));
  q.tokens_known = false;
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("no predict: token ids do not come along"));
}

TEST(CodecChoice, AFastLinkPassesTokenIdsOn) {
  CodecQuestion q = Fits(40);
  q.tokens_known = q.tokens_wanted = true;
  q.free_bytes = int64_t{1} << 30;
  EXPECT_EQ(Codec(q), "predict(none)");
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("passes the token ids on"));
  q.forward = false;
  EXPECT_EQ(Codec(q), "none");
  q = Fits(20);
  q.tokens_known = q.tokens_wanted = true;
  q.free_bytes = int64_t{1} << 30;
  EXPECT_EQ(Codec(q), "predict(bf16)");
  q.free_bytes = 0;
  EXPECT_EQ(Codec(q), "bf16");
}

TEST(CodecChoice, TheWordsHaveTheFigures) {
  CodecQuestion q = Fits(45);
  q.compute_s = 0.41;
  q.rate_bits_per_s = 18.2e6;
  EXPECT_EQ(
      ChooseCodec(q).why,
      "18.2 Mbit/s measured, micro-batch 131072 elements, compute 0.41 s -> 46 bits would fit -> "
      "none");
  q.rate_bits_per_s = 1e5;
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("the link is slower than the compute"));
}

}  // namespace
}  // namespace isthmus::coordinator
