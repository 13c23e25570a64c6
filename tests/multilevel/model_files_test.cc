// Hostile and unusual directories: each refusal names the file and the tensor.
#include "worker/multilevel/model_files.h"

#include <limits>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multilevel/random_model.h"
#include "tests/temp_directory.h"

namespace isthmus::multilevel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Shape kShape{2, 8, 2, 11, 5};
constexpr char kNorm[] = "transformer.ln_f.weight";

class ModelFilesTest : public testing::Test {
 protected:
  ModelFilesTest() { WriteModelDir(dir_, kShape, model_); }
  void Weights(const Model& model, bool prefix = true) {
    WriteText(file_, WeightsOf(kShape, model, prefix));
  }
  std::string Error() {
    const auto opened = ModelFiles::Open(dir_);
    EXPECT_FALSE(opened.ok());
    return std::string(opened.status().message());
  }
  std::vector<float> Norm() {
    std::vector<float> row(8);
    EXPECT_TRUE(ModelFiles::Open(dir_)->ReadRow(kNorm, 0, absl::MakeSpan(row)).ok());
    return row;
  }
  // One item instead of, or beside, the model's own.
  void Replace(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
               const std::string& data) {
    Model model = model_;
    model.erase(name);
    const std::string rest = WeightsOf(kShape, model);
    const auto parsed = ParseSafetensors(rest).value();
    std::vector<SafetensorsItem> items = {{name, dtype, std::move(shape), data}};
    for (const auto& [other, entry] : parsed)
      items.push_back({other, entry.dtype, entry.shape, entry.data});
    WriteText(file_, WriteSafetensors(std::move(items), {}).value());
  }

  TempDirectory temp_;
  const std::string dir_ = temp_.path() + "/model", file_ = dir_ + "/model.safetensors";
  Model model_ = RandomModel(kShape, 5);
};

TEST_F(ModelFilesTest, ReadsRowsWithAndWithoutThePrefix) {
  for (const bool prefix : {true, false}) {
    Weights(model_, prefix);
    const auto files = ModelFiles::Open(dir_);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->shape(), kShape);
    std::vector<float> row(24);
    ASSERT_TRUE(files->ReadRow("transformer.h.1.attn.c_attn.weight", 3, absl::MakeSpan(row)).ok());
    EXPECT_EQ(row[2], model_["transformer.h.1.attn.c_attn.weight"][3 * 24 + 2]);
  }
}

TEST_F(ModelFilesTest, ReadsHalves) {
  Replace(kNorm, "BF16", {8}, std::string("\x80\x3f", 2) + std::string(14, '\0'));
  EXPECT_EQ(Norm()[0], 1);
  Replace(kNorm, "F16", {8}, std::string("\x00\x3c", 2) + std::string(14, '\0'));
  EXPECT_EQ(Norm()[0], 1);
}

TEST_F(ModelFilesTest, ReadsShards) {
  Model first = model_, second;
  second.insert(first.extract(kNorm));
  WriteText(dir_ + "/a.safetensors", WeightsOf(kShape, first));
  WriteText(dir_ + "/b.safetensors", WeightsOf(kShape, second));
  std::filesystem::remove(file_);
  EXPECT_THAT(Error(), HasSubstr("has no model.safetensors"));
  const std::string index = file_ + ".index.json";
  WriteText(index, R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");
  EXPECT_EQ(Norm(), model_[kNorm]);
  WriteText(index, R"({"weight_map": {"x": "../a.safetensors"}})");
  EXPECT_THAT(Error(), HasSubstr("no file beside it"));
  for (const char* junk : {"{}", "[", R"({"weight_map": 3})", R"({"weight_map": [1]})"}) {
    WriteText(index, junk);
    EXPECT_THAT(Error(), HasSubstr("index.json")) << junk;
  }
}

TEST_F(ModelFilesTest, TruncatedAndJunkFilesAreNamed) {
  const std::string whole = ReadText(file_);
  for (const size_t bytes : {size_t{0}, size_t{5}, size_t{100}, whole.size() - 1}) {
    WriteText(file_, whole.substr(0, bytes));
    EXPECT_THAT(Error(), AllOf(HasSubstr(file_), HasSubstr("safetensors"))) << bytes;
  }
  WriteText(file_, std::string(1000, 'x'));
  EXPECT_THAT(Error(), HasSubstr(file_));
  WriteText(dir_ + "/config.json", "{");
  EXPECT_THAT(Error(), HasSubstr("config.json: it is not a JSON object"));
  std::filesystem::remove(dir_ + "/config.json");
  EXPECT_THAT(Error(), HasSubstr("config.json"));
}

TEST_F(ModelFilesTest, AFileThatShrinksIsNoticed) {
  const auto files = ModelFiles::Open(dir_).value();
  std::filesystem::resize_file(file_, 2000);
  std::vector<float> row(8);
  EXPECT_THAT(files.ReadRow("transformer.wte.weight", 10, absl::MakeSpan(row)).code(),
              absl::StatusCode::kDataLoss);
}

TEST_F(ModelFilesTest, OtherTensorsAreNamed) {
  Model model = model_;
  model.erase(kNorm);
  Weights(model);
  EXPECT_THAT(Error(), HasSubstr("tensor transformer.ln_f.weight is missing"));
  Replace(kNorm, "F32", {4}, std::string(16, '\0'));
  EXPECT_THAT(Error(),
              AllOf(HasSubstr(file_), HasSubstr(kNorm), HasSubstr("is [4]"), HasSubstr("has [8]")));
  Replace(kNorm, "I32", {8}, std::string(32, '\0'));
  EXPECT_THAT(Error(), HasSubstr("has type \"I32\""));
  Replace("isthmus.boundary.1.encoder.weight", "F32", {1}, std::string(4, '\0'));
  EXPECT_THAT(Error(), HasSubstr("is none of a GPT-2 of 2 layers"));
  Replace("transformer.h.0.attn.bias", "F32", {1}, std::string(4, '\0'));  // an old mask
  EXPECT_TRUE(ModelFiles::Open(dir_).ok());
}

TEST_F(ModelFilesTest, WhatIsNotFiniteIsNamedByItsElement) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    model_[kNorm][3] = bad;
    Weights(model_);
    std::vector<float> row(8);
    const absl::Status status = ModelFiles::Open(dir_)->ReadRow(kNorm, 0, absl::MakeSpan(row));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file_), HasSubstr("transformer.ln_f.weight: element 3 is ")));
  }
}

TEST_F(ModelFilesTest, OnlyATiedHeadIsTaken) {
  const auto& embedding = model_["transformer.wte.weight"];
  std::string head(reinterpret_cast<const char*>(embedding.data()), embedding.size() * 4);
  Replace("lm_head.weight", "F32", {11, 8}, head);
  EXPECT_TRUE(ModelFiles::Open(dir_).ok());
  head[4 * 8 * 4 + 3] ^= 1;
  Replace("lm_head.weight", "F32", {11, 8}, head);
  EXPECT_THAT(Error(), HasSubstr("lm_head.weight differs from wte.weight in row 4"));
  Replace("lm_head.weight", "F32", {8}, std::string(32, '\0'));
  EXPECT_THAT(Error(), HasSubstr("another shape"));
  Weights(model_);
  WriteText(
      dir_ + "/config.json",
      absl::StrReplaceAll(ReadText(dir_ + "/config.json"),
                          {{"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"}}));
  EXPECT_THAT(Error(), HasSubstr("only a tied head"));
}

}  // namespace
}  // namespace isthmus::multilevel
