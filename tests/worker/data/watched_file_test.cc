#include "worker/data/watched_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temp_directory.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kBlock = WatchedFile::kBlockBytes;

class WatchedFileTest : public ::testing::Test {
 protected:
  WatchedFileTest() : path_(directory_.path() + "/text.txt"), text_(3 * kBlock + 100, 'a') {
    for (size_t i = 0; i < text_.size(); ++i) text_[i] = static_cast<char>('a' + i % 23);
    Write(text_);
    file_ = WatchedFile::Open(path_).value();
  }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  void Overwrite(int64_t offset, const std::string& text) {
    std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(offset);
    out << text;
  }
  // As a copy that keeps times does.
  void KeepTimes(const struct stat& start) {
    const timespec times[2] = {start.st_atim, start.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  }
  absl::Status Read(int64_t offset, int64_t bytes) {
    read_.assign(bytes, '\0');
    return file_->Read(offset, bytes, &read_[0]);
  }
  void ExpectRead(int64_t offset, int64_t bytes) {
    ASSERT_TRUE(Read(offset, bytes).ok()) << Read(offset, bytes);
    EXPECT_EQ(read_, text_.substr(offset, bytes));
  }
  void ExpectChanged(int64_t offset, int64_t bytes, const std::string& words) {
    const absl::Status status = Read(offset, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + " was changed while it was in"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Put the former file back"));
  }

  TempDirectory directory_;
  std::string path_, text_, read_;
  std::unique_ptr<WatchedFile> file_;
};

TEST_F(WatchedFileTest, ReadsAnyRange) {
  EXPECT_EQ(file_->bytes(), static_cast<int64_t>(text_.size()));
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{0, 1},
                                      {0, 3 * kBlock + 100},
                                      {kBlock - 1, 2},
                                      {2 * kBlock, kBlock},
                                      {3 * kBlock, 100},
                                      {3 * kBlock + 100, 0}}) {
    ExpectRead(offset, bytes);
  }
}

TEST_F(WatchedFileTest, ACutIsToldAndDoesNotEndTheProcess) {
  ExpectRead(0, 10);
  fs::resize_file(path_, kBlock);
  ExpectRead(0, 10);  // what is still there is still right
  ExpectChanged(2 * kBlock, 10, "it had 49252 bytes at the start and has 16384 now");
  ExpectChanged(kBlock - 5, 10, "has 16384 now");
  Write("");
  ExpectChanged(0, 10, "has 0 now");
}

TEST_F(WatchedFileTest, AnOverwriteOfEqualLengthIsNoticedWhereItIs) {
  struct stat start;
  ASSERT_EQ(::stat(path_.c_str(), &start), 0);
  ExpectRead(0, text_.size());
  Overwrite(kBlock + 7, "X");
  KeepTimes(start);
  ExpectRead(0, 10);
  ExpectChanged(2 * kBlock - 10, 20, "its bytes 16384 to 32768 are not those of the start");
  Overwrite(kBlock + 7, text_.substr(kBlock + 7, 1));
  ExpectRead(0, text_.size());  // put back, it is good again
}

// Even with its old time stamp: the change time is the kernel's own.
TEST_F(WatchedFileTest, WhatWasNotReadBeforeTheChangeIsNotTrusted) {
  struct stat start;
  ASSERT_EQ(::stat(path_.c_str(), &start), 0);
  ExpectRead(0, 10);
  // A clock tick may lie between two changes with one time stamp: write until it shows.
  for (struct stat now = start; now.st_ctim.tv_nsec == start.st_ctim.tv_nsec;) {
    Overwrite(kBlock, "X");
    KeepTimes(start);
    ASSERT_EQ(::stat(path_.c_str(), &now), 0);
  }
  ExpectChanged(kBlock, 10, "its change time is not that of the start");
  ExpectRead(0, 10);
}

TEST_F(WatchedFileTest, ARenameOverItAndGrowthChangeNothing) {
  ExpectRead(0, text_.size());
  std::ofstream(path_, std::ios::app) << "more";
  ExpectRead(0, text_.size());
  std::ofstream(path_ + ".new") << "another";
  fs::rename(path_ + ".new", path_);
  ExpectRead(0, text_.size());
  fs::remove(path_);
  ExpectRead(0, text_.size());
}

TEST_F(WatchedFileTest, WhatIsNoFileIsRefusedByName) {
  EXPECT_EQ(WatchedFile::Open(path_ + "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(WatchedFile::Open(directory_.path()).status().message()),
              HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace isthmus::worker
