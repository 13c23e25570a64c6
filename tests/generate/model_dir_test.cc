#include "worker/generate/model_dir.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/model/gpt2_config.h"
#include "tests/temp_directory.h"

namespace isthmus::generate {
namespace {

using testing::HasSubstr;

ModelSpec Model() {
  ModelSpec model;
  model.set_layers(2);
  model.set_hidden(8);
  model.set_heads(2);
  model.set_context(4);
  model.set_vocabulary(50257);
  return model;
}

TEST(ModelDir, ReadsTheConfigOfAnExport) {
  const auto config = ParseConfig(Gpt2ConfigJson(Model()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.layers(), 2);
  EXPECT_EQ(config->model.hidden(), 8);
  EXPECT_EQ(config->model.heads(), 2);
  EXPECT_EQ(config->model.context(), 4);
  EXPECT_EQ(config->model.norm_epsilon(), 1e-5);
  EXPECT_EQ(config->end, 50256);
}

TEST(ModelDir, AVocabularyOfBytesHasNoEnd) {
  ModelSpec model = Model();
  model.set_vocabulary(256);
  EXPECT_EQ(ParseConfig(Gpt2ConfigJson(model))->end, std::nullopt);
}

TEST(ModelDir, HonoursTheEpsilonOfTheNorms) {
  EXPECT_EQ(ParseConfig(R"({"n_layer": 1, "n_embd": 2, "n_head": 1, "n_positions": 3,
                            "vocab_size": 4, "layer_norm_epsilon": 1e-3})")
                ->model.norm_epsilon(),
            1e-3);
}

TEST(ModelDir, EveryComplaintIsListed) {
  const auto config = ParseConfig(R"({"n_layer": 1, "n_embd": 9, "n_head": 2, "n_positions": 3,
      "model_type": "llama", "activation_function": "relu", "n_inner": 7})");
  const std::string why(config.status().message());
  for (const char* part : {"vocab_size", "llama", "relu", "n_inner is 7", "multiple of n_head"})
    EXPECT_THAT(why, HasSubstr(part));
  EXPECT_THAT(ParseConfig("{").status().message(), HasSubstr("not a JSON object"));
}

TEST(ModelDir, MissingFilesAreNamed) {
  const TempDirectory dir;
  EXPECT_THAT(ReadModelDir(dir.path()).status().message(), HasSubstr("/config.json"));
  std::ofstream(dir.path() + "/config.json") << Gpt2ConfigJson(Model());
  EXPECT_THAT(ReadModelDir(dir.path()).status().message(), HasSubstr("no model.safetensors"));
  std::ofstream(dir.path() + "/model.safetensors") << "weights";
  EXPECT_EQ(ReadModelDir(dir.path())->weights, "weights");
  std::ofstream(dir.path() + "/generation_config.json") << R"({"eos_token_id": 3})";
  EXPECT_EQ(ReadModelDir(dir.path())->config.end, 3);
}

}  // namespace
}  // namespace isthmus::generate
