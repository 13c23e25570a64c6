// What goes with an exported model, and what `isthmus generate` refuses before it starts anything.
// tests/e2e/generate_test.py loads such exports.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/byte_alphabet.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/model/generate_run.h"
#include "coordinator/cli/model/tokenizer_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

JobSpec Job(const std::string& format, int vocabulary, const std::string& init_from = "") {
  JobSpec job;
  job.mutable_data()->set_format(format);
  job.mutable_model()->set_vocabulary(vocabulary);
  job.mutable_model()->set_context(64);
  job.mutable_model()->set_init_from(init_from);
  return job;
}

TEST(TokenizerFiles, OfBytesEachIdIsTheByte) {
  const auto found = FindTokenizer(Job("bytes", 256), "");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->origin, "bytes");
  const json file = json::parse(found->files.at("tokenizer.json"));
  EXPECT_EQ(file["model"]["vocab"].size(), 256u);
  EXPECT_EQ(file["model"]["vocab"]["A"], 65);
  EXPECT_EQ(file["model"]["vocab"]["\u0120"], 32);  // the blank
  EXPECT_EQ(file["model"]["vocab"]["\u00ff"], 255);
  EXPECT_TRUE(file["added_tokens"].empty());
  EXPECT_EQ(json::parse(found->files.at("tokenizer_config.json"))["model_max_length"], 64);
  EXPECT_FALSE(json::parse(found->files.at("generation_config.json")).contains("eos_token_id"));
}

TEST(TokenizerFiles, OfTokensThoseOfTheModelTheJobBeganFrom) {
  const TempDirectory dir;
  std::ofstream(dir.path() + "/tokenizer.json")
      << R"({"added_tokens": [{"id": 9, "content": "<|endoftext|>"}]})";
  std::ofstream(dir.path() + "/config.json") << "{}";
  const auto found = FindTokenizer(Job("tokens", 10, dir.path()), "");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->origin, dir.path());
  EXPECT_THAT(found->note, HasSubstr(dir.path()));
  EXPECT_EQ(found->files.count("config.json"), 0u);
  EXPECT_EQ(json::parse(found->files.at("generation_config.json"))["eos_token_id"], 9);
}

TEST(TokenizerFiles, AnEndOfTextBeyondTheVocabularyIsNone) {
  const TempDirectory dir;
  std::ofstream(dir.path() + "/vocab.json") << R"({"a": 0, "<|endoftext|>": 10})";
  std::ofstream(dir.path() + "/merges.txt") << "";
  const auto found = FindTokenizer(Job("tokens", 10), dir.path());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(json::parse(found->files.at("generation_config.json")).contains("eos_token_id"));
}

TEST(TokenizerFiles, WithoutOneTheUserIsToldHowToAddIt) {
  const auto found = FindTokenizer(Job("tokens", 50257, "/nonexistent"), "");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->origin, "");
  EXPECT_THAT(found->note, HasSubstr("--tokenizer DIR"));
  EXPECT_THAT(found->note, HasSubstr("/nonexistent"));
  EXPECT_EQ(json::parse(found->files.at("generation_config.json"))["eos_token_id"], 50256);
}

TEST(TokenizerFiles, ANamedDirectoryWithoutOneIsRefused) {
  const TempDirectory dir;
  std::ofstream(dir.path() + "/vocab.json") << "{}";  // without its merges
  const auto found = FindTokenizer(Job("bytes", 256), dir.path());
  EXPECT_TRUE(absl::IsNotFound(found.status()));
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("neither tokenizer.json"));
}

TEST(ByteAlphabet, IsThatOfGpt2) {
  const auto alphabet = ByteAlphabet();
  EXPECT_EQ(alphabet['!'], '!');
  EXPECT_EQ(alphabet[0], 0x100);
  EXPECT_EQ(alphabet[' '], 0x120);
  EXPECT_EQ(alphabet[0xad], 0x143);
  EXPECT_EQ(ByteCharacter(0x120), "\xc4\xa0");
}

TEST(GenerateRun, WhatIsNeitherJobNorDirectoryIsRefused) {
  char* text;
  size_t size;
  FILE* err = open_memstream(&text, &size);
  Console console(stdout, err);
  const TempDirectory dir;
  GenerateRunOptions options;
  options.target = "./nowhere";
  EXPECT_EQ(RunGenerate({}, options, &console), kExitUsage);
  options.target = dir.path();
  options.step = 3;
  EXPECT_EQ(RunGenerate({}, options, &console), kExitUsage);
  std::fclose(err);
  EXPECT_THAT(text, HasSubstr("there is no directory ./nowhere"));
  EXPECT_THAT(text, HasSubstr("are for a job's checkpoint"));
  std::free(text);
}

}  // namespace
}  // namespace isthmus::cli
