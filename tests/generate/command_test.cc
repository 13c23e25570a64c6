// The command line of isthmus-generate, with a model that counts.
#include "worker/generate/command.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/model/gpt2_config.h"
#include "tests/generate/fake_decoder.h"
#include "tests/temp_directory.h"

namespace isthmus::generate {
namespace {

using testing::HasSubstr;

class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    ModelSpec model;
    model.set_layers(1);
    model.set_hidden(4);
    model.set_heads(1);
    model.set_context(8);
    model.set_vocabulary(256);
    std::ofstream(dir_.path() + "/config.json") << Gpt2ConfigJson(model);
    std::ofstream(dir_.path() + "/model.safetensors") << WriteSafetensors({}, {}).value();
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "isthmus-generate");
    std::vector<const char*> argv;
    for (const std::string& a : arguments) argv.push_back(a.c_str());
    char *out_text = nullptr, *err_text = nullptr;
    size_t out_size = 0, err_size = 0;
    FILE* out = open_memstream(&out_text, &out_size);
    FILE* err = open_memstream(&err_text, &err_size);
    const int code = RunCommand(
        static_cast<int>(argv.size()), argv.data(),
        [](const ModelDir&, int) -> absl::StatusOr<std::unique_ptr<Decoder>> {
          return std::make_unique<FakeDecoder>(8, 256);
        },
        out, err);
    std::fclose(out);
    std::fclose(err);
    out_.assign(out_text, out_size);
    err_.assign(err_text, err_size);
    std::free(out_text);
    std::free(err_text);
    return code;
  }

  TempDirectory dir_;
  std::string out_, err_;
};

TEST_F(CommandTest, PrintsPromptAndContinuation) {
  EXPECT_EQ(Run({dir_.path(), "ab", "--tokens=4", "--greedy"}), 0) << err_;
  EXPECT_EQ(out_, "abcdef\n");
}

TEST_F(CommandTest, GoesOnPastTheContext) {
  EXPECT_EQ(Run({dir_.path(), "a", "--tokens=20", "--greedy"}), 0) << err_;
  EXPECT_EQ(out_, "abcdefghijklmnopqrstu\n");
}

TEST_F(CommandTest, WithoutAPromptAnEmptyLineIsTheStart) {
  EXPECT_EQ(Run({dir_.path(), "--tokens=1", "--greedy"}), 0) << err_;
  EXPECT_EQ(out_, "\x0b\n");
}

TEST_F(CommandTest, JsonHasTheTokens) {
  EXPECT_EQ(Run({dir_.path(), "a", "--tokens=2", "--greedy", "--json", "--seed=7"}), 0) << err_;
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["prompt"], "a");
  EXPECT_EQ(json["text"], "bc");
  EXPECT_EQ(json["tokens"], nlohmann::json({98, 99}));
  EXPECT_EQ(json["seed"], 7);
}

TEST_F(CommandTest, BytesThatAreNoTextStayJson) {
  EXPECT_EQ(Run({dir_.path(), "\x7f", "--tokens=3", "--greedy", "--json"}), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["tokens"], nlohmann::json({128, 129, 130}));
}

TEST_F(CommandTest, WrongUsageIsRefused) {
  for (const char* flag : {"--temperature=0", "--temperature=nan", "--top-k=-1", "--tokens=0",
                           "--seed=-1", "--threads=1024", "--seed=0x1"})
    EXPECT_EQ(Run({dir_.path(), "a", flag}), 2) << flag;
  EXPECT_EQ(Run({dir_.path() + "/nothing", "a"}), 2);
  EXPECT_THAT(err_, HasSubstr("nothing/config.json"));
}

TEST_F(CommandTest, HelpHasAnExample) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("isthmus-generate ./model"));
}

}  // namespace
}  // namespace isthmus::generate
