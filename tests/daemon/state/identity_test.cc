#include "daemon/state/identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

class IdentityTest : public testing::Test {
 protected:
  IdentityTest() {
    char name[] = "/tmp/isthmus-identity-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~IdentityTest() override { std::filesystem::remove_all(path_); }
  std::string path_;
};

TEST_F(IdentityTest, TheIdentityStaysOverRestarts) {
  std::string id;
  {
    const auto dir = StateDir::Open(path_ + "/made/here");
    ASSERT_TRUE(dir.ok()) << dir.status();
    id = dir->NodeId().value();
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(dir->NodeId().value(), id);
  }
  // F16: twenty quick restarts are one identity.
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(StateDir::Open(path_ + "/made/here").value().NodeId().value(), id);
}

TEST_F(IdentityTest, ASecondDaemonInTheDirectoryIsRefusedAndToldWhoHasIt) {
  const auto first = StateDir::Open(path_);
  ASSERT_TRUE(first.ok());
  const auto second = StateDir::Open(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(std::to_string(getpid())), absl::string_view::npos)
      << second.status();
}

TEST_F(IdentityTest, ABrokenIdentityIsNotReplacedSilently) {
  std::ofstream(path_ + "/node-id") << "garbage";
  const auto dir = StateDir::Open(path_);
  ASSERT_TRUE(dir.ok());
  EXPECT_EQ(dir->NodeId().status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(path_ + "/node-id");
  ASSERT_EQ(mkfifo((path_ + "/node-id").c_str(), 0600), 0);
  EXPECT_EQ(dir->NodeId().status().code(), absl::StatusCode::kDataLoss);  // at once
}

TEST_F(IdentityTest, APathThatCantBeADirectoryIsAnError) {
  std::ofstream(path_ + "/file") << "x";
  EXPECT_FALSE(StateDir::Open(path_ + "/file").ok());
  EXPECT_FALSE(StateDir::Open(path_ + "/file/below").ok());
}

TEST(RandomId, Differs) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(RandomId());
  EXPECT_EQ(ids.size(), 100u);
}

}  // namespace
}  // namespace isthmus::daemon
