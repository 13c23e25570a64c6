#include "worker/multilevel/record.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multilevel/random_model.h"

namespace isthmus::multilevel {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const Shape kShape{2, 8, 2, 11, 5};

std::string Record(const std::string& config, Operation operation) {
  return RecordOperation(config, kShape, operation).value().config;
}

TEST(Record, KeepsWhatItDoesNotKnow) {
  const json before = {{"n_layer", 4},  {"n_embd", 16},   {"n_head", 4},
                       {"n_inner", 64}, {"mine", {1, 2}}, {"dtype", "bfloat16"}};
  const json after = json::parse(Record(before.dump(), {}));
  EXPECT_EQ(after["n_layer"], 2);
  EXPECT_EQ(after["n_embd"], 8);
  EXPECT_EQ(after["n_head"], 2);
  EXPECT_EQ(after["n_inner"], 32);
  EXPECT_EQ(after["mine"], json({1, 2}));
  EXPECT_EQ(after["dtype"], "float32");
  EXPECT_EQ(after.count("torch_dtype"), 0U);
}

TEST(Record, ListsOperationsTheOldestFirst) {
  const Mapping odd{3, 4, Groups::kAdjacent, Groups::kStrided, Tied::kEmbedding};
  const std::string twice = Record(Record(Gpt2ConfigJson(SpecOf(kShape)), {Operator::kCoalesce}),
                                   {Operator::kCoalesce, odd});
  const json list = json::parse(twice)[kRecordKey];
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0], json({{"operation", "coalesce"},
                           {"width_factor", 2},
                           {"depth_factor", 2},
                           {"width_groups", "strided"},
                           {"depth_groups", "adjacent"},
                           {"tied", "final-norm"}}));
  // What is to be undone is the last that was not: three levels find their way back.
  EXPECT_EQ(CoalesceToUndo(twice).value()->width_factor, 3);
  EXPECT_EQ(CoalesceToUndo(twice).value()->depth, Groups::kStrided);
  EXPECT_EQ(CoalesceToUndo(twice).value()->tied, Tied::kEmbedding);
  const std::string up = Record(twice, {Operator::kDecoalesce, odd});
  EXPECT_EQ(CoalesceToUndo(up).value()->width_factor, 2);
  const std::string mixed = Record(up, {Operator::kInterpolate, {}, 0.25});
  EXPECT_EQ(json::parse(mixed)[kRecordKey][3],
            json({{"operation", "interpolate"}, {"alpha", 0.25}}));
  EXPECT_EQ(CoalesceToUndo(mixed).value()->width_factor, 2);
  EXPECT_EQ(CoalesceToUndo(Record(mixed, {Operator::kDecoalesce})).value(), std::nullopt);
}

TEST(Record, WhatIsNoneOfOursIsRefused) {
  for (const char* text : {R"({"isthmus_multilevel": 3})", R"({"isthmus_multilevel": [3]})",
                           R"({"isthmus_multilevel": [{"operation": 1}]})"}) {
    EXPECT_THAT(std::string(CoalesceToUndo(text).status().message()), HasSubstr("no list")) << text;
    EXPECT_FALSE(RecordOperation(text, kShape, {}).ok()) << text;
  }
  EXPECT_THAT(std::string(CoalesceToUndo(R"({"isthmus_multilevel": [{"operation": "coalesce",
                                             "width_factor": "2"}]})")
                              .status()
                              .message()),
              HasSubstr("without factors"));
  EXPECT_FALSE(CoalesceToUndo("[]").ok());
  EXPECT_EQ(CoalesceToUndo("{}").value(), std::nullopt);
}

TEST(Record, NamesAreReadBack) {
  for (const Groups g : {Groups::kStrided, Groups::kAdjacent})
    EXPECT_EQ(GroupsOf(GroupsName(g)), g);
  for (const Tied t : {Tied::kFinalNorm, Tied::kEmbedding}) EXPECT_EQ(TiedOf(TiedName(t)), t);
  EXPECT_EQ(GroupsOf("halves"), std::nullopt);
  EXPECT_EQ(TiedOf(""), std::nullopt);
}

}  // namespace
}  // namespace isthmus::multilevel
