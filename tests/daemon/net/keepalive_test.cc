// F23: a client that pings faster than a server wants is cut off by gRPC's default ("too many
// pings"). Ours never cut off.
#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "gtest/gtest.h"
#include "proto/peer_service.grpc.pb.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

TEST(Keepalive, OurServerTakesAHundredPingsWithoutData) {
  LoopbackCluster cluster(1);
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", cluster.server(0)->port()),
                                grpc::InsecureChannelCredentials(), args);
  const auto stub = Peer::NewStub(channel);
  grpc::ClientContext context;
  const auto stream =
      stub->Link(&context);  // an open call that says nothing: pings are the only traffic
  LinkChunk hello;
  hello.mutable_hello()->set_job_id("job");
  hello.mutable_hello()->set_generation(1);
  hello.mutable_hello()->set_link_id("b0");
  ASSERT_TRUE(stream->Write(hello));
  // The state leaves READY when the server says goodbye.
  grpc_connectivity_state state = channel->GetState(false);
  ASSERT_EQ(state, GRPC_CHANNEL_READY);
  EXPECT_FALSE(channel->WaitForStateChange(
      GRPC_CHANNEL_READY, std::chrono::system_clock::now() + std::chrono::seconds(5)));
  context.TryCancel();
  LinkChunk ignored;
  while (stream->Read(&ignored)) {
  }
  stream->Finish();
}

}  // namespace
}  // namespace isthmus::daemon
