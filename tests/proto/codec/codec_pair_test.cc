#include "proto/codec/codec_pair.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

CodecSpec Spec(const char* text) { return ParseCodec(text).value(); }

TEST(CodecPair, KeptTakesOverHowManyIndicesThereAre) {
  const CodecSpec kept = Spec("kept(bf16) | zstd");
  CodecSpec bound = *BindBackward(Spec("topk(0.3, values=none)"), kept);
  EXPECT_EQ(bound.ratio(), 0.3);
  EXPECT_FALSE(bound.global());
  EXPECT_FALSE(bound.scaled());
  EXPECT_TRUE(bound.zstd());
  EXPECT_EQ(FormatCodec(bound), "kept(bf16) | zstd");
  EXPECT_TRUE(BindBackward(Spec("topk(0.3, global)"), kept)->global());
  bound = *BindBackward(Spec("randomk(0.1, scaled)"), kept);
  EXPECT_TRUE(bound.global());
  EXPECT_TRUE(bound.scaled());
  EXPECT_TRUE(ValidateCodec(bound).ok());
}

TEST(CodecPair, OthersAreAsTheyAre) {
  for (const char* text : {"none", "topk(0.2)", "quant(4)"}) {
    const CodecSpec spec = Spec(text);
    EXPECT_EQ(BindBackward(Spec("quant(2)"), spec)->SerializeAsString(), spec.SerializeAsString());
    EXPECT_TRUE(CheckBound(Spec("topk(0.1)"), spec).ok());
  }
}

TEST(CodecPair, ForwardCodecsThatKeepNoIndicesAreRefused) {
  for (const char* forward :
       {"none", "quant(4)", "delta(topk(0.1))", "lep(topk(0.1))", "lowrank(4)",
        "cocktail(0.1, 0.2, 4)", "randomk(0.5, values=topk(0.1))"}) {
    const absl::Status status = BindBackward(Spec(forward), Spec("kept")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << forward;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(forward) + " keeps none"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("topk(RATIO)"));
  }
}

TEST(CodecPair, APlanThatIsNotBoundIsFound) {
  const CodecSpec forward = Spec("topk(0.3)");
  EXPECT_TRUE(CheckBound(forward, *BindBackward(forward, Spec("kept"))).ok());
  for (const char* other : {"topk(0.2)", "topk(0.3, global)", "randomk(0.3)"}) {
    const absl::Status status = CheckBound(forward, *BindBackward(Spec(other), Spec("kept")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("not bound to")) << other;
  }
  EXPECT_FALSE(CheckBound(forward, Spec("kept")).ok());
  EXPECT_FALSE(CheckBound(Spec("none"), Spec("kept")).ok());
}

}  // namespace
}  // namespace isthmus
