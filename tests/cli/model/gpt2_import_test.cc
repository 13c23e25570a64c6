#include "coordinator/cli/model/gpt2_import.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/model/small_gpt2.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

class Gpt2ImportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/isthmus_import_test.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    WriteSmallGpt2(dir_, "");
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Config(const std::string& key, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(Gpt2ConfigJson(SmallGpt2Model()));
    json[key] = value;
    std::ofstream(dir_ + "/config.json") << json;
  }
  const std::string& Bytes(const ImportedGpt2& model) {  // what would be uploaded
    bytes_.clear();
    EXPECT_TRUE(model.weights
                    .Write([&](absl::string_view piece) {
                      bytes_.append(piece.data(), piece.size());
                      return true;
                    })
                    .ok());
    EXPECT_EQ(model.weights.bytes(), static_cast<int64_t>(bytes_.size()));
    EXPECT_EQ(model.weights.checksum(), Hash64(bytes_));
    return bytes_;
  }
  std::string Error() { return std::string(ReadGpt2(dir_, SmallGpt2Model()).status().message()); }

  std::string dir_;
  std::string bytes_;
};

TEST_F(Gpt2ImportTest, NamesGetThePrefixAndMasksAreLeftOut) {
  for (const char* prefix : {"", "transformer."}) {
    WriteSmallGpt2(dir_, prefix);
    const auto model = ReadGpt2(dir_, SmallGpt2Model());
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(model->warnings.empty());
    const auto tensors = ParseSafetensors(Bytes(*model));
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ(tensors->size(), 4u + 2 * 12);
    EXPECT_EQ(ToFloats(tensors->at("transformer.wpe.weight"))->at(0), 2);
    EXPECT_EQ(tensors->count("transformer.h.0.attn.bias"), 0u);
  }
}

TEST_F(Gpt2ImportTest, HalfPrecisionBecomesF32) {
  std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << SmallGpt2Weights("", "BF16");
  const auto model = ReadGpt2(dir_, SmallGpt2Model());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tensors = ParseSafetensors(Bytes(*model));
  EXPECT_EQ(tensors->at("transformer.ln_f.bias").dtype, "F32");
  EXPECT_EQ(ToFloats(tensors->at("transformer.ln_f.bias"))->at(7), 4);
}

TEST_F(Gpt2ImportTest, ALongerContextIsCut) {
  Config("n_positions", 16);
  std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << SmallGpt2Weights("", "F32", 16);
  const auto model = ReadGpt2(dir_, SmallGpt2Model());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->warnings, testing::ElementsAre(HasSubstr("the first 4 are kept")));
  EXPECT_EQ(ParseSafetensors(Bytes(*model))->at("transformer.wpe.weight").shape,
            (std::vector<int64_t>{4, 8}));
}

TEST_F(Gpt2ImportTest, Shards) {
  std::filesystem::rename(dir_ + "/model.safetensors", dir_ + "/model-00001-of-00001.safetensors");
  EXPECT_THAT(Error(), HasSubstr("no model.safetensors"));
  std::ofstream(dir_ + "/model.safetensors.index.json")
      << R"({"weight_map": {"wte.weight": "model-00001-of-00001.safetensors"}})";
  EXPECT_EQ(Error(), "");
  std::ofstream(dir_ + "/model.safetensors.index.json")
      << R"({"weight_map": {"wte.weight": "../../etc/passwd"}})";
  EXPECT_THAT(Error(), HasSubstr("is not a file beside it"));
  std::ofstream(dir_ + "/model.safetensors.index.json") << R"({"weight_map": 3})";
  EXPECT_THAT(Error(), HasSubstr("names 0 files"));
}

TEST_F(Gpt2ImportTest, EveryDifferenceIsNamed) {
  ModelSpec model = SmallGpt2Model();
  model.set_layers(3);
  model.set_hidden(16);
  model.set_heads(4);
  model.set_vocabulary(50257);
  model.set_context(8);
  const std::string error(ReadGpt2(dir_, model).status().message());
  EXPECT_THAT(error, HasSubstr(dir_));
  EXPECT_THAT(error, HasSubstr("n_layer is 2, but model.layers is 3"));
  EXPECT_THAT(error, HasSubstr("n_embd is 8, but model.hidden is 16"));
  EXPECT_THAT(error, HasSubstr("n_head is 2, but model.heads is 4"));
  EXPECT_THAT(error, HasSubstr("vocab_size is 256, but model.vocabulary is 50257"));
  EXPECT_THAT(error, HasSubstr("n_positions is 4, less than model.context (8)"));
}

TEST_F(Gpt2ImportTest, OtherModelsAreRefused) {
  Config("model_type", "llama");
  EXPECT_THAT(Error(), HasSubstr("model_type is \"llama\""));
  Config("activation_function", "relu");
  EXPECT_THAT(Error(), HasSubstr("only \"gelu_new\" or \"gelu_pytorch_tanh\" can be trained"));
  Config("activation_function", "gelu_pytorch_tanh");
  EXPECT_EQ(Error(), "");
  Config("add_cross_attention", true);
  EXPECT_THAT(Error(), HasSubstr("add_cross_attention is true; only false can be trained"));
  Config("scale_attn_by_inverse_layer_idx", true);
  EXPECT_THAT(Error(), HasSubstr("scale_attn_by_inverse_layer_idx is true"));
  Config("scale_attn_weights", "no");
  EXPECT_THAT(Error(), HasSubstr("scale_attn_weights is \"no\""));
  Config("reorder_and_upcast_attn", true);  // the same function
  EXPECT_EQ(Error(), "");
  Config("tie_word_embeddings", false);
  EXPECT_THAT(Error(), HasSubstr("a head of its own. Set model.tied: false"));
  Config("n_inner", 7);
  EXPECT_THAT(Error(), HasSubstr("n_inner is 7"));
  Config("n_layer", "two");
  EXPECT_THAT(Error(), HasSubstr("no whole number 'n_layer'"));
  std::ofstream(dir_ + "/config.json") << "[]";
  EXPECT_THAT(Error(), HasSubstr("not a JSON object"));
  std::filesystem::remove(dir_ + "/config.json");
  EXPECT_EQ(ReadGpt2(dir_, SmallGpt2Model()).status().code(), absl::StatusCode::kNotFound);
}

// The file of the small model with one more tensor, all of `value`.
class Gpt2ExtraTest : public Gpt2ImportTest {
 protected:
  void Add(const std::string& name, const std::vector<int64_t>& shape, float value,
           float last_value) {
    const std::string bytes = SmallGpt2Weights("transformer.");
    const auto tensors = ParseSafetensors(bytes).value();
    std::vector<SafetensorsItem> items;
    for (const auto& [known, entry] : tensors)
      items.push_back({known, entry.dtype, entry.shape, entry.data});
    size_t count = 1;
    for (int64_t n : shape) count *= static_cast<size_t>(n);
    std::vector<float> values(count, value);
    values.back() = last_value;
    items.push_back({name,
                     "F32",
                     shape,
                     {reinterpret_cast<const char*>(values.data()), count * sizeof(float)}});
    std::ofstream(dir_ + "/model.safetensors", std::ios::binary)
        << WriteSafetensors(std::move(items), {}).value();
  }
};

// wte holds ones alone.
TEST_F(Gpt2ExtraTest, AHeadThatIsTheEmbeddingIsTaken) {
  Add("lm_head.weight", {256, 8}, 1, 1);
  const auto model = ReadGpt2(dir_, SmallGpt2Model());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->warnings.empty());
  const auto tensors = ParseSafetensors(Bytes(*model)).value();
  EXPECT_EQ(tensors.size(), 4u + 2 * 12);
  size_t bytes = 0;
  for (const auto& [name, entry] : tensors) bytes += entry.data.size();
  EXPECT_EQ(model->weights.elements(), static_cast<int64_t>(bytes / 4));
}

TEST_F(Gpt2ExtraTest, AHeadOfItsOwnIsReadForAJobThatHasOne) {
  ModelSpec model = SmallGpt2Model();
  model.set_tied(false);
  Config("tie_word_embeddings", false);
  EXPECT_THAT(ReadGpt2(dir_, model).status().message(), HasSubstr("lm_head.weight is missing"));
  Add("lm_head.weight", {256, 8}, 1, 1.5);
  const auto read = ReadGpt2(dir_, model);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->warnings.empty());
  const auto tensors = ParseSafetensors(Bytes(*read)).value();
  EXPECT_EQ(tensors.size(), 5u + 2 * 12);
  EXPECT_EQ(ToFloats(tensors.at("lm_head.weight"))->back(), 1.5);
  EXPECT_EQ(ToFloats(tensors.at("transformer.wte.weight"))->back(), 1);
  Add("lm_head.weight", {300, 8}, 1, 1);
  EXPECT_THAT(ReadGpt2(dir_, model).status().message(),
              HasSubstr("lm_head.weight has the shape [300, 8], the job needs [256, 8]"));
}

TEST_F(Gpt2ExtraTest, ATiedHeadIsCopiedForAJobThatHasOneOfItsOwn) {
  ModelSpec model = SmallGpt2Model();
  model.set_tied(false);
  const auto read = ReadGpt2(dir_, model);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->warnings, testing::ElementsAre(HasSubstr("begins as a copy")));
  const auto tensors = ParseSafetensors(Bytes(*read)).value();
  EXPECT_EQ(tensors.at("lm_head.weight").data, tensors.at("transformer.wte.weight").data);
}

TEST_F(Gpt2ExtraTest, AHeadOfItsOwnIsRefusedWhereItWouldBeTied) {
  Add("lm_head.weight", {256, 8}, 1, 1.5);
  EXPECT_THAT(Error(),
              HasSubstr("lm_head.weight differs from wte.weight in 1 of 2048 elements (the "
                        "first: 1.5 instead of 1); config.json says that the two are tied"));
  Add("lm_head.weight", {300, 8}, 1, 1);
  EXPECT_THAT(Error(),
              HasSubstr("lm_head.weight has the shape [300, 8], wte.weight [256, 8]; config.json"));
}

TEST_F(Gpt2ExtraTest, WhatIsLeftOutIsNamed) {
  Add("score.weight", {2, 8}, 1, 1);
  const auto model = ReadGpt2(dir_, SmallGpt2Model());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->warnings, testing::ElementsAre(HasSubstr("left out: score.weight")));
  Add("wte.weight", {256, 8}, 2, 2);
  EXPECT_THAT(Error(), HasSubstr("transformer.wte.weight is there twice"));
}

TEST_F(Gpt2ImportTest, TheNormsEpsilonIsTheModels) {
  EXPECT_EQ(ReadGpt2(dir_, SmallGpt2Model())->norm_epsilon, 1e-5);
  Config("layer_norm_epsilon", 1e-3);
  EXPECT_EQ(ReadGpt2(dir_, SmallGpt2Model())->norm_epsilon, 1e-3);
  ModelSpec model = SmallGpt2Model();
  model.set_norm_epsilon(1e-3);
  EXPECT_TRUE(ReadGpt2(dir_, model).ok());
  model.set_norm_epsilon(1e-5);
  EXPECT_THAT(std::string(ReadGpt2(dir_, model).status().message()),
              HasSubstr("layer_norm_epsilon is 0.001, but model.norm_epsilon is 1e-05: leave it"));
  for (const nlohmann::json& bad :
       {nlohmann::json("small"), nlohmann::json(0), nlohmann::json(-1)}) {
    Config("layer_norm_epsilon", bad);
    EXPECT_THAT(Error(), HasSubstr("layer_norm_epsilon is " + bad.dump())) << bad;
  }
}

TEST_F(Gpt2ImportTest, DropoutIsNotUsedAndSaidSo) {
  Config("attn_pdrop", 0.1);
  EXPECT_THAT(ReadGpt2(dir_, SmallGpt2Model())->warnings,
              testing::ElementsAre(HasSubstr("(attn_pdrop 0.1); Isthmus trains without dropout")));
}

TEST_F(Gpt2ImportTest, DamagedAndIncompleteWeights) {
  std::string bytes = SmallGpt2Weights("");
  std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << bytes.substr(0, 100);
  EXPECT_NE(Error(), "");
  std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << WriteSafetensors({}, {}).value();
  EXPECT_THAT(Error(), HasSubstr("transformer.h.0.attn.c_attn.bias is missing"));
  EXPECT_THAT(Error(), HasSubstr("and 18 more"));
  std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << SmallGpt2Weights("", "F32", 3);
  EXPECT_THAT(Error(),
              HasSubstr("transformer.wpe.weight has the shape [3, 8], the job needs [4, 8]"));
}

TEST_F(Gpt2ImportTest, WeightsThatAreNoFile) {
  const std::string path = dir_ + "/model.safetensors";
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(Error(), "can't read " + path + ": it is not a regular file");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(Error(), "can't read " + path + ": it is not a regular file") << "and does not wait";
}

TEST_F(Gpt2ImportTest, WeightsThatAreNoNumbers) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::string bytes = SmallGpt2Weights("");
    std::memcpy(&bytes[bytes.size() - 8], &bad, sizeof(bad));
    std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << bytes;
    EXPECT_THAT(Error(), testing::ContainsRegex("transformer[a-z0-9_.]*: element [0-9]+ is -?"
                                                "(nan|inf): the model can't be trained"));
  }
}

}  // namespace
}  // namespace isthmus::cli
