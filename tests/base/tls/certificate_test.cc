#include "base/tls/certificate.h"

#include "base/tls/expiry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;

TEST(CertificateTest, ANameIsThatOfAHost) {
  for (const char* good : {"a", "home-pc", "node-7.example.org", "10.0.0.1"})
    EXPECT_TRUE(CheckName(good).ok()) << good;
  for (const std::string& bad :
       {std::string(), std::string("Home"), std::string("a b"), std::string(".a"),
        std::string("a-"), std::string("a..b"), std::string("a/b"), std::string("*"),
        std::string("a\0b", 3), std::string(kMaxNameBytes + 1, 'a')})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckName(bad))) << bad;
  EXPECT_THAT(CheckName("Home PC").message(), HasSubstr("'Home PC' can't be the name"));
}

TEST(CertificateTest, RolesAreWords) {
  for (const std::string& name : RoleNames()) EXPECT_EQ(RoleName(*RoleOf(name)), name);
  EXPECT_THAT(RoleOf("workr").status().message(),
              HasSubstr("there is no role 'workr'; did you mean 'worker'?; the roles are "
                        "coordinator, worker, operator, viewer"));
}

TEST(CertificateTest, WhoSomebodyIsStandsInAName) {
  const Identity pc = {"home-pc", Role::kWorker};
  EXPECT_EQ(ServerName(pc), "home-pc.worker.isthmus");
  const auto read = IdentityOf({"example.org", ServerName(pc)});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Words(*read), "home-pc (worker)");
  EXPECT_EQ(IdentityOf({"a.b.viewer.isthmus"})->name, "a.b");
  for (const char* bad : {"", "isthmus", ".isthmus", "worker.isthmus", ".worker.isthmus",
                          "pc.root.isthmus", "PC.worker.isthmus", "pc.worker.isthmus.org"})
    EXPECT_TRUE(absl::IsUnauthenticated(IdentityOf({bad}).status())) << bad;
  EXPECT_TRUE(absl::IsUnauthenticated(IdentityOf({kAnyCoordinator}).status()));
}

TEST(CertificateTest, TimesAreToldInWords) {
  Certificate certificate;
  certificate.who = {"home-pc", Role::kWorker};
  certificate.from = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15 08:00 UTC
  certificate.until = certificate.from + absl::Hours(48);
  EXPECT_TRUE(CheckTimes(certificate, certificate.from).ok());
  EXPECT_TRUE(CheckTimes(certificate, certificate.until).ok());
  EXPECT_EQ(
      CheckTimes(certificate, certificate.until + absl::Seconds(1)).message(),
      "the certificate of home-pc (worker) expired on 2027-01-17: issue a new one (isthmus ca "
      "issue home-pc --role worker)");
  EXPECT_THAT(CheckTimes(certificate, certificate.from - absl::Seconds(1)).message(),
              HasSubstr("this host's clock says 2027-01-15T07:59:59+00:00: set the clock"));
}

TEST(CertificateTest, ItsEndIsToldInTime) {
  Certificate certificate;
  certificate.who = {"home-pc", Role::kWorker};
  certificate.until = absl::FromUnixSeconds(1'800'000'000);
  EXPECT_EQ(ExpiryWarning(certificate, certificate.until - kExpiresSoon), "");
  EXPECT_EQ(
      ExpiryWarning(certificate, certificate.until - absl::Hours(24 * 9 + 1)),
      "the certificate of home-pc (worker) ends in 9 days, on 2027-01-15: issue another "
      "(isthmus ca issue home-pc --role worker --out FOLDER), put it in the place of this one "
      "and restart");
  certificate.from = certificate.until - absl::Hours(24 * 8);
  EXPECT_EQ(ExpiryWarning(certificate, certificate.until - absl::Hours(24 * 2)), "")
      << "one of a week is renewed when a third of its life is left";
  EXPECT_NE(ExpiryWarning(certificate, certificate.until - absl::Hours(24 * 2 - 1)), "");
}

}  // namespace
}  // namespace isthmus::tls
