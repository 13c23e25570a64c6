#include "coordinator/service/join_limits.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

TEST(JoinLimiterTest, AnAddressHasSoManyTriesAMinute) {
  JoinLimiter limiter({3, 100, 100});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Begin("a", kNow + absl::Seconds(i)).ok());
  const absl::Status more = limiter.Begin("a", kNow + absl::Seconds(4));
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  EXPECT_EQ(more.message(), "a has tried to join 3 times in a minute: try again in a minute");
  EXPECT_TRUE(limiter.Begin("b", kNow + absl::Seconds(4)).ok()) << "another one is not harmed";
  EXPECT_FALSE(limiter.Begin("a", kNow + kJoinWindow - absl::Seconds(1)).ok());
  EXPECT_TRUE(limiter.Begin("a", kNow + kJoinWindow).ok());
  EXPECT_FALSE(limiter.Begin("a", kNow + kJoinWindow).ok());
}

TEST(JoinLimiterTest, AllTogetherHaveSoManyTriesAMinute) {
  const JoinLimits limits;
  JoinLimiter limiter(limits);
  for (int i = 0; i < limits.in_all; ++i) {
    EXPECT_TRUE(limiter.Begin(absl::StrCat(i), kNow).ok()) << i;
    limiter.End();
  }
  const absl::Status more = limiter.Begin("another", kNow);
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  EXPECT_THAT(std::string(more.message()), HasSubstr("120 times in the last minute"));
  EXPECT_TRUE(limiter.Begin("another", kNow + kJoinWindow).ok());
}

TEST(JoinLimiterTest, SoManyAtATime) {
  JoinLimiter limiter({100, 100, 2});
  EXPECT_TRUE(limiter.Begin("a", kNow).ok());
  EXPECT_TRUE(limiter.Begin("b", kNow).ok());
  EXPECT_EQ(limiter.Begin("c", kNow).message(),
            "2 hosts are joining at this moment: try again in a minute");
  limiter.End();
  EXPECT_TRUE(limiter.Begin("c", kNow).ok());
}

TEST(JoinLimiterTest, AnAddressIsAHostOrAHousehold) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.0.0.1:53412"), "10.0.0.1");
  const std::string household = AddressOfPeer("ipv6:%5B2001:db8:1:2::1%5D:53412");
  EXPECT_EQ(household, "20010db800010002/64");
  EXPECT_EQ(AddressOfPeer("ipv6:[2001:db8:1:2:ff::7]:1"), household);
  EXPECT_NE(AddressOfPeer("ipv6:[2001:db8:1:3::1]:1"), household);
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bfe80::1%25eth0%5D:1"), "fe80000000000000/64");
  EXPECT_EQ(AddressOfPeer("unix:"), "unix");
  EXPECT_EQ(AddressOfPeer(std::string(1000, 'x') + ":1").size(), 64u);
}

}  // namespace
}  // namespace isthmus::coordinator
