#include "proto/codec_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(CodecText, RoundTripsItsShortestForm) {
  for (const char* text :
       {"none", "bf16", "fp16", "quant(4)", "quant(3, token)", "quant(3, group=64, symmetric)", "quant(2, rms, stochastic) | zstd",
        "delta(quant(3))", "delta(quant(3), cold=bf16) | zstd", "none | zstd"}) {
    absl::StatusOr<CodecSpec> spec = ParseCodec(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(FormatCodec(*spec), text);
    EXPECT_TRUE(ValidateCodec(*spec).ok());
  }
}

TEST(CodecText, ErrorsNameTheColumnAndWhatWasExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "expected a codec"},          {"quatn(4)", "column 1: expected a codec"}, {"quant(9)", "bits from 1 to 8"},
      {"quant(4", "expected ')'"},       {"quant(4, grup=3)", "expected an option"}, {"quant(4, group=7)", "group=32..256"},
      {"delta(quant(3)", "expected ')'"}, {"none | gzip", "'zstd' after '|'"},        {"none none", "the end of the codec"},
      {"delta(delta(quant(2)))", "must be stateless"},
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

TEST(CodecText, IdTellsCodecsApart) {
  EXPECT_NE(CodecId(*ParseCodec("quant(3)")), CodecId(*ParseCodec("quant(4)")));
  EXPECT_EQ(CodecId(*ParseCodec("quant( 3 )")), CodecId(*ParseCodec("quant(3,channel)")));
}

}  // namespace
}  // namespace isthmus
