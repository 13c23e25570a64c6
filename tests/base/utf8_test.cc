#include "base/utf8.h"

#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(Utf8, WhatIsValidStaysAsItIs) {
  for (const char* text : {"", "plain", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(ToUtf8(text), text);
  }
  EXPECT_TRUE(IsUtf8(absl::string_view("a\0b", 3)));
}

TEST(Utf8, WhatIsNotGetsASignForEachByte) {
  const std::string sign = "\xef\xbf\xbd";
  EXPECT_EQ(ToUtf8("B\xfc"
                   "cher.txt"),
            "B" + sign + "cher.txt")
      << "Latin-1";
  EXPECT_EQ(ToUtf8("cut \xe2\x82"), "cut " + sign + sign);
  EXPECT_EQ(ToUtf8("\x80"), sign) << "a byte that only goes on";
  EXPECT_EQ(ToUtf8("\xc0\xaf"), sign + sign) << "longer than it need be";
  EXPECT_EQ(ToUtf8("\xe0\x80\xaf"), sign + sign + sign);
  EXPECT_EQ(ToUtf8("\xed\xa0\x80"), sign + sign + sign) << "a surrogate";
  EXPECT_EQ(ToUtf8("\xf4\x90\x80\x80"), sign + sign + sign + sign) << "beyond the last one";
  EXPECT_EQ(ToUtf8("\xff\xfe"), sign + sign);
  EXPECT_FALSE(IsUtf8("a\xfc"));
}

}  // namespace
}  // namespace isthmus
