#include "daemon/net/link_error.h"

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/failure_cause.h"

namespace isthmus::daemon {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

absl::Status Failed(const std::string& words) {
  return WithCause(absl::ResourceExhaustedError(words),
                   MakeCause(FailureCause::SESSION_FAILED, 1, "n1", 17));
}

TEST(LinkError, AnEndLearnsWordsCodeAndCauseByBothWays) {
  for (const std::string& words : {std::string("the disk is full"), std::string("OK: all's well"),
                                   std::string("\x1f ma\xffny \x1f\n"), std::string()}) {
    for (const absl::Status& seen :
         {ErrorOf(ErrorChunk(Failed(words))), FromTrailer(ToTrailer(Failed(words)))}) {
      EXPECT_EQ(seen.code(), absl::StatusCode::kResourceExhausted) << words;
      ASSERT_TRUE(CauseOf(seen).has_value()) << words;
      EXPECT_EQ(CauseBeside(seen).rank(), 1);
      EXPECT_EQ(CauseBeside(seen).node(), "n1");
      EXPECT_EQ(CauseBeside(seen).step(), 17);
      EXPECT_THAT(std::string(seen.message()), EndsWith(CauseOf(seen)->story()));
    }
  }
  EXPECT_EQ(CauseOf(FromTrailer(ToTrailer(Failed("full"))))->story(), "full");
}

TEST(LinkError, WithoutACauseTheWordsStayAsTheyAre) {
  const absl::Status plain = absl::DataLossError("a bit flipped");
  EXPECT_EQ(FromTrailer(ToTrailer(plain)), plain);
  EXPECT_EQ(ErrorOf(ErrorChunk(plain)),
            absl::DataLossError("the peer ended the link: a bit flipped"));
  EXPECT_TRUE(FromTrailer(absl::OkStatus()).ok());
}

TEST(LinkError, WhatAPeerMakesUpIsBoundedAndNeverAnOrderlyEnd) {
  LinkChunk last;
  last.set_error(std::string(1 << 20, 'e'));
  for (int code : {-1, 0, static_cast<int>(absl::StatusCode::kOutOfRange), 17, 1 << 30}) {
    last.set_code(code);
    EXPECT_EQ(ErrorOf(last).code(), absl::StatusCode::kAborted) << code;
    EXPECT_LT(ErrorOf(last).message().size(), kMaxReasonBytes + 100);
  }
  for (const char* text : {"words\x1f", "words\x1f!!!", "words\x1f////"}) {
    const absl::Status told = absl::DataLossError(text);
    EXPECT_FALSE(CauseOf(FromTrailer(told)).has_value()) << text;
    EXPECT_THAT(std::string(FromTrailer(told).message()), HasSubstr("words"));
  }
  EXPECT_LT(ToTrailer(Failed(std::string(1 << 20, 'e'))).message().size(), kMaxReasonBytes + 300);
}

}  // namespace
}  // namespace isthmus::daemon
