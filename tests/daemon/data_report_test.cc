#include "daemon/data_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class DataReportTest : public testing::Test {
 protected:
  DataReportTest() : path_(directory_.path()), report_(path_) {}
  void Write(const std::string& file, const std::string& contents) {
    fs::create_directories(fs::path(path_ + "/" + file).parent_path());
    std::ofstream(path_ + "/" + file, std::ios::binary) << contents;
  }
  void Write(const std::string& file, size_t bytes) { Write(file, std::string(bytes, 'x')); }
  std::vector<std::string> Listed(int limit, bool* complete) {
    std::vector<std::string> names;
    for (const DataFile& f : ListDataFiles(path_, limit, complete, &unnamed_))
      names.push_back(f.path());
    return names;
  }
  DataFile Only() {
    EXPECT_TRUE(report_.Look(stop_));
    const DataListing listing = report_.List();
    EXPECT_EQ(listing.files_size(), 1);
    return listing.files_size() == 1 ? listing.files(0) : DataFile();
  }

  TempDirectory directory_;
  const std::string path_;
  std::vector<std::string> unnamed_;
  const std::atomic<bool> stop_{false};
  DataReport report_;
};

TEST_F(DataReportTest, ListsTwoLevelsDeepInOrder) {
  Write("text.txt", 5);
  Write("a/b/shard.bin", 7);
  bool complete = false;
  EXPECT_THAT(Listed(10, &complete), ElementsAre("a/b/shard.bin", "text.txt"));
  EXPECT_TRUE(complete);
  EXPECT_EQ(ListDataFiles(path_, 10, &complete, &unnamed_)[0].bytes(), 7);
  Write("a/b/c/deep.txt", 1);
  EXPECT_THAT(Listed(10, &complete), ElementsAre("a/b/shard.bin", "text.txt"));
  EXPECT_FALSE(complete) << "what is deeper is not listed, and it is said so";
}

TEST_F(DataReportTest, LinkedDirectoriesAreListedAsTheyAreRead) {
  Write("real/shard.bin", 7);
  fs::create_directory_symlink(path_ + "/real", path_ + "/linked");
  bool complete = false;
  EXPECT_THAT(Listed(10, &complete), ElementsAre("linked/shard.bin", "real/shard.bin"));
  EXPECT_TRUE(complete);
  fs::create_directory_symlink(path_, path_ + "/real/around");  // ends at the depth
  EXPECT_FALSE(Listed(10, &complete).empty());
  EXPECT_FALSE(complete);
}

TEST_F(DataReportTest, TheLimitHoldsAndLeavesOutWhatLiesDeepest) {
  for (int i = 0; i < 12; ++i) Write(absl::StrCat("deep/f", i), 1);
  Write("top", 1);
  bool complete = true;
  const std::vector<std::string> names = Listed(10, &complete);
  EXPECT_EQ(names.size(), 10u);
  EXPECT_EQ(names.back(), "top");
  EXPECT_FALSE(complete);
}

TEST_F(DataReportTest, AMissingDirectoryIsAnEmptyList) {
  bool complete = true;
  EXPECT_TRUE(ListDataFiles(path_ + "/nowhere", 10, &complete, &unnamed_).empty());
  EXPECT_FALSE(complete);
}

// It kept the host out for ever: protobuf refuses the whole message.
TEST_F(DataReportTest, ANameThatIsNotUtf8IsLeftOut) {
  Write(
      "B\xfc"
      "cher.txt",
      5);
  Write(
      "d\xfc"
      "r/text.txt",
      5);
  Write(
      "B\xc3\xbc"
      "cher.txt",
      5);
  bool complete = false;
  EXPECT_THAT(Listed(10, &complete), ElementsAre("B\xc3\xbc"
                                                 "cher.txt"));
  EXPECT_TRUE(complete);
  EXPECT_EQ(unnamed_.size(), 2u);
  const DataListing listing = report_.List();
  EXPECT_EQ(listing.files_size(), 1);
  EXPECT_TRUE(IsUtf8(listing.files(0).path()));
}

TEST_F(DataReportTest, ContentsAreToldOnceTheyWereRead) {
  std::string ids;
  for (int i = 0; i < 500; ++i) ids += {static_cast<char>(i * 7), static_cast<char>(i % 3)};
  Write("train.bin", ids);
  EXPECT_EQ(report_.List().files(0).format(), "") << "not read yet";
  EXPECT_EQ(report_.List().files(0).bytes(), 1000);
  const DataFile first = Only();
  EXPECT_EQ(first.path(), "train.bin");
  EXPECT_EQ(first.format(), "uint16");
  EXPECT_EQ(first.tokens(), 500);
  EXPECT_GE(first.highest_id(), 512);
  EXPECT_NE(first.contents(), 0u);
  EXPECT_EQ(first.problem(), "");
  EXPECT_EQ(Only().contents(), first.contents());

  ids[100] ^= 1;
  Write("train.bin", ids + "x");
  EXPECT_EQ(report_.List().files(0).format(), "") << "another file now";
  const DataFile odd = Only();
  EXPECT_EQ(odd.format(), "bytes");
  EXPECT_THAT(odd.problem(), HasSubstr("no whole number of 16-bit ids"));
  EXPECT_NE(odd.contents(), first.contents());
  fs::remove(path_ + "/train.bin");
  EXPECT_TRUE(report_.Look(stop_));
  EXPECT_THAT(report_.List().files(), IsEmpty());
}

TEST_F(DataReportTest, TwoHostsWithOneFileSayTheSame) {
  TempDirectory elsewhere;
  Write("text.txt", 300000);
  fs::copy(path_ + "/text.txt", elsewhere.path() + "/text.txt");
  DataReport other(elsewhere.path());
  EXPECT_TRUE(other.Look(stop_));
  EXPECT_EQ(Only().contents(), other.List().files(0).contents());
}

TEST_F(DataReportTest, AFileThatMayNotBeReadIsSaidToBeSo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  Write("secret.txt", 10);
  ASSERT_EQ(::chmod((path_ + "/secret.txt").c_str(), 0), 0);
  EXPECT_EQ(Only().format(), "unreadable");
  EXPECT_THAT(Only().problem(), HasSubstr("cannot open"));
}

TEST_F(DataReportTest, AnEndIsNotHeldUp) {
  Write("text.txt", 10);
  const std::atomic<bool> stop{true};
  EXPECT_FALSE(report_.Look(stop));
  EXPECT_EQ(report_.List().files(0).format(), "");
}

}  // namespace
}  // namespace isthmus::daemon
