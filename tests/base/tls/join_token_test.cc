#include "base/tls/join_token.h"

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;
using testing::Not;

JoinToken Token() {
  const auto token = NewJoinToken({"a.example.org:7072", "[2001:db8::1]:7072"}, Sha256("ca"));
  EXPECT_TRUE(token.ok()) << token.status();
  return *token;
}

TEST(JoinTokenTest, IsReadAsItWasWritten) {
  const JoinToken token = Token();
  const std::string text = JoinTokenText(token);
  EXPECT_EQ(text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789-_"),
            std::string::npos);
  const auto read = ReadJoinToken("  " + text + "\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->addresses, token.addresses);
  EXPECT_EQ(read->authority, token.authority);
  EXPECT_EQ(read->id, token.id);
  EXPECT_EQ(read->secret, token.secret);
  EXPECT_EQ(read->secret.size(), kTokenSecretBytes);
  EXPECT_NE(Token().secret, token.secret);
  EXPECT_NE(Token().id, token.id);
}

// Each character of the text, and each byte below it.
class JoinTokenSlipTest : public testing::TestWithParam<int> {};

TEST_P(JoinTokenSlipTest, NoCharacterMayBeAnother) {
  const std::string text = JoinTokenText(Token());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string slip = text;
    slip[i] = static_cast<char>(slip[i] ^ GetParam());
    const absl::Status status = ReadJoinToken(slip).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr("copy the whole line")) << i;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(text.substr(20, 8))));
  }
}

TEST_P(JoinTokenSlipTest, NoByteMayBeAnother) {
  const std::string text = JoinTokenText(Token());
  const std::string prefix = "isthmus-join-";
  std::string bytes;
  ASSERT_TRUE(absl::WebSafeBase64Unescape(text.substr(prefix.size()), &bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string slip = bytes;
    slip[i] = static_cast<char>(slip[i] ^ GetParam());
    EXPECT_FALSE(ReadJoinToken(prefix + absl::WebSafeBase64Escape(slip)).ok()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, JoinTokenSlipTest, testing::Values(1, 2, 4, 8, 16, 32, 64, 128));

TEST(JoinTokenTest, WhatWasCutOffIsToldAsSuch) {
  const std::string text = JoinTokenText(Token());
  for (size_t i = 0; i < text.size(); ++i)
    EXPECT_TRUE(absl::IsInvalidArgument(ReadJoinToken(text.substr(0, i)).status())) << i;
  EXPECT_FALSE(ReadJoinToken(text + "A").ok());
  EXPECT_FALSE(ReadJoinToken(text + "=").ok()) << "one text for each token";
  EXPECT_THAT(std::string(ReadJoinToken(std::string(kMaxTokenText + 1, 'a')).status().message()),
              HasSubstr("has 1025 characters; at most 1024"));
  EXPECT_THAT(std::string(ReadJoinToken(std::string(kMaxTokenText, 'a')).status().message()),
              HasSubstr("does not begin with"));
}

TEST(JoinTokenTest, ANewerVersionIsToldAsSuch) {
  std::string bytes = std::string(1, 2) + std::string(80, 'x');
  bytes += Sha256(bytes).substr(0, 4);
  EXPECT_THAT(
      std::string(
          ReadJoinToken("isthmus-join-" + absl::WebSafeBase64Escape(bytes)).status().message()),
      HasSubstr("is of version 2, and this program reads version 1"));
}

TEST(JoinTokenTest, HoldsAddressesUpToItsBounds) {
  const std::string longest = std::string(kMaxTokenAddressBytes - 5, 'a') + ":7072";
  const std::vector<std::string> most(kMaxTokenAddresses, longest);
  const auto token = NewJoinToken(most, Sha256("ca"));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(ReadJoinToken(JoinTokenText(*token))->addresses, most);
  std::vector<std::string> more = most;
  more.push_back(longest);
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{}, more, std::vector<std::string>{"a" + longest},
        std::vector<std::string>{"no-port"}, std::vector<std::string>{":7072"},
        std::vector<std::string>{"a b:7072"}, std::vector<std::string>{"a:"}})
    EXPECT_TRUE(absl::IsInvalidArgument(NewJoinToken(bad, Sha256("ca")).status()));
}

TEST(JoinTokenTest, SecretsAreComparedAsAWhole) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "ab"));
  EXPECT_EQ(absl::BytesToHexString(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace isthmus::tls
