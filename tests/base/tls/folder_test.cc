#include "base/tls/folder.h"

#include "gmock/gmock.h"
#include "tests/base/tls/tls_dir.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;

class FolderTest : public TlsDirTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Authority::Init(ca_, now_).ok());
    folder_ = Issue("home-pc", Role::kWorker, 10).folder;
  }
  absl::Status Judge(absl::Time now) { return ReadFolder(folder_, {Role::kWorker}, now).status(); }
  void Replace(const std::string& file, const std::string& from) {
    std::filesystem::copy_file(from, folder_ + "/" + file,
                               std::filesystem::copy_options::overwrite_existing);
  }

  std::string folder_;
};

TEST_F(FolderTest, HoldsFromTenMinutesBeforeItsMakingToItsEnd) {
  EXPECT_TRUE(Judge(now_).ok());
  EXPECT_TRUE(Judge(now_ - absl::Minutes(9)).ok()) << "of a host whose clock is behind";
  EXPECT_THAT(Judge(now_ - absl::Minutes(11)).message(), HasSubstr("set the clock"));
  EXPECT_TRUE(Judge(now_ + absl::Hours(239)).ok());
  EXPECT_THAT(Judge(now_ + absl::Hours(241)).message(),
              HasSubstr(folder_ + ": the certificate of home-pc (worker) expired on"));
}

TEST_F(FolderTest, AMissingFileIsNamed) {
  std::filesystem::remove(folder_ + "/key.pem");
  const absl::Status status = Judge(now_);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("key.pem"));
  EXPECT_THAT(status.message(), HasSubstr("as `isthmus ca issue NAME --role ROLE` writes it"));
}

TEST_F(FolderTest, AKeyThatIsADirectoryIsCalledOne) {
  std::filesystem::remove(folder_ + "/key.pem");
  std::filesystem::create_directory(folder_ + "/key.pem");
  const absl::Status status = Judge(now_);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("key.pem is a directory"));
  EXPECT_THAT(status.message(), HasSubstr("isthmus ca issue"));
}

TEST_F(FolderTest, AKeyThatEverybodyCanReadIsRefused) {
  ASSERT_EQ(::chmod((folder_ + "/key.pem").c_str(), 0644), 0);
  const absl::Status status = Judge(now_);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("chmod 600"));
  ASSERT_EQ(::chmod((folder_ + "/key.pem").c_str(), 0640), 0);
  EXPECT_TRUE(Judge(now_).ok()) << "a group may, as of a service";
}

TEST_F(FolderTest, WhatDoesNotBelongTogetherIsRefused) {
  const std::string other = Issue("other", Role::kWorker).folder;
  Replace("key.pem", other + "/key.pem");
  EXPECT_THAT(Judge(now_).message(), HasSubstr("is not the key of cert.pem"));
  ASSERT_TRUE(Authority::Init(dir_ + "/ca2", now_).ok());
  Replace("ca.pem", dir_ + "/ca2/ca.pem");
  EXPECT_THAT(Judge(now_).message(), HasSubstr("is not signed by the authority of ca.pem"));
  Replace("cert.pem", other + "/key.pem");
  EXPECT_THAT(Judge(now_).message(), HasSubstr("cert.pem: has no certificate in PEM"));
  Replace("cert.pem", ca_ + "/ca.pem");
  EXPECT_THAT(Judge(now_).message(), HasSubstr("names no node and role"));
}

TEST_F(FolderTest, ARoleThatTheProgramCantHaveIsRefused) {
  EXPECT_THAT(ReadFolder(folder_, {Role::kOperator, Role::kViewer}, now_).status().message(),
              HasSubstr("is the certificate of home-pc (worker); this program needs one of role "
                        "operator or viewer: isthmus ca issue NAME --role operator"));
}

}  // namespace
}  // namespace isthmus::tls
