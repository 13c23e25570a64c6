#include "proto/job/field_error.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(FieldError, TheMessageSaysAllAndThePartsAreTold) {
  const absl::Status error = NotAllowed("recipe.steps", 0, "from 1 to 9: more than none");
  EXPECT_EQ(error.message(),
            "recipe.steps: '0' is not allowed; it must be from 1 to 9: more than none");
  const FieldFault fault = FaultOf(error);
  EXPECT_EQ(fault.field, "recipe.steps");
  EXPECT_EQ(fault.what, "'0' is not allowed; it must be from 1 to 9: more than none");
  EXPECT_EQ(fault.allowed, "from 1 to 9: more than none");
}

// Words of a user may look like ours.
TEST(FieldError, WordsInAValueAreNoParts) {
  const FieldFault fault = FaultOf(FieldError("name", "'a: it must be b' is taken"));
  EXPECT_EQ(fault.field, "name");
  EXPECT_EQ(fault.what, "'a: it must be b' is taken");
  EXPECT_EQ(fault.allowed, "");
}

TEST(FieldError, AnotherErrorIsOfNoField) {
  const FieldFault fault = FaultOf(absl::InvalidArgumentError("a: it must be b"));
  EXPECT_EQ(fault.field, "");
  EXPECT_EQ(fault.what, "a: it must be b");
  EXPECT_EQ(fault.allowed, "");
}

}  // namespace
}  // namespace isthmus
