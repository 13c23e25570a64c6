// The operators on directories: what is written, that nothing is written half, and what is refused.
#include "worker/multilevel/transform.h"

#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multilevel/random_model.h"
#include "tests/temp_directory.h"

namespace isthmus::multilevel {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const Shape kSmall{2, 8, 2, 11, 5};

class TransformTest : public testing::Test {
 protected:
  TransformTest() { WriteModelDir(At("small"), kSmall, model_); }
  std::string At(const std::string& name) { return temp_.path() + "/" + name; }
  absl::StatusOr<Written> Run(Operator kind, const std::string& from, const std::string& to,
                              bool replace = false, Mapping mapping = {}) {
    Operation operation;
    operation.kind = kind;
    operation.mapping = mapping;
    return Transform(ModelFiles::Open(At(from)).value(), operation, {At(to), replace});
  }
  absl::StatusOr<Written> Mix(const std::string& a, const std::string& b, double alpha) {
    return InterpolateModels(ModelFiles::Open(At(a)).value(), ModelFiles::Open(At(b)).value(),
                             alpha, {At("mixed"), false});
  }
  int Entries() {
    return static_cast<int>(
        std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator()));
  }
  Model Read(const std::string& name) {
    Model out;
    const std::string bytes = ReadText(At(name) + "/model.safetensors");
    const auto parsed = ParseSafetensors(bytes).value();
    for (const auto& [tensor, entry] : parsed) out[tensor] = ToFloats(entry).value();
    return out;
  }

  TempDirectory temp_;
  const Model model_ = RandomModel(kSmall, 9);
};

TEST_F(TransformTest, ThereAndBackGivesTheModelAndItsTokenizer) {
  WriteText(At("small") + "/tokenizer.json", "{}");
  WriteText(At("small") + "/README", "not copied");
  const auto up = Run(Operator::kDecoalesce, "small", "large");
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_EQ(up->shape, (Shape{4, 16, 4, 11, 5}));
  EXPECT_EQ(up->bytes, static_cast<int64_t>(fs::file_size(At("large") + "/model.safetensors")));
  const auto opened = ModelFiles::Open(At("large"));  // a sound model again
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->shape(), up->shape);
  ASSERT_TRUE(Run(Operator::kCoalesce, "large", "back").ok());
  EXPECT_EQ(Read("back"), model_);
  EXPECT_EQ(ReadText(At("back") + "/tokenizer.json"), "{}");
  EXPECT_FALSE(fs::exists(At("large") + "/README"));
  const auto config = nlohmann::json::parse(ReadText(At("back") + "/config.json"));
  EXPECT_EQ(config["isthmus_multilevel"].size(), 2U);
  EXPECT_EQ(config["architectures"][0], "GPT2LMHeadModel");
  const std::string weights = ReadText(At("back") + "/model.safetensors");
  EXPECT_THAT(weights.substr(0, 2000),
              AllOf(HasSubstr(R"("format":"pt")"), HasSubstr("isthmus_multilevel")));
  EXPECT_EQ(Entries(), 3);
}

TEST_F(TransformTest, WhatIsThereIsNotOverwritten) {
  fs::create_directory(At("out"));
  WriteText(At("out") + "/mine", "x");
  const auto refused = Run(Operator::kCoalesce, "small", "out");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--force"));
  EXPECT_EQ(ReadText(At("out") + "/mine"), "x");
  ASSERT_TRUE(Run(Operator::kCoalesce, "small", "out", true).ok());
  EXPECT_FALSE(fs::exists(At("out") + "/mine"));
  ASSERT_TRUE(Run(Operator::kCoalesce, "small", "small", true).ok());  // over its own source
  EXPECT_EQ(ModelFiles::Open(At("small"))->shape().layers, 1);
  EXPECT_EQ(Entries(), 2);
}

TEST_F(TransformTest, AFaultLeavesNothingBehind) {
  Model bad = model_;
  bad["transformer.wte.weight"][87] = std::numeric_limits<float>::quiet_NaN();  // the very last
  WriteModelDir(At("bad"), kSmall, bad);
  const auto broken = Run(Operator::kCoalesce, "bad", "out");
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.status().message()),
              AllOf(HasSubstr("bad/model.safetensors"),
                    HasSubstr("transformer.wte.weight: element 87 is nan")));
  EXPECT_EQ(Entries(), 2);
  const auto factor = Run(Operator::kCoalesce, "small", "out", false, {4, 1});
  EXPECT_THAT(std::string(factor.status().message()),
              AllOf(HasSubstr(At("small")), HasSubstr("width factor 4 does not divide")));
  EXPECT_FALSE(Mix("small", "bad", 0).ok());  // also where its weight is none
  EXPECT_EQ(Entries(), 2);
}

TEST_F(TransformTest, InterpolationIsOfTwoModelsOfOneShape) {
  const Model other = RandomModel(kSmall, 10);
  WriteModelDir(At("other"), kSmall, other);
  ASSERT_TRUE(Mix("small", "other", 0).ok());
  EXPECT_EQ(Read("mixed"), model_);
  fs::remove_all(At("mixed"));
  ASSERT_TRUE(Mix("small", "other", 1).ok());
  EXPECT_EQ(Read("mixed"), other);
  fs::remove_all(At("mixed"));
  const auto half = Mix("small", "other", 0.25);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->history, R"([{"operation":"interpolate","alpha":0.25}])");
  const std::string name = "transformer.h.1.mlp.c_proj.weight";
  EXPECT_FLOAT_EQ(Read("mixed")[name][3], 0.75F * model_.at(name)[3] + 0.25F * other.at(name)[3]);
}

TEST_F(TransformTest, InterpolationRefusesWhatDoesNotMatch) {
  for (const double alpha : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(std::string(Mix("small", "small", alpha).status().message()),
                HasSubstr("not within 0 and 1"));
  ASSERT_TRUE(Run(Operator::kDecoalesce, "small", "large").ok());
  EXPECT_THAT(std::string(Mix("small", "large", 0.5).status().message()),
              AllOf(HasSubstr("2 layers of width 8, 2 heads"),
                    HasSubstr("4 layers of width 16, 4 heads"), HasSubstr("de-coalesce")));
  WriteModelDir(At("other"), kSmall, model_);
  const std::string config = ReadText(At("other") + "/config.json");
  WriteText(At("other") + "/config.json", absl::StrReplaceAll(config, {{"1e-05", "1e-03"}}));
  EXPECT_THAT(std::string(Mix("small", "other", 0.5).status().message()),
              HasSubstr("layer_norm_epsilon"));
  EXPECT_FALSE(fs::exists(At("mixed")));
}

}  // namespace
}  // namespace isthmus::multilevel
