#include "proto/codec/codec_check.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// What no text gives, but the wire may.
TEST(CodecCheck, RefusesBitsOfBuffersThatThereAreNot) {
  CodecSpec spec = *ParseCodec("delta(quant(3))");
  for (int bits : {0, 2, 4, 8}) {
    spec.set_buffer_bits(bits);
    EXPECT_TRUE(ValidateCodec(spec).ok()) << bits;
  }
  for (int bits : {-1, 1, 3, 16, 1 << 20}) {
    spec.set_buffer_bits(bits);
    EXPECT_THAT(ValidateCodec(spec).message(), HasSubstr("not 2, 4 or 8")) << bits;
  }
  spec = *ParseCodec("predict(quant(3))");
  spec.set_buffer_bits(8);
  EXPECT_THAT(ValidateCodec(spec).message(), HasSubstr("of a delta"));
}

TEST(CodecCheck, RefusesAKeptWithinAnotherOrOfNoShare) {
  CodecSpec spec = *ParseCodec("kept");
  for (double ratio : {0.0, 0.1, 1.0}) {  // 0: not bound yet
    spec.set_ratio(ratio);
    EXPECT_TRUE(ValidateCodec(spec).ok()) << ratio;
  }
  for (double ratio : {-0.1, 1.5, std::nan("")}) {
    spec.set_ratio(ratio);
    EXPECT_THAT(ValidateCodec(spec).message(), HasSubstr("the forward codec's ratio")) << ratio;
  }
  CodecSpec outer = *ParseCodec("ef(bf16)");
  *outer.mutable_inner() = *ParseCodec("kept");
  EXPECT_THAT(ValidateCodec(outer).message(), HasSubstr("not a part of another one"));
  spec = *ParseCodec("kept(quant(8))");
  spec.mutable_inner()->clear_scale();
  EXPECT_THAT(ValidateCodec(spec).message(), HasSubstr("per token or group"));
}

TEST(CodecCheck, RefusesKindsItDoesNotKnowAndWrappersOfNothing) {
  CodecSpec spec;
  spec.set_kind(static_cast<CodecSpec::Kind>(99));
  EXPECT_THAT(ValidateCodec(spec).message(), HasSubstr("codec kind 99"));
  spec.set_kind(CodecSpec::DELTA);
  EXPECT_THAT(ValidateCodec(spec).message(), HasSubstr("no inner codec"));
}

}  // namespace
}  // namespace isthmus
