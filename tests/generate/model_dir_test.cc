#include "worker/generate/model_dir.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/model/gpt2_config.h"
#include "tests/temp_directory.h"
#include "worker/generate/tokenizer.h"

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
  EXPECT_TRUE(config->model.tied());
}

TEST(ModelDir, KnowsAHeadOfItsOwn) {
  ModelSpec model = Model();
  model.set_tied(false);
  EXPECT_FALSE(ParseConfig(Gpt2ConfigJson(model))->model.tied());
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
  const std::string weights = WriteSafetensors({{"a", "F32", {1}, "abcd"}}, {}).value();
  std::ofstream(dir.path() + "/model.safetensors") << weights;
  EXPECT_EQ(ReadAll(*ReadModelDir(dir.path())->weights, 1000).value(), weights);
  std::ofstream(dir.path() + "/generation_config.json") << R"({"eos_token_id": 3})";
  EXPECT_EQ(ReadModelDir(dir.path())->config.end, 3);
}

// Files of 1 TiB that are holes: reading one into memory would fail, or never end.
TEST(ModelDir, WhatCanNotBeTheWeightsIsNotRead) {
  const TempDirectory dir;
  const std::string path = dir.path() + "/model.safetensors";
  constexpr int64_t kBytes = int64_t{1} << 40;
  std::ofstream(dir.path() + "/config.json") << Gpt2ConfigJson(Model());
  const auto write = [&](const std::string& head) {
    std::ofstream(path, std::ios::binary) << head;
    std::filesystem::resize_file(path, kBytes);
    const absl::Status status = ReadModelDir(dir.path()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(write("junk, and junk"), HasSubstr(path));
  EXPECT_THAT(write(std::string(8, '\0')), HasSubstr(path));
  // A sound header of the right length, of a tensor that no model of this size has.
  constexpr uint64_t kHeader = 120;
  constexpr int64_t kData = kBytes - 8 - int64_t{kHeader};
  std::string header = absl::StrCat("{\"a\": {\"dtype\": \"F32\", \"shape\": [", kData / 4,
                                    "], \"data_offsets\": [0, ", kData, "]}}");
  header.resize(kHeader, ' ');
  const std::string head(reinterpret_cast<const char*>(&kHeader), sizeof kHeader);
  EXPECT_THAT(write(head + header), HasSubstr("it is another model's"));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadModelDir(dir.path()).status().message()),
              HasSubstr("not a regular file"));
}

TEST(ModelDir, FilesThatAreNoneAreRefusedAtOnce) {
  for (const char* name : {"config.json", "tokenizer.json"}) {
    const TempDirectory dir;
    std::ofstream(dir.path() + "/config.json") << Gpt2ConfigJson(Model());
    const std::string path = dir.path() + "/" + name;
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const absl::Status status = name[0] == 'c' ? ReadModelDir(dir.path()).status()
                                               : Tokenizer::Read(dir.path(), 256).status();
    EXPECT_EQ(status.message(), "can't read " + path + ": it is not a regular file");
  }
}

}  // namespace
}  // namespace isthmus::generate
