#include "coordinator/cli/model/export_dir.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/model/small_gpt2.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class ExportDirTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/isthmus_export_test.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  absl::Status Write(const std::string& to, bool force, const std::string& bytes) {
    return WriteExport(to, force, SmallGpt2Model(), [&](const std::string& path) {
      std::ofstream(path, std::ios::binary) << bytes;
      return absl::OkStatus();
    });
  }
  int Entries() {
    return static_cast<int>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }

  std::string dir_;
};

TEST_F(ExportDirTest, MarksTheFileAndKeepsTheData) {
  const std::string bytes = SmallGpt2Weights("transformer.");
  ASSERT_TRUE(Write(dir_ + "/a/b/", false, bytes).ok());  // parents are made
  const std::string written = ReadAll(dir_ + "/a/b/model.safetensors");
  EXPECT_THAT(written, HasSubstr(R"("__metadata__":{"format":"pt"})"));
  const auto before = ParseSafetensors(bytes);
  const auto after = ParseSafetensors(written);
  ASSERT_TRUE(after.ok()) << after.status();
  ASSERT_EQ(after->size(), before->size());
  for (const auto& [name, entry] : *before) {
    EXPECT_EQ(after->at(name).data, entry.data) << name;
    EXPECT_EQ(after->at(name).shape, entry.shape) << name;
  }
  EXPECT_THAT(ReadAll(dir_ + "/a/b/config.json"), HasSubstr("GPT2LMHeadModel"));
}

TEST_F(ExportDirTest, AMarkedFileStaysAsItIs) {
  const std::string bytes = WriteSafetensors({}, {{"format", "pt"}}).value();
  std::ofstream(dir_ + "/x", std::ios::binary) << bytes;
  ASSERT_TRUE(MarkForTransformers(dir_ + "/x").ok());
  EXPECT_EQ(ReadAll(dir_ + "/x"), bytes);
}

TEST_F(ExportDirTest, AnEmptyDirectoryIsFilledAFullOneIsRefused) {
  const std::string to = dir_ + "/model";
  fs::create_directory(to);
  ASSERT_TRUE(Write(to, false, SmallGpt2Weights("")).ok());
  const absl::Status refused = Write(to, false, SmallGpt2Weights(""));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--force"));
  std::ofstream(to + "/stale") << "x";
  ASSERT_TRUE(Write(to, true, SmallGpt2Weights("")).ok());
  EXPECT_FALSE(fs::exists(to + "/stale"));
  EXPECT_EQ(Entries(), 1);
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_FALSE(Write(dir_ + "/file", true, SmallGpt2Weights("")).ok());
}

TEST_F(ExportDirTest, AFailureLeavesNothingAndKeepsTheOldOne) {
  const std::string to = dir_ + "/model";
  ASSERT_TRUE(Write(to, false, SmallGpt2Weights("")).ok());
  const std::string before = ReadAll(to + "/model.safetensors");
  const absl::Status failed = WriteExport(to, true, SmallGpt2Model(), [](const std::string&) {
    return absl::UnavailableError("the link broke");
  });
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadAll(to + "/model.safetensors"), before);
  EXPECT_EQ(Entries(), 1);
}

TEST_F(ExportDirTest, HostileFilesAreRefused) {
  const auto with_header = [](const std::string& header, const std::string& data) {
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    return bytes + header + data;
  };
  for (const std::string& bytes :
       {std::string(), std::string("short"), std::string(8, '\xff') + "{}", with_header("[]", ""),
        with_header("{", ""), with_header(R"({"a":{"data_offsets":[0,9]}})", "12345678"),
        with_header(R"({"a":{"data_offsets":[8,0]}})", "12345678"),
        with_header(R"({"a":{"data_offsets":[-1,4]}})", "12345678"),
        with_header(R"({"a":3})", "12345678")}) {
    EXPECT_FALSE(Write(dir_ + "/model", false, bytes).ok()) << bytes;
    EXPECT_EQ(Entries(), 0);
  }
  EXPECT_TRUE(Write(dir_ + "/model", false, with_header(R"({"__metadata__":3})", "")).ok());
}

}  // namespace
}  // namespace isthmus::cli
