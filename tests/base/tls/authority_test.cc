#include "base/tls/authority.h"

#include <thread>

#include "base/tls/folder.h"
#include "base/tls/openssl.h"
#include "base/tls/revoked.h"
#include "gmock/gmock.h"
#include "tests/base/tls/tls_dir.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;

class AuthorityTest : public TlsDirTest {
 protected:
  void SetUp() override { ASSERT_TRUE(Authority::Init(ca_, now_).ok()); }
  absl::StatusOr<Revoked> ReadRevoked(const std::string& file) {
    return Revoked::Read(Read(file), Read(ca_ + "/ca.pem"), file);
  }
};

TEST_F(AuthorityTest, KeepsItsKeyToItself) {
  EXPECT_EQ(ModeOf(ca_), 0700);
  EXPECT_EQ(ModeOf(ca_ + "/ca.key"), 0600);
  const std::string key = Read(ca_ + "/ca.key");
  EXPECT_THAT(key, HasSubstr("PRIVATE KEY"));
  const absl::Status again = Authority::Init(ca_, now_);
  EXPECT_TRUE(absl::IsAlreadyExists(again));
  EXPECT_EQ(Read(ca_ + "/ca.key"), key) << "what it had issued would be worth nothing";
  EXPECT_THAT(Authority::Open(dir_).status().message(), HasSubstr("isthmus ca init makes one"));
}

TEST_F(AuthorityTest, IssuesAFolderForAHost) {
  const Issued issued = Issue("home-pc", Role::kWorker, 30);
  EXPECT_EQ(issued.folder, ca_ + "/certificates/home-pc");
  EXPECT_EQ(ModeOf(issued.folder), 0700);
  EXPECT_EQ(ModeOf(issued.folder + "/key.pem"), 0600);
  const auto read = ReadFolder(issued.folder, {Role::kWorker}, now_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Words(read->certificate.who), "home-pc (worker)");
  EXPECT_EQ(read->certificate.serial, issued.certificate.serial);
  EXPECT_EQ(read->certificate.fingerprint.size(), 64u);
  EXPECT_EQ(read->certificate.from, now_ - kClockTolerance);
  EXPECT_EQ(read->certificate.until, now_ + absl::Hours(24 * 30));
  EXPECT_FALSE(std::filesystem::exists(issued.folder + "/revoked.pem"));
  EXPECT_TRUE(std::filesystem::exists(Issue("c", Role::kCoordinator).folder + "/revoked.pem"));
}

TEST_F(AuthorityTest, RefusesWhatCantBe) {
  const auto authority = Authority::Open(ca_);
  const auto issue = [&](const std::string& name, int days, const std::string& folder) {
    return authority->Issue({{name, Role::kViewer}, days, folder}, now_).status();
  };
  EXPECT_THAT(issue("Home", 1, "").message(), HasSubstr("lower-case letters"));
  EXPECT_THAT(issue("a", 0, "").message(), HasSubstr("--days 0: a certificate is valid for 1 to"));
  EXPECT_TRUE(absl::IsInvalidArgument(issue("a", kMaxDays + 1, "")));
  EXPECT_THAT(issue("a", 1, ca_).message(), HasSubstr("is not empty: name another"));
  EXPECT_EQ(issue("a", 1, ca_).code(), Authority::Init(ca_, now_).code()) << "one code for both";
  EXPECT_TRUE(issue("a", 1, dir_ + "/elsewhere").ok());
  EXPECT_EQ(authority->List()->size(), 1u) << "what was refused was not issued";
}

TEST_F(AuthorityTest, NoCertificateOutlivesTheAuthority) {
  EXPECT_EQ(Issue("a", Role::kViewer, kMaxDays).certificate.until,
            now_ + absl::Hours(24) * kMaxDays);
  const auto later = Authority::Open(ca_)->Issue({{"b", Role::kViewer}, 365, ""},
                                                 now_ + absl::Hours(24) * (kMaxDays - 10));
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->certificate.until, now_ + absl::Hours(24) * kMaxDays);
}

TEST_F(AuthorityTest, RevokesByNameAndBySerial) {
  const Issued coordinator = Issue("c", Role::kCoordinator);
  const Issued first = Issue("home-pc", Role::kWorker);
  std::filesystem::rename(first.folder, dir_ + "/first");
  const Issued second = Issue("home-pc", Role::kWorker);
  const Issued other = Issue("other", Role::kWorker);
  const auto authority = Authority::Open(ca_);
  ASSERT_EQ(authority->Revoke(first.certificate.serial, now_)->size(), 1u);
  const auto more = authority->Revoke("home-pc", now_ + absl::Seconds(5));
  ASSERT_TRUE(more.ok()) << more.status();
  ASSERT_EQ(more->size(), 1u) << "the other one was revoked before";
  EXPECT_EQ(more->front().serial, second.certificate.serial);

  for (const std::string& file : {ca_ + "/revoked.pem", coordinator.folder + "/revoked.pem"}) {
    const auto revoked = ReadRevoked(file);
    ASSERT_TRUE(revoked.ok()) << revoked.status();
    EXPECT_EQ(revoked->size(), 2u);
    ASSERT_NE(revoked->Find(second.certificate.serial), nullptr) << file;
    EXPECT_EQ(*revoked->Find(second.certificate.serial), now_ + absl::Seconds(5));
    EXPECT_EQ(revoked->Find(other.certificate.serial), nullptr);
  }
  const auto all = authority->List();
  ASSERT_EQ(all->size(), 4u);
  EXPECT_EQ(all->at(1).certificate.who.name, "home-pc");
  EXPECT_TRUE(all->at(1).revoked && all->at(2).revoked);
  EXPECT_FALSE(all->at(3).revoked);
  std::ofstream(coordinator.folder + "/revoked.pem") << "lost";
  EXPECT_EQ(authority->Revoke("home-pc", now_)->size(), 2u) << "what had failed is mended";
  EXPECT_EQ(Read(coordinator.folder + "/revoked.pem"), Read(ca_ + "/revoked.pem"));
  EXPECT_TRUE(absl::IsNotFound(authority->Revoke("nobody", now_).status()));
}

TEST_F(AuthorityTest, TwoAtOnceRevokeBoth) {
  Issue("a", Role::kWorker);
  Issue("b", Role::kWorker);
  std::thread other([this] { EXPECT_TRUE(Authority::Open(ca_)->Revoke("a", now_).ok()); });
  EXPECT_TRUE(Authority::Open(ca_)->Revoke("b", now_).ok());
  other.join();
  EXPECT_EQ(ReadRevoked(ca_ + "/revoked.pem")->size(), 2u);
}

TEST_F(AuthorityTest, AListOfAnotherAuthorityIsNoList) {
  ASSERT_TRUE(Authority::Init(dir_ + "/other", now_).ok());
  const std::string pem = Read(dir_ + "/other/revoked.pem");
  EXPECT_THAT(Revoked::Read(pem, Read(ca_ + "/ca.pem"), "revoked.pem").status().message(),
              HasSubstr("revoked.pem: is not signed by the authority of ca.pem"));
  EXPECT_TRUE(
      absl::IsInvalidArgument(Revoked::Read("no list", Read(ca_ + "/ca.pem"), "x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Revoked::Read(std::string(kMaxRevokedBytes + 1, ' '), Read(ca_ + "/ca.pem"), "x").status()));
}

TEST_F(AuthorityTest, AKeyWithAPassphraseIsRefusedAndNotAskedFor) {
  const std::string pem =
      "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: "
      "AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
  EXPECT_THAT(ParseKey(pem, "key.pem").status().message(),
              HasSubstr("key.pem: has no private key without a passphrase"));
}

}  // namespace
}  // namespace isthmus::tls
