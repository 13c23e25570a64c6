#include "worker/multilevel/mapping_choice.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::multilevel {
namespace {

using testing::HasSubstr;

const Shape kGpt2{12, 768, 12, 50257, 1024};

absl::StatusOr<Mapping> Down(const Asked& asked) {
  return ChooseMapping(Operator::kCoalesce, kGpt2, asked, std::nullopt);
}
absl::StatusOr<Mapping> Up(const Asked& asked, std::optional<Mapping> recorded = std::nullopt) {
  return ChooseMapping(Operator::kDecoalesce, kGpt2, asked, recorded);
}
std::string Error(const absl::StatusOr<Mapping>& mapping) {
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(mapping.status().message());
}

TEST(MappingChoice, BothAreHalvedWhereNothingIsNamed) {
  EXPECT_EQ(Down({})->width_factor, 2);
  EXPECT_EQ(Down({})->depth_factor, 2);
  EXPECT_EQ(Up({})->width_factor, 2);
}

TEST(MappingChoice, WhereOneAxisIsNamedTheOtherStays) {
  Asked layers;
  layers.layers = 4;
  EXPECT_EQ(Down(layers)->width_factor, 1);
  EXPECT_EQ(Down(layers)->depth_factor, 3);
  Asked width;
  width.width_factor = 6;
  EXPECT_EQ(Down(width)->width_factor, 6);
  EXPECT_EQ(Down(width)->depth_factor, 1);
  Asked both;
  both.hidden = 1536;
  both.heads = 24;
  both.layers = 36;
  EXPECT_EQ(Up(both)->width_factor, 2);
  EXPECT_EQ(Up(both)->depth_factor, 3);
}

TEST(MappingChoice, ARecordedCoalesceIsUndoneUnlessMoreIsNamed) {
  const Mapping recorded{4, 3, Groups::kAdjacent, Groups::kStrided, Tied::kEmbedding};
  EXPECT_EQ(Up({}, recorded)->width_factor, 4);
  EXPECT_EQ(Up({}, recorded)->depth_factor, 3);
  EXPECT_EQ(Up({}, recorded)->width, Groups::kAdjacent);
  Asked other;
  other.width_factor = 2;
  other.tied = Tied::kFinalNorm;
  EXPECT_EQ(Up(other, recorded)->width_factor, 2);
  EXPECT_EQ(Up(other, recorded)->depth_factor, 1);
  EXPECT_EQ(Up(other, recorded)->depth, Groups::kStrided);
  EXPECT_EQ(Up(other, recorded)->tied, Tied::kFinalNorm);
}

TEST(MappingChoice, AnotherModelGivesTheShape) {
  Asked asked;
  asked.like = Shape{24, 1536, 24, 50257, 1024};
  EXPECT_EQ(Up(asked)->width_factor, 2);
  EXPECT_EQ(Up(asked)->depth_factor, 2);
  asked.like->vocabulary = 256;
  EXPECT_THAT(Error(Up(asked)), HasSubstr("a vocabulary of 256"));
  asked.layers = 24;
  EXPECT_THAT(Error(Up(asked)), HasSubstr("leave out the flags"));
}

TEST(MappingChoice, WhatDoesNotDivideIsNamed) {
  Asked asked;
  asked.hidden = 500;
  EXPECT_THAT(Error(Down(asked)), HasSubstr("--hidden 500: 500 is no divisor of 768 channels"));
  EXPECT_THAT(Error(Up(asked)), HasSubstr("makes no fewer of them"));
  asked.hidden = 1536;
  EXPECT_THAT(Error(Down(asked)), HasSubstr("makes no more of them"));
  asked = {};
  asked.layers = 5;
  EXPECT_THAT(Error(Down(asked)), HasSubstr("--layers 5: 5 is no divisor of 12 layers"));
}

TEST(MappingChoice, SizesThatContradictAreRefused) {
  Asked asked;
  asked.hidden = 384;
  asked.heads = 4;
  EXPECT_THAT(Error(Down(asked)), HasSubstr("--hidden 384 (factor 2) and --heads 4 (factor 3)"));
  EXPECT_THAT(Error(Down(asked)), HasSubstr("the size of a head stays 64"));
  asked = {};
  asked.depth_factor = 2;
  asked.layers = 4;
  EXPECT_THAT(Error(Down(asked)), HasSubstr("--depth-factor 2 and --layers 4 (factor 3)"));
}

}  // namespace
}  // namespace isthmus::multilevel
