#include "base/file/read_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

using testing::HasSubstr;

TEST(ReadFile, TheWholeUpToTheLimit) {
  const TempDirectory dir;
  const std::string path = dir.path() + "/f";
  const std::string text = std::string(200000, 'x') + std::string("\0\n", 2);
  std::ofstream(path, std::ios::binary) << text;
  const auto size = static_cast<int64_t>(text.size());
  EXPECT_EQ(ReadSmallFile(path, size).value(), text);
  EXPECT_EQ(ReadFileHead(path, size + 1).value(), text);
  EXPECT_EQ(ReadFileHead(path, 100).value(), std::string(100, 'x'));
  EXPECT_EQ(ReadFileHead(path, 0).value(), "");
  const absl::Status larger = ReadSmallFile(path, size - 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(larger));
  EXPECT_THAT(std::string(larger.message()), HasSubstr(path + ": it has more than 200001 bytes"));
}

// Opening a FIFO that nobody writes to would never return.
TEST(ReadFile, WhatIsNotARegularFileIsRefusedAtOnce) {
  const TempDirectory dir;
  const std::string fifo = dir.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero")}) {
    const absl::Status status = ReadSmallFile(path, 10).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(status.message(), "can't read " + path + ": it is not a regular file");
    EXPECT_EQ(ReadFileHead(path, 10).status(), status);
  }
  EXPECT_EQ(ReadSmallFile(dir.path(), 10).status().message(),
            "can't read " + dir.path() + ": it is a directory");
  const absl::Status none = ReadSmallFile(dir.path() + "/none", 10).status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_EQ(none.message(), "can't read " + dir.path() + "/none: No such file or directory");
}

}  // namespace
}  // namespace isthmus
