#include "base/rpc/library_logs.h"

#include "base/rpc/channel.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace isthmus::rpc {
namespace {

using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

class LibraryLogsTest : public testing::Test {
 protected:
  void SetUp() override { RouteLibraryLogs(); }
  void TearDown() override {
    gpr_set_log_function(nullptr);
    google::protobuf::SetLogHandler(nullptr);
  }
};

TEST_F(LibraryLogsTest, ATakenPortIsForUsToTell) {
  int port = 0;
  grpc::ServerBuilder first;
  const auto queue = first.AddCompletionQueue();  // a server without services wants one
  first.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  first.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = first.BuildAndStart();
  ASSERT_NE(server, nullptr);
  CaptureStderr();
  grpc::ServerBuilder second;
  const auto other_queue = second.AddCompletionQueue();
  second.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  second.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials());
  EXPECT_EQ(second.BuildAndStart(), nullptr);
  EXPECT_EQ(GetCapturedStderr(), "");
  server->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  for (grpc::ServerCompletionQueue* each : {queue.get(), other_queue.get()}) {
    each->Shutdown();
    while (each->Next(&tag, &ok)) {
    }
  }
}

TEST_F(LibraryLogsTest, ProtobufsComplaintsAreForUsToTell) {
  CaptureStderr();
  GOOGLE_LOG(ERROR) << "String field contains invalid UTF-8 data";
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST_F(LibraryLogsTest, LastWordsAreShown) {
  CaptureStderr();
  gpr_log(GPR_ERROR, "assertion failed: %s", "one == two");
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("grpc: assertion failed: one == two"));
}

// Its last shutdown would wait for threads of its own.
TEST(LibraryLogs, GrpcStaysAfterItsLastChannel) {
  KeepGrpcUntilExit();
  { const auto channel = MakeChannel("127.0.0.1:1", ChannelOptions()); }
  EXPECT_EQ(grpc_is_initialized(), 1);
}

}  // namespace
}  // namespace isthmus::rpc
