#include "coordinator/cli/gpt2_import.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/small_gpt2.h"

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
  std::string Error() { return std::string(ReadGpt2(dir_, SmallGpt2Model()).status().message()); }

  std::string dir_;
};

TEST_F(Gpt2ImportTest, NamesGetThePrefixAndMasksAreLeftOut) {
  for (const char* prefix : {"", "transformer."}) {
    WriteSmallGpt2(dir_, prefix);
    const auto model = ReadGpt2(dir_, SmallGpt2Model());
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(model->warnings.empty());
    const auto tensors = ParseSafetensors(model->weights);
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
  const auto tensors = ParseSafetensors(model->weights);
  EXPECT_EQ(tensors->at("transformer.ln_f.bias").dtype, "F32");
  EXPECT_EQ(ToFloats(tensors->at("transformer.ln_f.bias"))->at(7), 4);
}

TEST_F(Gpt2ImportTest, ALongerContextIsCut) {
  Config("n_positions", 16);
  std::ofstream(dir_ + "/model.safetensors", std::ios::binary) << SmallGpt2Weights("", "F32", 16);
  const auto model = ReadGpt2(dir_, SmallGpt2Model());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->warnings, testing::ElementsAre(HasSubstr("the first 4 are kept")));
  EXPECT_EQ(ParseSafetensors(model->weights)->at("transformer.wpe.weight").shape,
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
  EXPECT_THAT(Error(), HasSubstr("only \"gelu_new\" can be trained"));
  Config("tie_word_embeddings", false);
  EXPECT_THAT(Error(), HasSubstr("tie_word_embeddings is false"));
  Config("n_inner", 7);
  EXPECT_THAT(Error(), HasSubstr("n_inner is 7"));
  Config("n_layer", "two");
  EXPECT_THAT(Error(), HasSubstr("no whole number 'n_layer'"));
  std::ofstream(dir_ + "/config.json") << "[]";
  EXPECT_THAT(Error(), HasSubstr("not a JSON object"));
  std::filesystem::remove(dir_ + "/config.json");
  EXPECT_EQ(ReadGpt2(dir_, SmallGpt2Model()).status().code(), absl::StatusCode::kNotFound);
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
  EXPECT_EQ(Error(), "can't read " + path + ": it is not a file");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(Error(), "can't read " + path + ": it is not a file") << "and does not wait";
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
