#include "daemon/net/link_stream.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

class LinkStreamTest : public testing::Test {
 protected:
  LinkStreamTest() : cluster_(1) {
    cluster_.board(0)->SetSession("job", 1);
    auto channel = rpc::MakeChannel(absl::StrCat("127.0.0.1:", cluster_.server(0)->port()), {});
    EXPECT_TRUE(
        channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
    client_ = DialLinkStream(channel);
    LinkChunk hello;
    hello.mutable_hello()->set_job_id("job");
    hello.mutable_hello()->set_generation(1);
    hello.mutable_hello()->set_link_id("b0");
    EXPECT_TRUE(client_->Write(hello));
    server_ = ServeLinkStream(cluster_.board(0)->Await("job", 1, "b0", kLong).value().call);
  }

  LoopbackCluster cluster_;
  std::unique_ptr<LinkStream> client_;
  std::unique_ptr<LinkStream> server_;
};

LinkChunk Data(const std::string& data) {
  LinkChunk chunk;
  chunk.set_data(data);
  return chunk;
}

TEST_F(LinkStreamTest, CarriesChunksBothWaysAndEnds) {
  LinkChunk got;
  ASSERT_TRUE(client_->Write(Data("up")) && server_->Read(&got));
  EXPECT_EQ(got.data(), "up");
  ASSERT_TRUE(server_->Write(Data("down")) && client_->Read(&got));
  EXPECT_EQ(got.data(), "down");
  EXPECT_TRUE(server_->End(absl::OkStatus()).ok());
  EXPECT_TRUE(client_->End(absl::OkStatus()).ok());
}

TEST_F(LinkStreamTest, AKilledServerTellsWhyAlsoIfItIsKilledWhileItReads) {
  std::thread reader([&] {
    LinkChunk got;
    EXPECT_FALSE(server_->Read(&got));
  });
  server_->Kill(absl::DataLossError("a bit flipped"));
  reader.join();
  LinkChunk got;
  EXPECT_FALSE(client_->Read(&got));
  EXPECT_EQ(client_->WhyBroken(), absl::DataLossError("a bit flipped"));
}

TEST_F(LinkStreamTest, AKilledClientIsABrokenConnectionForTheServer) {
  client_->Kill(absl::CancelledError(""));
  LinkChunk got;
  EXPECT_FALSE(server_->Read(&got));
  EXPECT_EQ(server_->WhyBroken().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LinkStreamTest, ADroppedServerStreamLetsItsHandlerGo) {
  server_.reset();
  LinkChunk got;
  EXPECT_FALSE(client_->Read(&got));
  EXPECT_EQ(client_->WhyBroken().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace isthmus::daemon
