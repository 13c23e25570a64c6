#include "base/file/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(DurableFile, OneThatWaitsForNoDiskAppearsWholeAsWell) {
  TempDirectory dir;
  const std::string path = dir.path() + "/state", named = dir.path() + "/state.3";
  auto file = DurableFile::Create(path, ".part").value();
  ASSERT_TRUE(file->Append("new").ok());
  EXPECT_FALSE(fs::exists(named));
  ASSERT_TRUE(file->CommitUnsyncedAs(named).ok());
  EXPECT_EQ(Contents(named), "new");
  EXPECT_FALSE(fs::exists(path + ".part"));
  EXPECT_EQ(file->fd(), -1);
}

TEST(DurableFile, AppearsWithCommitAlone) {
  TempDirectory dir;
  const std::string path = dir.path() + "/state";
  ASSERT_TRUE(WriteFileDurably(path, "old").ok());
  {
    auto file = DurableFile::Create(path, ".part");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("ne").ok());
    ASSERT_TRUE((*file)->Append("w").ok());
    EXPECT_EQ((*file)->bytes(), 3);
    EXPECT_EQ(Contents(path), "old");
    ASSERT_TRUE((*file)->Commit().ok());
    EXPECT_EQ(Contents(path), "new");
  }
  EXPECT_EQ(Contents(path), "new");
  EXPECT_FALSE(fs::exists(path + ".part"));
}

TEST(DurableFile, LeavesNothingWithoutCommit) {
  TempDirectory dir;
  const std::string path = dir.path() + "/state";
  { ASSERT_TRUE((*DurableFile::Create(path))->Append("half").ok()); }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(DurableFile, DoesNotWriteThroughWhatLiesInTheWay) {
  TempDirectory dir;
  const std::string path = dir.path() + "/state", elsewhere = dir.path() + "/elsewhere";
  ASSERT_TRUE(WriteFileDurably(elsewhere, "untouched").ok());
  fs::create_symlink(elsewhere, path + ".tmp");
  ASSERT_TRUE(WriteFileDurably(path, "mine").ok());
  EXPECT_EQ(Contents(elsewhere), "untouched");
  EXPECT_EQ(Contents(path), "mine");
  ASSERT_EQ(mkfifo((path + ".tmp").c_str(), 0600), 0);  // opening it for writing would block
  ASSERT_TRUE(WriteFileDurably(path, "again").ok());
  EXPECT_EQ(Contents(path), "again");
}

TEST(DurableFile, KeepsTheModeItWasAskedFor) {
  TempDirectory dir;
  const std::string path = dir.path() + "/secret";
  ASSERT_TRUE(WriteFileDurably(path, "x", 0600).ok());
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(DurableFile, ErrorsNameThePath) {
  TempDirectory dir;
  const std::string path = dir.path() + "/no/such/file";
  const absl::Status status = WriteFileDurably(path, "x");
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

// /dev/full takes no byte: every write says that the disk is full.
TEST(DurableFile, FullDiskIsResourceExhausted) {
  const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const absl::Status status = WriteFully(fd, "x", "/srv/state");
  close(fd);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/srv/state: the disk is full"));
}

TEST(DurableFile, SwapsDirectories) {
  TempDirectory dir;
  const std::string from = dir.path() + "/from", to = dir.path() + "/to";
  fs::create_directory(from);
  ASSERT_TRUE(WriteFileDurably(from + "/new", "").ok());
  ASSERT_TRUE(SwapDirectories(from, to).ok());
  EXPECT_TRUE(fs::exists(to + "/new"));
  EXPECT_FALSE(fs::exists(from));
  fs::create_directory(from);
  ASSERT_TRUE(SwapDirectories(from, to).ok());
  EXPECT_TRUE(fs::exists(from + "/new")) << "the old one is where the new one was";
}

}  // namespace
}  // namespace isthmus
