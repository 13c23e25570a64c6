#include "base/rpc/guarded.h"

#include <new>
#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::rpc {
namespace {

using ::testing::HasSubstr;

TEST(Guarded, ExceptionsBecomeAStatusInWords) {
  const auto memory = Guarded("FetchCheckpoint", []() -> grpc::Status { throw std::bad_alloc(); });
  EXPECT_EQ(memory.error_code(), grpc::StatusCode::UNAVAILABLE) << "worth another try";
  EXPECT_THAT(memory.error_message(), HasSubstr("FetchCheckpoint: this process has no memory"));
  const auto other =
      Guarded("List", []() -> grpc::Status { throw std::out_of_range("row 7 of 3"); });
  EXPECT_EQ(other.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(other.error_message(), "List failed: row 7 of 3");
  EXPECT_TRUE(Guarded("Status", [] { return grpc::Status::OK; }).ok());
}

}  // namespace
}  // namespace isthmus::rpc
