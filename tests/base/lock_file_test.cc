#include "base/file/lock_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LockFileTest : public testing::Test {
 protected:
  void ExpectRefused(const std::string& what) {
    const absl::StatusOr<int> fd = OpenLockFile(path_, 0600);
    ASSERT_FALSE(fd.ok());
    EXPECT_EQ(fd.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(fd.status().message()),
                AllOf(HasSubstr(path_), HasSubstr(what), HasSubstr("remove it")));
  }

  const TempDirectory scratch_;
  const std::string dir_ = scratch_.path();
  std::string path_ = dir_ + "/lock";
};

TEST_F(LockFileTest, MakesTheFileAndOpensItAgain) {
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<int> fd = OpenLockFile(path_, 0600);
    ASSERT_TRUE(fd.ok()) << fd.status();
    EXPECT_EQ(write(*fd, "1", 1), 1);
    close(*fd);
  }
}

TEST_F(LockFileTest, RefusesWhatIsNoFileInWords) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused("a FIFO");
  std::filesystem::remove(path_);
  ASSERT_EQ(symlink("elsewhere", path_.c_str()), 0);
  ExpectRefused("a symbolic link");
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/elsewhere"));
  std::filesystem::remove(path_);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  ExpectRefused("a directory");
}

TEST_F(LockFileTest, NamesTheFileThatCannotBeMade) {
  path_ = dir_ + "/not/there/lock";
  EXPECT_THAT(std::string(OpenLockFile(path_, 0600).status().message()), HasSubstr(path_));
}

}  // namespace
}  // namespace isthmus
