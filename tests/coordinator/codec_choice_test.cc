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
  q.samples_known = true;
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
  q.first_visits = 0.1;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "quant(4, token, symmetric)");
  EXPECT_FALSE(ChooseCodec(q).fits);
  EXPECT_TRUE(ChooseCodec(Fits(5, false)).fits);
}

TEST(CodecChoice, DeltaWhenSamplesComeAgainAndBuffersFit) {
  CodecQuestion q = Fits(4.5);
  q.first_visits = 0.1;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "delta(quant(3), cold=bf16)") << "0.1 x 16 + 0.9 x 3 bits";
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("(delta: 256 KiB on a first visit, 50.0 KiB after; "
                                            "10 % of visits are first ones)"));
  q.buffers_fit = false;
  EXPECT_EQ(Codec(q), "quant(4)");
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("no delta: its buffers do not fit"));
  q.buffers_fit = true;
  q.samples_known = false;
  EXPECT_EQ(Codec(q), "quant(4)");
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("number of samples is not known"));
  q = Fits(20);
  q.first_visits = 0.1;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "bf16") << "no state where none is needed";
}

TEST(CodecChoice, DeltaIsComparedByItsMean) {
  CodecQuestion q = Fits(12.5);
  q.buffers_fit = true;
  q.first_visits = 0.5;  // 0.5 x 16 + 0.5 x 8 bits
  EXPECT_EQ(Codec(q), "delta(quant(8), cold=bf16)");
  q.first_visits = 0.57;
  EXPECT_EQ(Codec(q), "delta(quant(7), cold=bf16)") << "a bit less is worth it";
  q.first_visits = 0.66;
  EXPECT_EQ(Codec(q), "quant(8)") << "5 bits would be left";
  EXPECT_THAT(ChooseCodec(q).why, HasSubstr("no delta: its mean leaves it too few bits"));
  q.first_visits = kFirstVisitsForDelta;
  EXPECT_THAT(ChooseCodec(q).why,
              HasSubstr("no delta: 67 % of visits are first ones, it needs less than 67 %"));
  q = Fits(4.5);
  q.buffers_fit = true;
  q.first_visits = 1 / 3.0;  // 16 / 3 bits are too many already
  EXPECT_EQ(Codec(q), "quant(4)");
  EXPECT_TRUE(ChooseCodec(q).fits);
}

TEST(CodecChoice, WhereNothingFitsAPredictionElseADelta) {
  CodecQuestion q = Fits(1);
  q.buffers_fit = true;
  q.first_visits = 0.1;
  q.vocabulary = 256;
  q.free_bytes = int64_t{1} << 30;
  EXPECT_EQ(Codec(q), "delta(quant(2), cold=bf16)");
  EXPECT_FALSE(ChooseCodec(q).fits);
  q.tokens_known = true;
  EXPECT_EQ(Codec(q), "predict(quant(2, token), context=3)");
  EXPECT_FALSE(ChooseCodec(q).fits);
}

TEST(CodecChoice, PredictsWhereTokensComeAlongAndSamplesDoNotComeAgain) {
  CodecQuestion q = Fits(4.5);
  q.tokens_known = true;
  q.vocabulary = 256;
  q.free_bytes = int64_t{1} << 30;
  EXPECT_EQ(Codec(q), "predict(quant(4, token), context=3)");
  EXPECT_THAT(
      ChooseCodec(q).why,
      HasSubstr("(no delta: 100 % of visits are first ones, it needs less than 67 %; predict: "));
  q.forward = false;
  EXPECT_EQ(Codec(q), "predict(quant(4, token, symmetric), context=2, next)");
  q.first_visits = 0.1;
  q.buffers_fit = true;
  EXPECT_EQ(Codec(q), "predict(quant(4, token, symmetric), context=2, next)");
  q.forward = true;
  EXPECT_EQ(Codec(q), "delta(quant(3), cold=bf16)") << "a sample's own buffer is better";
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
