#include "base/tls/joins.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/escaping.h"
#include "base/tls/folder.h"
#include "base/tls/request.h"
#include "base/tls/signed_request.h"
#include "base/tls/signer.h"
#include "gmock/gmock.h"
#include "tests/base/tls/tls_dir.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;
using testing::Not;

class JoinsTest : public TlsDirTest {
 protected:
  void SetUp() override { ASSERT_TRUE(Authority::Init(ca_, now_).ok()); }
  Joins Open() { return *Joins::Open(ca_); }
  MadeToken Make(int uses = 1, const std::string& names = "gpu-*",
                 absl::Duration certificate_life = absl::Hours(24 * 6)) {
    TokenOptions options;
    options.addresses = {"a:7072"};
    options.uses = uses;
    options.names = names;
    options.certificate_life = certificate_life;
    const auto made = Open().Create(options, now_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  absl::StatusOr<SignedAnswer> Ask(const MadeToken& token, const std::string& key,
                                   absl::Duration later = absl::ZeroDuration()) {
    const auto read = ReadJoinToken(token.text);
    EXPECT_TRUE(read.ok()) << read.status();
    return Open().Join({read->id, read->secret, Role::kWorker, *MakeRequest(key)}, now_ + later);
  }
  size_t Files() { return NamesIn(ca_ + "/issued").size(); }
  // As a kill leaves it that comes after a use was counted, and before anything was signed.
  void LoseWhatWasSigned() {
    std::filesystem::remove_all(ca_ + "/issued");
    std::filesystem::create_directory(ca_ + "/issued");
  }
  absl::StatusOr<SignedAnswer> Renew(const Certificate& old, const std::string& key,
                                     absl::Time now) {
    return Open().Renew(old, *MakeRequest(key), now);
  }

  const std::string key_ = *MakeKey();
};

TEST_F(JoinsTest, AHostGetsACertificateForItsKeyAndNothingElse) {
  const MadeToken token = Make();
  EXPECT_EQ(ReadJoinToken(token.text)->authority, *AuthorityHash(Read(ca_ + "/ca.pem"), "ca"));
  const auto answer = Ask(token, key_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto checked = CheckAnswer(answer->certificate_pem, key_, answer->ca_pem, now_);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(Words(checked->who), "gpu-1 (worker)");
  EXPECT_EQ(checked->until, now_ + absl::Hours(24 * 6));
  EXPECT_EQ(answer->ca_pem, Read(ca_ + "/ca.pem"));
  const auto all = Authority::Open(ca_)->List();
  ASSERT_EQ(all->size(), 1u) << "what is not in the list could not be revoked";
  EXPECT_EQ(all->front().certificate.serial, checked->serial);
}

TEST_F(JoinsTest, TheSecretIsKeptNowhere) {
  const MadeToken token = Make();
  const std::string file = ca_ + "/tokens/" + token.record.id;
  EXPECT_EQ(ModeOf(file), 0600);
  EXPECT_EQ(ModeOf(ca_ + "/tokens"), 0700);
  const std::string secret = ReadJoinToken(token.text)->secret;
  EXPECT_THAT(Read(file), Not(HasSubstr(secret)));
  EXPECT_THAT(Read(file), Not(HasSubstr(absl::BytesToHexString(secret))));
  EXPECT_THAT(Read(file), HasSubstr(absl::BytesToHexString(Sha256(secret))));
}

TEST_F(JoinsTest, AUsedUpTokenLetsInNobodyElse) {
  const MadeToken token = Make(2);
  const std::string second = *MakeKey();
  EXPECT_EQ(Ask(token, key_)->certificate.who.name, "gpu-1");
  EXPECT_EQ(Ask(token, second)->certificate.who.name, "gpu-2");
  const absl::Status third = Ask(token, *MakeKey()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(third)) << third;
  EXPECT_THAT(std::string(third.message()), HasSubstr("is used up"));
  EXPECT_EQ(Ask(token, key_)->certificate.who.name, "gpu-1") << "an answer that was lost";
  EXPECT_EQ(Open().List()->front().used.size(), 2u);
}

TEST_F(JoinsTest, TwoAtOnceCantBothHaveTheLastUse) {
  const MadeToken token = Make(1);
  const std::string other = *MakeKey();
  bool first = false, second = false;
  std::thread thread([&] { second = Ask(token, other).ok(); });
  first = Ask(token, key_).ok();
  thread.join();
  EXPECT_NE(first, second);
}

TEST_F(JoinsTest, WhatIsNoTokenOfThisAuthorityIsUnknown) {
  const auto ask = [&](const std::string& id, const std::string& secret) {
    return Open().Join({id, secret, Role::kWorker, *MakeRequest(key_)}, now_).status();
  };
  const JoinToken token = *ReadJoinToken(Make().text);
  std::string other = token.secret;
  other.back() = static_cast<char>(other.back() ^ 1);
  EXPECT_EQ(ask(token.id, other), UnknownToken());
  EXPECT_EQ(ask("12345678", token.secret), UnknownToken());
  EXPECT_EQ(ask("", ""), UnknownToken());
  EXPECT_EQ(ask("../../ca.key", token.secret), UnknownToken());
  EXPECT_TRUE(ask(token.id, token.secret).ok());
}

TEST_F(JoinsTest, ARevokedTokenAndARevokedKeyAreRefused) {
  const MadeToken token = Make(3);
  ASSERT_TRUE(Ask(token, key_).ok());
  ASSERT_TRUE(Authority::Open(ca_)->Revoke("gpu-1", now_).ok());
  const absl::Status lost = Ask(token, key_).status();
  EXPECT_TRUE(absl::IsPermissionDenied(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("its key gets no other"));
  EXPECT_EQ(Ask(Make(), *MakeKey())->certificate.who.name, "gpu-2");
  ASSERT_TRUE(Open().Revoke(token.record.id).ok());
  EXPECT_THAT(std::string(Ask(token, *MakeKey()).status().message()), HasSubstr("was revoked"));
  EXPECT_TRUE(absl::IsNotFound(Open().Revoke("0000000000000000").status()));
  EXPECT_TRUE(absl::IsNotFound(Open().Revoke("../ca.key").status()));
}

TEST_F(JoinsTest, ANameIsOneHosts) {
  Issue("pc", Role::kWorker);
  const MadeToken token = Make(1, "pc");
  const absl::Status taken = Ask(token, key_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_TRUE(Open().List()->front().used.empty()) << "what was refused is not counted";
  ASSERT_TRUE(Authority::Open(ca_)->Revoke("pc", now_).ok());
  EXPECT_EQ(Ask(token, key_)->certificate.who.name, "pc");
}

TEST_F(JoinsTest, ANameThatATokenGaveIsItsHostsBeforeAnythingIsSigned) {
  const MadeToken token = Make(2), pc = Make(1, "pc");
  const std::string other = *MakeKey();
  ASSERT_TRUE(Ask(token, key_).ok());
  ASSERT_TRUE(Ask(pc, key_).ok());
  LoseWhatWasSigned();
  EXPECT_EQ(Ask(Make(), other)->certificate.who.name, "gpu-2");
  EXPECT_EQ(Ask(token, *MakeKey())->certificate.who.name, "gpu-3");
  EXPECT_EQ(Ask(token, key_)->certificate.who.name, "gpu-1");
  const MadeToken next = Make(1, "pc");
  const absl::Status taken = Ask(next, other).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  ASSERT_TRUE(Open().Revoke(pc.record.id).ok());
  EXPECT_EQ(Ask(next, other)->certificate.who.name, "pc") << "the cure that the words name";
}

TEST_F(JoinsTest, TwoKeysHaveNoNameAtATime) {
  const MadeToken token = Make(1, "pc", absl::Seconds(10));
  ASSERT_TRUE(Ask(token, key_).ok());
  const std::string other = *MakeKey();
  const absl::Status early = Ask(Make(1, "pc"), other, absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(early)) << "its host may come again: " << early;
  Issue("pc", Role::kWorker);
  const absl::Status late = Ask(token, key_, absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("another host's certificate of pc (worker)"));
  ASSERT_TRUE(Authority::Open(ca_)->Revoke("pc", now_).ok());
  EXPECT_EQ(Ask(Make(1, "pc"), other, absl::Minutes(1))->certificate.who.name, "pc")
      << "its key was revoked: it does not come again";
}

TEST_F(JoinsTest, AnExpiredNameOfAnEndedTokenIsFree) {
  const MadeToken token = Make(1, "pc", absl::Seconds(10));
  ASSERT_TRUE(Ask(token, key_).ok());
  TokenOptions options;
  options.addresses = {"a:7072"};
  options.names = "pc";
  options.life = absl::Hours(48);
  const auto next = Open().Create(options, now_);
  EXPECT_EQ(Ask(*next, *MakeKey(), absl::Hours(25))->certificate.who.name, "pc");
}

TEST_F(JoinsTest, WhoAsksAgainGetsWhatHeHas) {
  const MadeToken token = Make(1, "pc", absl::Hours(20));
  const auto first = Ask(token, key_);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Ask(token, key_, absl::Hours(9))->certificate_pem, first->certificate_pem);
  EXPECT_EQ(Files(), 1u);
  EXPECT_NE(Ask(token, key_, absl::Hours(11))->certificate_pem, first->certificate_pem);
  EXPECT_EQ(Files(), 2u);
}

TEST_F(JoinsTest, WhoRenewsAgainGetsWhatHeHas) {
  const Certificate old = Ask(Make(), key_)->certificate;
  const absl::Time half = now_ + absl::Hours(24 * 3);
  const auto first = Renew(old, key_, half);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Renew(old, key_, half + absl::Hours(i))->certificate_pem, first->certificate_pem);
    const absl::Status other = Renew(old, *MakeKey(), half).status();
    EXPECT_TRUE(absl::IsPermissionDenied(other)) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr("holds for another key"));
  }
  EXPECT_EQ(Files(), 2u);
}

TEST_F(JoinsTest, AnAuthorityThatIsInUseIsWaitedForNotLonger) {
  const auto held = Signer::Open(ca_);
  ASSERT_TRUE(held.ok()) << held.status();
  const absl::Status late = Signer::Open(ca_, absl::Milliseconds(30)).status();
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("works on " + ca_));
}

TEST_F(JoinsTest, KeepsTokensUpToItsBoundAndForgetsOldOnes) {
  const MadeToken first = Make();
  for (size_t i = 1; i < kMaxTokens; ++i) {
    JoinRecord record = first.record;
    record.id = absl::BytesToHexString(Sha256(std::to_string(i)).substr(0, kTokenIdBytes));
    std::ofstream(ca_ + "/tokens/" + record.id) << JoinRecordText(record);
  }
  TokenOptions options;
  options.addresses = {"a:7072"};
  const absl::Status more = Open().Create(options, now_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  const absl::Time later = first.record.until + kKeepEnded + absl::Seconds(1);
  ASSERT_TRUE(Open().Create(options, later).ok());
  EXPECT_EQ(Open().List()->size(), 1u);
}

TEST_F(JoinsTest, RenewsFromHalfOfTheLifeOnForTheSameHostAlone) {
  const Certificate old = Ask(Make(), key_)->certificate;
  const absl::Time half = now_ + absl::Hours(24 * 3);
  EXPECT_EQ(RenewalTime(old), now_ + absl::Hours(24 * 4));
  EXPECT_THAT(std::string(Renew(old, key_, half - absl::Seconds(1)).status().message()),
              HasSubstr("gpu-1 (worker) is not renewed: more than half of its life"));
  const auto renewed = Renew(old, key_, half);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(Words(renewed->certificate.who), "gpu-1 (worker)");
  EXPECT_EQ(renewed->certificate.until, half + absl::Hours(24 * 6));
  EXPECT_TRUE(CheckAnswer(renewed->certificate_pem, key_, renewed->ca_pem, half).ok());
  EXPECT_TRUE(Renew(old, key_, old.until).ok());
  EXPECT_THAT(std::string(Renew(old, key_, old.until + absl::Seconds(1)).status().message()),
              HasSubstr("has expired; join again"));
}

TEST_F(JoinsTest, WhatIsNotItsOwnOrRevokedIsNotRenewed) {
  const Certificate old = Ask(Make(), key_)->certificate;
  const absl::Time half = now_ + absl::Hours(24 * 3);
  Certificate strange = old;
  strange.serial = "00ff";
  EXPECT_THAT(std::string(Renew(strange, key_, half).status().message()),
              HasSubstr("not issued it"));
  strange = old;
  strange.fingerprint[0] ^= 1;
  EXPECT_THAT(std::string(Renew(strange, key_, half).status().message()),
              HasSubstr("not issued it"));
  strange = old;
  strange.serial = "../ca";
  EXPECT_FALSE(Renew(strange, key_, half).ok());
  const Certificate viewer = Issue("ada", Role::kViewer, 6).certificate;
  EXPECT_THAT(std::string(Renew(viewer, key_, half).status().message()),
              HasSubstr("only a daemon"));
  ASSERT_TRUE(Authority::Open(ca_)->Revoke("gpu-1", now_).ok());
  EXPECT_THAT(std::string(Renew(old, *MakeKey(), half).status().message()),
              HasSubstr("was revoked"));
  const Certificate other = Ask(Make(), *MakeKey())->certificate;
  EXPECT_THAT(std::string(Renew(other, key_, half).status().message()),
              HasSubstr("its key gets no other"))
      << "a lost key comes back under no other name";
}

TEST_F(JoinsTest, ARequestIsForAKeyThatTheAskerHas) {
  const std::string request = *MakeRequest(key_);
  EXPECT_EQ(KeyOfRequest(request)->size(), 64u);
  const auto refused = [](const std::string& pem) {
    const absl::Status status = KeyOfRequest(pem).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(""), HasSubstr("is none in PEM"));
  EXPECT_THAT(refused(Read(ca_ + "/ca.pem")), HasSubstr("is none in PEM"));
  EXPECT_THAT(refused(std::string(kMaxRequestBytes + 1, 'a')), HasSubstr("has 4097 bytes"));
  EXPECT_TRUE(KeyOfRequest(request + std::string(kMaxRequestBytes - request.size(), '\n')).ok());

  const Owned<EVP_PKEY> p384(EVP_EC_gen("P-384"));
  EXPECT_THAT(refused(*MakeRequest(PemOf(p384.get()))), HasSubstr("is not for a key of P-256"));
  // Signed by another key than the one it names.
  const Owned<EVP_PKEY> mine(EVP_EC_gen("P-256")), its(EVP_EC_gen("P-256"));
  const Owned<X509_REQ> stolen(X509_REQ_new());
  X509_REQ_set_pubkey(stolen.get(), its.get());
  X509_REQ_sign(stolen.get(), mine.get(), EVP_sha256());
  EXPECT_THAT(refused(PemOf(stolen.get())), HasSubstr("does not have that key"));
}

TEST_F(JoinsTest, AnAnswerIsTakenFromTheAuthorityForThisKeyAlone) {
  const auto answer = Ask(Make(), key_);
  const auto check = [&](const std::string& pem, const std::string& key, const std::string& ca) {
    return std::string(CheckAnswer(pem, key, ca, now_).status().message());
  };
  const std::string& pem = answer->certificate_pem;
  EXPECT_THAT(check(pem, *MakeKey(), answer->ca_pem), HasSubstr("for another key"));
  ASSERT_TRUE(Authority::Init(dir_ + "/other", now_).ok());
  EXPECT_THAT(check(pem, key_, Read(dir_ + "/other/ca.pem")),
              HasSubstr("is not signed by the authority"));
  const std::string viewer = Issue("ada", Role::kViewer).folder;
  EXPECT_THAT(check(Read(viewer + "/cert.pem"), Read(viewer + "/key.pem"), answer->ca_pem),
              HasSubstr("is the certificate of ada (viewer)"));
  for (const absl::Duration off : {absl::Hours(24 * 7), -absl::Hours(1)}) {
    const absl::Status clock = CheckAnswer(pem, key_, answer->ca_pem, now_ + off).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(clock)) << clock << ": no other address helps";
    EXPECT_THAT(std::string(clock.message()), HasSubstr("set the clock of this host"));
  }
}

}  // namespace
}  // namespace isthmus::tls
