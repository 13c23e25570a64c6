#include "base/rpc/allowed_calls.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::rpc {
namespace {

using tls::Role;

constexpr AllowedCall kTable[] = {{"/isthmus.Jobs/Stop", {Role::kOperator}},
                                  {"/isthmus.Jobs/List", {Role::kOperator, Role::kViewer}}};

TEST(AllowedCallsTest, ARoleMayWhatTheTableSays) {
  EXPECT_TRUE(CheckCall(kTable, {"ada", Role::kOperator}, "/isthmus.Jobs/Stop").ok());
  EXPECT_TRUE(CheckCall(kTable, {"bob", Role::kViewer}, "/isthmus.Jobs/List").ok());
  const absl::Status refused = CheckCall(kTable, {"bob", Role::kViewer}, "/isthmus.Jobs/Stop");
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(refused.message(),
            "bob (viewer) may not call Jobs.Stop: that takes a certificate of role operator");
  EXPECT_THAT(CheckCall(kTable, {"d0", Role::kWorker}, "/isthmus.Jobs/List").message(),
              testing::HasSubstr("of role operator or viewer"));
}

// As a server without certificates answers: a caller of another build asks again later, where a
// refusal for good would end it.
TEST(AllowedCallsTest, WhatIsNotInTheTableIsNotKnown) {
  for (const char* call : {"", "/isthmus.Jobs/Sto", "/isthmus.Jobs/Stop/", "/grpc.health/Check"}) {
    const absl::Status refused = CheckCall(kTable, {"ada", Role::kOperator}, call);
    EXPECT_TRUE(absl::IsUnimplemented(refused)) << call;
    EXPECT_THAT(refused.message(), testing::HasSubstr("does not know"));
  }
}

}  // namespace
}  // namespace isthmus::rpc
