#include "base/rpc/channel.h"

#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

namespace isthmus::rpc {
namespace {

TEST(CheckAddress, TakesHostAndPort) {
  for (const char* good : {"127.0.0.1:7070", "host-a.example:0", "[::1]:65535", "localhost:1"}) {
    EXPECT_TRUE(CheckAddress("--listen", good).ok()) << good;
  }
}

TEST(CheckAddress, NamesTheFlagAndTheFault) {
  for (const char* bad :
       {"", "host", ":7070", "host:", "host:65536", "host:-1", "host:7o70", "::1:7070", "[]:1",
        "[::1:7070", "a b:1", "http://host:80", "host:000080"}) {
    const absl::Status status = CheckAddress("--listen", bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("--listen"), absl::string_view::npos) << status;
  }
}

TEST(StatusMapping, KeepsEveryCodeAndMessageBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

TEST(StatusMapping, UnknownNumbersBecomeUnknown) {
  // 31 is the largest value that the enum can hold.
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(31), "x")).code(),
            absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace isthmus::rpc
