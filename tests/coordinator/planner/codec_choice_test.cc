#include "coordinator/planner/codec_choice.h"

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

CodecQuestion Question(bool forward = true) {
  CodecQuestion q;
  q.forward = forward;
  q.dims = {4, 128, 256};
  q.rate_bits_per_s = 1e7;
  q.samples_known = true;
  q.free_bytes = int64_t{1} << 30;
  return q;
}

std::vector<std::string> Texts(const CodecQuestion& q) {
  std::vector<std::string> texts;
  for (const CodecOption& o : CodecOptions(q)) texts.push_back(FormatCodec(o.codec));
  return texts;
}

double Loss(const std::string& codec, bool forward) {
  return ExpectedLoss(*ParseCodec(codec), forward).value();
}

TEST(CodecChoice, Bf16ComesBeforeNoneAndBitsGoDownToTheLeastAllowed) {
  CodecQuestion q = Question();
  q.table_bytes = q.free_bytes + 1;
  EXPECT_THAT(Texts(q),
              ElementsAre("bf16", "none", "quant(8)", "quant(6)", "quant(5)", "quant(4)"));
  q.min_bits = 7;
  EXPECT_THAT(Texts(q), ElementsAre("bf16", "none", "quant(8)", "quant(7)"));
  q.min_bits = 2;
  EXPECT_EQ(Texts(q).back(), "quant(2)");
  q = Question(false);
  q.table_bytes = q.free_bytes + 1;
  q.min_bits = 8;
  EXPECT_THAT(Texts(q), ElementsAre("bf16", "none", "quant(8, token, symmetric)"));
}

TEST(CodecChoice, DeltaWhereSamplesComeAgainAndBuffersFit) {
  CodecQuestion q = Question();
  q.first_visits = 0.1;
  q.buffers_fit = true;
  EXPECT_THAT(Texts(q), Contains("delta(quant(4), cold=bf16)"));
  EXPECT_EQ(LeftOut(q), "");
  const auto left_out = [&](const char* why) {
    EXPECT_THAT(Texts(q), Not(Contains(HasSubstr("delta"))));
    EXPECT_THAT(LeftOut(q), HasSubstr(why));
  };
  q.buffers_fit = false;
  left_out("no delta: its buffers do not fit");
  q.buffers_fit = true;
  q.samples_known = false;
  left_out("no delta: the number of samples is not known");
  q.samples_known = true;
  q.first_visits = kFirstVisitsForDelta;
  left_out("no delta: 67 % of visits are first ones, it needs less than 67 %");
  q.first_visits = 0.1;
  q.states_fit = false;
  left_out("no delta: its buffers do not fit; no predict: ");
  q = Question(false);
  q.first_visits = 0.1;
  q.buffers_fit = true;
  EXPECT_THAT(Texts(q), Not(Contains(HasSubstr("delta")))) << "gradients keep no state of samples";
}

TEST(CodecChoice, PredictWhereItsTablesFit) {
  CodecQuestion q = Question();
  q.table_bytes = q.free_bytes;
  EXPECT_THAT(Texts(q), Contains("predict(quant(4, token), context=3)"));
  EXPECT_THAT(Texts(q), Contains("predict(bf16)")) << "passes the token ids on";
  q.forward = false;
  EXPECT_THAT(Texts(q), Contains("predict(quant(4, token, symmetric), context=2, next)"));
  EXPECT_THAT(Texts(q), Not(Contains("predict(bf16)")));
  for (const CodecOption& o : CodecOptions(q))
    EXPECT_EQ(o.tokens, absl::StrContains(FormatCodec(o.codec), "predict"));
  ++q.table_bytes;
  EXPECT_THAT(Texts(q), Not(Contains(HasSubstr("predict"))));
  EXPECT_THAT(LeftOut(q), HasSubstr("no predict: its tables take up to 1.00 GiB"));
}

// The figures of the trials that the constants stand for, a boundary each.
TEST(CodecChoice, ExpectedLossesAreThoseMeasured) {
  EXPECT_EQ(Loss("none", true), 0);
  EXPECT_EQ(Loss("bf16", false), 0);
  EXPECT_EQ(Loss("predict(none)", true), 0);
  const double predicted = Loss("predict(quant(4, token), context=3)", true) +
                           Loss("predict(quant(4, token, symmetric), context=2, next)", false);
  EXPECT_NEAR(7 * predicted, 0.0065, 0.002);
  EXPECT_NEAR(7 * (Loss("quant(4)", true) + Loss("quant(8, token, symmetric)", false)), 0.032,
              0.005);
  EXPECT_NEAR(7 * Loss("predict(quant(2, token), context=3)", true), 0.072, 0.02);
  EXPECT_NEAR(7 * Loss("quant(2)", true), 0.45, 0.05);
  EXPECT_DOUBLE_EQ(Loss("delta(quant(4))", true), Loss("quant(4)", true) / 2);
  EXPECT_GT(Loss("quant(4, token)", false), 3 * Loss("quant(4, token, symmetric)", false));
  EXPECT_GT(Loss("quant(3, token, symmetric)", false),
            20 * Loss("quant(4, token, symmetric)", false));
  EXPECT_FALSE(ExpectedLoss(*ParseCodec("topk(0.1)"), true).has_value());
  EXPECT_FALSE(ExpectedLoss(*ParseCodec("delta(topk(0.1))"), true).has_value());
}

TEST(CodecChoice, FewerBitsTakeLessOfTheLinkAndHaveAHigherPrice) {
  for (const bool forward : {true, false}) {
    CodecQuestion q = Question(forward);
    q.min_bits = 2;
    const CodecOption* last = nullptr;
    const std::vector<CodecOption> options = CodecOptions(q);
    for (const CodecOption& o : options) {
      if (o.codec.kind() != CodecSpec::QUANT) continue;
      EXPECT_GT(o.price, kQuantisedPrice);
      if (last != nullptr) {
        EXPECT_LT(o.link_s, last->link_s);
        EXPECT_GT(o.price, last->price);
      }
      last = &o;
    }
    EXPECT_EQ(options[0].price, 0) << "bf16 costs nothing that was measured";
  }
}

TEST(CodecChoice, AnOptionTakesItsBytesAndBothEndsCores) {
  CodecQuestion q = Question();
  const double elements = 4 * 128 * 256;
  const CodecOption bf16 = OptionOf(q, *ParseCodec("bf16"));
  EXPECT_NEAR(bf16.link_s, elements * 16 / 1e7 + 2 * elements * kConvertSecondsPerElement, 4e-3);
  q.first_visits = 0.5;
  const double none_s = OptionOf(q, *ParseCodec("none")).link_s,
               quant_s = OptionOf(q, *ParseCodec("quant(4)")).link_s,
               delta_s = OptionOf(q, *ParseCodec("delta(quant(4))")).link_s;
  EXPECT_NEAR(delta_s, (none_s + quant_s) / 2, 2e-3) << "half of the visits are in full";
  EXPECT_GT(CodecSeconds(*ParseCodec("bf16 | zstd"), q.dims),
            CodecSeconds(*ParseCodec("bf16"), q.dims));
  EXPECT_EQ(CodecSeconds(*ParseCodec("none"), q.dims), 0);
}

}  // namespace
}  // namespace isthmus::coordinator
