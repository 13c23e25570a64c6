#include "proto/failure_cause.h"

#include "base/status.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(FailureCause, GoesWithAStatusThroughOtherWordsAndKeepsItsStory) {
  const FailureCause cause = MakeCause(FailureCause::SESSION_FAILED, 2, "n2", 17);
  const absl::Status told = WithCause(absl::DataLossError("a bit flipped"), cause);
  EXPECT_EQ(told.message(), "a bit flipped");
  const absl::Status seen = Reword(Annotate(Annotate(told, "link b0"), "receiving"), "no words");
  EXPECT_EQ(seen.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(seen.message(), "no words");
  EXPECT_EQ(CauseOf(seen)->story(), "a bit flipped");
  EXPECT_EQ(CauseBeside(seen).SerializeAsString(), cause.SerializeAsString());
}

TEST(FailureCause, WordsOfAnyBytesAreAStory) {
  const absl::Status told = WithCause(absl::NotFoundError("ma\xffny"), FailureCause());
  EXPECT_EQ(CauseOf(told)->story(), "ma\xEF\xBF\xBDny");
}

TEST(FailureCause, AStatusWithoutOneHasNone) {
  EXPECT_FALSE(CauseOf(absl::InternalError("session failed at stage 0")).has_value());
  EXPECT_EQ(CauseBeside(absl::OkStatus()).kind(), FailureCause::UNTOLD);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

}  // namespace
}  // namespace isthmus
