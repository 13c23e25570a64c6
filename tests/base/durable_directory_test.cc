#include "base/file/durable_directory.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/file/durable_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DurableDirectoryTest : public testing::Test {
 protected:
  int Entries() {
    return static_cast<int>(
        std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator()));
  }
  TempDirectory temp_;
  const std::string dir_ = temp_.path() + "/model";
};

TEST_F(DurableDirectoryTest, AppearsWholeWithCommit) {
  const std::string deep = temp_.path() + "/a/b/model/";
  {
    const auto directory = DurableDirectory::Create(deep, false).value();
    ASSERT_TRUE(WriteFileDurably(directory->path() + "/file", "x").ok());
    EXPECT_FALSE(fs::exists(deep));
    ASSERT_TRUE(directory->Commit().ok());
  }
  EXPECT_TRUE(fs::exists(deep + "file"));
  EXPECT_EQ(fs::status(deep).permissions() & fs::perms::others_exec, fs::perms::others_exec);
}

TEST_F(DurableDirectoryTest, IsGoneWithoutCommit) {
  { ASSERT_TRUE(DurableDirectory::Create(dir_, false).ok()); }
  EXPECT_EQ(Entries(), 0);
}

TEST_F(DurableDirectoryTest, WhatIsThereIsReplacedOnlyIfAsked) {
  fs::create_directory(dir_);
  ASSERT_TRUE(DurableDirectory::Create(dir_, false).ok());  // an empty one
  std::ofstream(dir_ + "/old") << "x";
  const auto refused = DurableDirectory::Create(dir_, false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--force"));
  ASSERT_TRUE(DurableDirectory::Create(dir_, true).value()->Commit().ok());
  EXPECT_FALSE(fs::exists(dir_ + "/old"));
  EXPECT_EQ(Entries(), 1);
  std::ofstream(temp_.path() + "/file") << "x";
  EXPECT_FALSE(DurableDirectory::Create(temp_.path() + "/file", true).ok());
}

TEST_F(DurableDirectoryTest, WhatCameMeanwhileIsNotOverwritten) {
  const auto directory = DurableDirectory::Create(dir_, false).value();
  fs::create_directory(dir_);
  std::ofstream(dir_ + "/other") << "x";
  EXPECT_EQ(directory->Commit().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::exists(dir_ + "/other"));
}

}  // namespace
}  // namespace isthmus
