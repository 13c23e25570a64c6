#include "base/bit_rate.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

TEST(BitRate, IsReadWithItsUnit) {
  for (const auto& [text, rate] : {std::pair<const char*, int64_t>("unlimited", 0),
                                   {"0", 0},
                                   {"0Mbit", 0},
                                   {"100Mbit/s", 100'000'000},
                                   {" 20 Mbit ", 20'000'000},
                                   {"1.5Gbit", 1'500'000'000},
                                   {"64kbit", 64'000},
                                   {"1200bit", 1200},
                                   {"1000Gbit", kMaxBitRate}}) {
    const auto parsed = ParseBitRate(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, rate) << text;
  }
}

TEST(BitRate, WhatIsNoneIsNamed) {
  for (const char* text : {"", "20", "20MB", "Mbit", "-1Mbit", "nanMbit", "infGbit", "10bit",
                           "1001Gbit", "20Gbitkbit", "1kbitMbit", "Mbit20"}) {
    const auto parsed = ParseBitRate(text);
    ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(text));
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("write 100Mbit"));
  }
}

TEST(BitRate, IsWrittenAsItIsRead) {
  for (const int64_t rate : {int64_t{0}, int64_t{1234}, int64_t{1'500'000}, int64_t{2'000'000'000},
                             kMinUplink, kMaxUplink, kMaxBitRate}) {
    EXPECT_EQ(ParseBitRate(FormatBitRate(rate)).value(), rate);
  }
}

}  // namespace
}  // namespace isthmus
