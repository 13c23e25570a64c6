#include "worker/checkpoint/local_pace.h"

#include <gtest/gtest.h>

namespace isthmus::worker {
namespace {

absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }

TEST(LocalPace, WritingTakesAtMostItsShareOfTheTime) {
  LocalPace pace(/*paced=*/true);
  EXPECT_FALSE(pace.Holds(At(0)));
  pace.Wrote(At(10), absl::Seconds(1), 1000);
  EXPECT_TRUE(pace.Holds(At(10)));
  EXPECT_TRUE(pace.Holds(At(33.9)));
  EXPECT_FALSE(pace.Holds(At(34))) << "1 s of 25";
}

TEST(LocalPace, ADiskIsSpared) {
  LocalPace pace(/*paced=*/true);
  pace.Wrote(At(10), absl::Seconds(1), 500'000'000);
  EXPECT_TRUE(pace.Holds(At(109)));
  EXPECT_FALSE(pace.Holds(At(110))) << "5 MB/s";
}

TEST(LocalPace, WhatTheJobAsksForIsNotHeldBack) {
  LocalPace pace(/*paced=*/false);
  pace.Wrote(At(10), absl::Seconds(1), int64_t{1} << 40);
  EXPECT_FALSE(pace.Holds(At(10)));
}

TEST(LocalPace, ADiskThatRefusesIsLeftAloneForAWhile) {
  for (const bool paced : {false, true}) {
    LocalPace pace(paced);
    pace.Refused(At(10));
    EXPECT_TRUE(pace.Holds(At(69)));
    EXPECT_FALSE(pace.Holds(At(70)));
  }
}

}  // namespace
}  // namespace isthmus::worker
