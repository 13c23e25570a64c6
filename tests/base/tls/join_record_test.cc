#include "base/tls/join_record.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/tls/join_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;

constexpr char kSecret[] = "a secret of 32 bytes, as it were";
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

std::string Key(int which) { return absl::BytesToHexString(Sha256(absl::StrCat("key ", which))); }

JoinRecord Record() {
  JoinRecord record;
  record.id = "0011223344556677";
  record.secret_hash = absl::BytesToHexString(Sha256(kSecret));
  record.names = "gpu-*";
  record.uses = 2;
  record.until = kNow + absl::Hours(1);
  record.certificate_life = absl::Hours(24 * 7);
  record.made_by = "ada on laptop";
  record.made_at = kNow;
  return record;
}

TEST(JoinRecordTest, IsReadAsItWasWritten) {
  JoinRecord record = Record();
  record.used = {{"gpu-1", Key(1)}, {"gpu-2", Key(2)}};
  const std::string text = JoinRecordText(record);
  const auto read = ReadJoinRecord(text, "file");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(JoinRecordText(*read), text);
  EXPECT_EQ(read->used.at(1).name, "gpu-2");
  EXPECT_EQ(read->until, record.until);
  record.made_by = "two\nrevoked 1";
  EXPECT_FALSE(ReadJoinRecord(JoinRecordText(record), "file")->revoked) << "no line of its own";
}

TEST(JoinRecordTest, WhatIsNoRecordIsRefused) {
  const std::string text = JoinRecordText(Record());
  for (size_t i = 0; i < text.size(); ++i)
    EXPECT_TRUE(absl::IsDataLoss(ReadJoinRecord(text.substr(0, i), "file").status())) << i;
  EXPECT_TRUE(absl::IsDataLoss(ReadJoinRecord(text + "revoked 0\n", "file").status())) << "twice";
  EXPECT_TRUE(absl::IsDataLoss(ReadJoinRecord(text + "more 1\n", "file").status()));
}

TEST(JoinRecordTest, AHostJoinsAsOftenAsTheTokenSays) {
  JoinRecord record = Record();
  const auto judge = [&](int key, absl::Time now, absl::string_view secret = kSecret,
                         Role role = Role::kWorker) {
    return JudgeJoin(record, secret, role, Key(key), now);
  };
  EXPECT_TRUE(judge(1, kNow).ok());
  EXPECT_EQ(judge(1, kNow, "another"), UnknownToken()) << "as of one that does not exist";
  EXPECT_EQ(judge(1, kNow, absl::string_view(kSecret).substr(1)), UnknownToken());
  EXPECT_THAT(std::string(judge(1, kNow, kSecret, Role::kOperator).message()),
              HasSubstr("0011223344556677 lets in a worker and no operator"));
  record.used = {{"gpu-1", Key(1)}};
  EXPECT_TRUE(judge(2, kNow).ok());
  record.used.push_back({"gpu-2", Key(2)});
  EXPECT_TRUE(judge(2, kNow).ok()) << "its answer may have been lost";
  EXPECT_THAT(std::string(judge(3, kNow).message()),
              HasSubstr("is used up: 2 hosts have joined by it"));
  EXPECT_EQ(JoinState(record, kNow), "used up");
  EXPECT_TRUE(judge(2, record.until - absl::Seconds(1)).ok());
  EXPECT_THAT(std::string(judge(2, record.until).message()),
              HasSubstr("expired on 2027-01-15T09:00:00+00:00: ask for another one"));
  EXPECT_EQ(JoinState(record, record.until), "expired");
  record.revoked = true;
  EXPECT_THAT(std::string(judge(2, kNow).message()), HasSubstr("was revoked"));
  EXPECT_EQ(judge(2, kNow, "another"), UnknownToken()) << "a stranger learns nothing of it";
  EXPECT_EQ(JoinState(record, kNow), "revoked");
}

TEST(JoinRecordTest, WhatATokenCantBeNamesItsFlag) {
  const auto judge = [](void (*change)(JoinRecord*)) {
    JoinRecord record = Record();
    change(&record);
    return std::string(CheckJoinRecord(record, kNow).message());
  };
  EXPECT_EQ(judge([](JoinRecord*) {}), "");
  EXPECT_THAT(judge([](JoinRecord* r) { r->role = Role::kOperator; }),
              HasSubstr("--role operator"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->role = Role::kCoordinator; }),
              HasSubstr("--role coord"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->names = "a-*-*"; }), HasSubstr("--name 'a-*-*'"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->names = "Home"; }), HasSubstr("--name 'Home'"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->names = ""; }), HasSubstr("--name ''"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->names = std::string(kMaxNameBytes - 3, 'a') + "*"; }),
              HasSubstr("--name"))
      << "with a number of four digits it is too long";
  EXPECT_EQ(judge([](JoinRecord* r) { r->names = std::string(kMaxNameBytes - 4, 'a') + "*"; }), "");
  EXPECT_THAT(judge([](JoinRecord* r) { r->names = "pc"; }), HasSubstr("only one host can be"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->uses = 0; }), HasSubstr("--uses 0"));
  EXPECT_EQ(judge([](JoinRecord* r) { r->uses = kMaxTokenUses; }), "");
  EXPECT_THAT(judge([](JoinRecord* r) { r->uses = kMaxTokenUses + 1; }), HasSubstr("--uses 1001"));
  EXPECT_EQ(judge([](JoinRecord* r) { r->until = kNow + kMaxTokenLife; }), "");
  EXPECT_THAT(judge([](JoinRecord* r) { r->until = kNow + kMaxTokenLife + absl::Seconds(1); }),
              HasSubstr("--life"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->until = kNow; }), HasSubstr("--life"));
  EXPECT_THAT(judge([](JoinRecord* r) { r->certificate_life = absl::Seconds(9); }),
              HasSubstr("--certificate-life"));
}

TEST(JoinRecordTest, TheAuthorityNamesTheHost) {
  EXPECT_EQ(*NextName("gpu-*", {}), "gpu-1");
  EXPECT_EQ(*NextName("gpu-*", {{"gpu-1", true}, {"gpu-3", true}}), "gpu-2");
  EXPECT_EQ(*NextName("gpu-*", {{"gpu-1", false}}), "gpu-2") << "a name is one host's for ever";
  EXPECT_EQ(*NextName("pc", {{"pc", false}, {"pc2", true}}), "pc");
  const absl::Status taken = NextName("pc", {{"pc", false}, {"pc", true}}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken));
  EXPECT_THAT(std::string(taken.message()), HasSubstr("isthmus ca revoke pc"));
}

TEST(JoinRecordTest, ANameWhoseCertificateIsToComeIsNobodyElses) {
  EXPECT_EQ(*NextName("gpu-*", {{"gpu-1", true, "0a"}, {"gpu-2", false, "0b"}}), "gpu-3");
  EXPECT_EQ(*NextName("pc", {{"pc", false, "0a"}}), "pc") << "of a token that has ended";
  const absl::Status taken = NextName("pc", {{"pc", true, "0a"}}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(std::string(taken.message()), HasSubstr("isthmus ca token revoke 0a"));
  EXPECT_THAT(std::string(NextName("pc", {{"pc", true, "0a"}, {"pc", true}}).status().message()),
              HasSubstr("isthmus ca revoke pc"));
}

TEST(JoinRecordTest, ANumberThatMakesTheNameTooLongIsNotGiven) {
  const std::string names = std::string(kMaxNameBytes - 1, 'a');
  std::vector<NamedCertificate> all;
  for (int i = 1; i <= 9; ++i) all.push_back({absl::StrCat(names, i), true});
  const absl::Status full = NextName(names + "*", all).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("a shorter --name"));
}

}  // namespace
}  // namespace isthmus::tls
