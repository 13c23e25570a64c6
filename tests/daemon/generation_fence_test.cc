#include "daemon/generation_fence.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

// The job whose id came first in the alphabet was forgotten, whichever was seen last.
TEST(GenerationFence, ForgetsTheJobThatWasNotSeenForLongest) {
  GenerationFence fence;
  const auto name = [](size_t i) { return absl::StrCat("job-", 1000 - i); };  // the first is last
  for (size_t i = 0; i < GenerationFence::kMaxJobs; ++i) fence.Accept(name(i), 10 + i);
  EXPECT_EQ(fence.Newest(name(0)), 10u) << "seen again";
  fence.Accept("a-new-one", 500);
  EXPECT_EQ(fence.Newest(name(0)), 10u);
  EXPECT_EQ(fence.Newest(name(1)), 0u) << "not seen for longest";
  EXPECT_EQ(fence.Newest(name(2)), 12u);
  EXPECT_EQ(fence.Newest("a-new-one"), 500u);
}

TEST(GenerationFence, AQuestionAboutAnUnknownJobTakesNoPlace) {
  GenerationFence fence;
  fence.Accept("job-1", 7);
  for (size_t i = 0; i < 10 * GenerationFence::kMaxJobs; ++i)
    EXPECT_EQ(fence.Newest(absl::StrCat("other-", i)), 0u);
  EXPECT_EQ(fence.Newest("job-1"), 7u);
  fence.Accept("job-1", 9);
  EXPECT_EQ(fence.Newest("job-1"), 9u);
}

}  // namespace
}  // namespace isthmus::daemon
