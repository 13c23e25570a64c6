#include "proto/codec/codec_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(CodecText, RoundTripsItsShortestForm) {
  for (const char* text : {"none",
                           "bf16",
                           "fp16",
                           "quant(4)",
                           "quant(3, token)",
                           "quant(3, group=64, symmetric)",
                           "quant(2, rms, stochastic) | zstd",
                           "delta(quant(3))",
                           "delta(quant(3), cold=bf16) | zstd",
                           "delta(quant(3), buffer=8)",
                           "delta(quant(3, group=64), cold=quant(8), buffer=2) | zstd",
                           "none | zstd",
                           "topk(0.05)",
                           "topk(0.25, global, values=quant(8, group=64)) | zstd",
                           "randomk(0.1)",
                           "randomk(0.1, scaled, values=none)",
                           "lowrank(16)",
                           "lowrank(128, values=bf16)",
                           "autoencoder(32)",
                           "autoencoder(8, values=quant(8)) | zstd",
                           "kept",
                           "kept(bf16)",
                           "kept(quant(8)) | zstd",
                           "kept(quant(4, group=64, stochastic))",
                           "sign",
                           "sign(token)",
                           "sign(group=64)",
                           "cocktail(0.1, 0.2, 4)",
                           "ef(quant(4))",
                           "lep(lowrank(16))",
                           "predict(quant(3))",
                           "predict(quant(3, token), rate=0.01)",
                           "predict(quant(3), context=3)",
                           "predict(quant(3), rate=0.1, context=2, next) | zstd",
                           "delta(quant(3), cold=predict(quant(4)))",
                           "delta(topk(0.1, values=quant(4, token)))"}) {
    absl::StatusOr<CodecSpec> spec = ParseCodec(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(FormatCodec(*spec), text);
    EXPECT_TRUE(ValidateCodec(*spec).ok());
  }
}

TEST(CodecText, ErrorsNameTheColumnAndWhatWasExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "expected a codec"},
      {"quatn(4)", "column 1: expected a codec"},
      {"quant(9)", "bits from 1 to 8"},
      {"quant(4", "expected ')'"},
      {"quant(4, grup=3)", "expected an option"},
      {"quant(4, group=7)", "group=32..256"},
      {"delta(quant(3)", "expected ')'"},
      {"none | gzip", "'zstd' after '|'"},
      {"none none", "the end of the codec"},
      {"delta(delta(quant(2)))", "must be stateless"},
      {"kept(quant(8, channel))", "a scale per token or group"},
      {"kept(topk(0.1))", "values: none, bf16, fp16"},
      {"kept(bf16", "expected ')'"},
      {"kept()", "column 6: expected a codec"},
      {"ef(kept)", "kept: it is the backward codec of a boundary"},
      {"delta(quant(3), cold=kept(bf16))", "kept: it is the backward codec of a boundary"},
      {"delta(quant(2), buffer=3)", "an option: cold=CODEC, buffer=2|4|8"},
      {"delta(quant(2), buffer=)", "an option: cold=CODEC, buffer=2|4|8"},
      {"delta(quant(2), warm=bf16)", "expected an option: cold=CODEC"},
      {"predict(quant(2), buffer=8)", "an option: rate=R, context=1..4, next"},
      {"delta(ef(quant(2)))", "must be stateless"},
      {"ef(predict(quant(2)))", "must be stateless"},
      {"predict(lep(quant(2)))", "must be stateless"},
      {"topk(0)", "over 0 and at most 1"},
      {"topk(1.5)", "over 0 and at most 1"},
      {"topk(nan)", "over 0 and at most 1"},
      {"topk(0.1, scaled)", "token, global"},
      {"topk(0.1, values=quant(4))", "a scale per token or group"},
      {"topk(0.1, values=topk(0.1))", "a scale per token or group"},
      {"randomk(0.1, values=sign)", "a scale per token or group"},
      {"lowrank(0)", "rank from 1 to 128"},
      {"lowrank(129)", "rank from 1 to 128"},
      {"autoencoder", "number of channels"},
      {"autoencoder(0)", "number of channels"},
      {"autoencoder(65537)", "number of channels"},
      {"autoencoder(8, bf16)", "values=CODEC"},
      {"autoencoder(8, values=delta(quant(4)))", "values: none, bf16"},
      {"delta(autoencoder(8))", "can't be inside of another codec"},
      {"ef(autoencoder(8))", "can't be inside of another codec"},
      {"sign(row)", "an option: channel, token, group=32..256"},
      {"cocktail(0.1, 0.2)", "(SUBSET, RATIO, BITS)"},
      {"predict(quant(3), rate=2)", "rate=R"},
      {"predict(quant(3), context=0)", "context=1..4"},
      {"predict(quant(3), context=5)", "context=1..4"},
      {"predict(quant(3), nxt)", "context=1..4, next"},
      {"ef(quant(4)", "expected ')'"},
      {"quant(3, token, group=64)", "either 'token' or 'group', not both"},
      {"quant(3, channel, token)", "either 'channel' or 'token', not both"},
      {"quant(3, rms, rms)", "'rms' only once"},
      {"topk(0.1, token, global)", "either 'token' or 'global', not both"},
      {"topk(0.1, values=fp16, values=none)", "'values' only once"},
      {"delta(quant(2), cold=bf16, cold=fp16)", "'cold' only once"},
      {"predict(quant(2), context=2, context=3)", "'context' only once"},
  };
  for (const auto& [text, message] : cases) {
    absl::StatusOr<CodecSpec> spec = ParseCodec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_THAT(std::string(spec.status().message()), testing::HasSubstr(message)) << text;
  }
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "delta(";
  EXPECT_FALSE(ParseCodec(deep).ok());
}

TEST(CodecText, ALongTextIsShownAroundThePlaceAlone) {
  const std::string before(2000, '(');
  const std::string message(
      ParseCodec("quant(4) " + std::string(500, ' ') + "x" + before).status().message());
  EXPECT_LT(message.size(), 250u);
  EXPECT_NE(message.find("x((("), std::string::npos) << message;
  EXPECT_NE(message.find("column 510"), std::string::npos) << message;
}

TEST(CodecText, IdTellsCodecsApart) {
  EXPECT_NE(CodecId(*ParseCodec("quant(3)")), CodecId(*ParseCodec("quant(4)")));
  EXPECT_EQ(CodecId(*ParseCodec("quant( 3 )")), CodecId(*ParseCodec("quant(3,channel)")));
  EXPECT_EQ(CodecId(*ParseCodec("topk(0.05, token, values=bf16)")),
            CodecId(*ParseCodec("topk(.05)")));
  EXPECT_NE(CodecId(*ParseCodec("ef(quant(3))")), CodecId(*ParseCodec("lep(quant(3))")));
}

TEST(CodecText, NestedCodecsHaveOptionsOfTheirOwn) {
  EXPECT_TRUE(ParseCodec("delta(quant(2, token), cold=quant(8, group=64))").ok());
  EXPECT_TRUE(ParseCodec("topk(0.1, values=quant(4, token), global)").ok());
}

TEST(CodecText, PredictNeedsTokenIds) {
  EXPECT_FALSE(NeedsTokenIds(*ParseCodec("delta(quant(3), cold=bf16)")));
  EXPECT_TRUE(NeedsTokenIds(*ParseCodec("predict(none)")));
  EXPECT_TRUE(NeedsTokenIds(*ParseCodec("delta(quant(3), cold=predict(bf16)) | zstd")));
}

}  // namespace
}  // namespace isthmus
