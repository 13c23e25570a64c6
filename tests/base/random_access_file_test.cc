#include "base/file/random_access_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "base/file/durable_file.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(RandomAccessFile, ReadsPiecesAndHashesTheWhole) {
  TempDirectory scratch;
  const std::string path = scratch.path() + "/f";
  std::string text(700000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  ASSERT_TRUE(WriteFileDurably(path, text).ok());
  const auto file = RandomAccessFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes(), 700000);
  EXPECT_EQ(file->Hash().value(), Hash64(text));
  std::string piece(1000, 0);
  ASSERT_TRUE(file->ReadAt(654321, piece.size(), piece.data()).ok());
  EXPECT_EQ(piece, text.substr(654321, 1000));
  ASSERT_TRUE(WriteFileDurably(path, "another").ok());
  EXPECT_EQ(file->Hash().value(), Hash64(text)) << "renamed over: the one that was opened";
  fs::remove(path);
  EXPECT_EQ(file->Hash().value(), Hash64(text)) << "removed";
}

TEST(RandomAccessFile, AFileThatGotShorterIsNoticed) {
  TempDirectory scratch;
  const std::string path = scratch.path() + "/f";
  ASSERT_TRUE(WriteFileDurably(path, "0123456789").ok());
  const auto file = RandomAccessFile::Open(path);
  ASSERT_TRUE(file.ok());
  fs::resize_file(path, 4);
  EXPECT_EQ(file->Hash().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(file->Hash().status().message()), HasSubstr(path + " ends at byte 4"));
}

TEST(RandomAccessFile, WhatIsNotARegularFileIsRefusedAtOnce) {
  TempDirectory scratch;
  EXPECT_EQ(RandomAccessFile::Open(scratch.path() + "/none").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(RandomAccessFile::Open(scratch.path()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(mkfifo((scratch.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(RandomAccessFile::Open(scratch.path() + "/fifo").ok());
  ASSERT_TRUE(WriteFileDurably(scratch.path() + "/empty", "").ok());
  EXPECT_EQ(RandomAccessFile::Open(scratch.path() + "/empty")->Hash().value(), Hash64(""));
}

}  // namespace
}  // namespace isthmus
