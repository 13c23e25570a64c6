#include "base/cure.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace isthmus {
namespace {

TEST(Cure, TheMarkStaysWhereAnErrorIsPassedOn) {
  const absl::Status error = absl::UnavailableError("no connection: check that its port is open");
  EXPECT_FALSE(TellsCure(error));
  const absl::Status marked = WithCure(error);
  EXPECT_EQ(marked.message(), error.message());
  EXPECT_EQ(marked.code(), error.code());
  EXPECT_TRUE(TellsCure(marked));
  EXPECT_TRUE(TellsCure(Annotate(Annotate(marked, "link b0"), "stage 1")));
  EXPECT_FALSE(TellsCure(absl::OkStatus()));
}

}  // namespace
}  // namespace isthmus
