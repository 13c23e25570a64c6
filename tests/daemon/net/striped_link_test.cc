// Links of several connections over loopback gRPC.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "daemon/net/frame_chunks.h"
#include "daemon/net/striped_stream.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"
#include "proto/failure_cause.h"
#include "proto/plan/link_bounds.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kMaxPayload = int64_t{64} << 20;

bool Says(const absl::Status& status, const std::string& words) {
  return status.message().find(words) != absl::string_view::npos;
}

class StripedLinkTest : public testing::Test {
 protected:
  using Opened = absl::StatusOr<std::unique_ptr<worker::Link>>;

  StripedLinkTest() : cluster_(2, 1 << 20), plan_(TwoStagePlan()) {
    cluster_.Prepare(&plan_);
    plan_.mutable_links(0)->set_connections(4);
  }

  void OpenBoth() {
    std::thread serve([&] { upper_ = cluster_.opener(1)->Open(plan_, plan_.links(0), 1, kLong); });
    lower_ = cluster_.opener(0)->Open(plan_, plan_.links(0), 0, kLong);
    serve.join();
    ASSERT_TRUE(lower_.ok() && upper_.ok()) << lower_.status() << upper_.status();
  }
  std::unique_ptr<LinkStream> DialByHand(int connection, int connections) {
    auto channel = rpc::MakeChannel(absl::StrCat("127.0.0.1:", cluster_.server(1)->port()), {});
    auto stream = DialLinkStream(channel);
    LinkChunk chunk;
    LinkHello* hello = chunk.mutable_hello();
    hello->set_job_id(plan_.job_id());
    hello->set_generation(plan_.generation());
    hello->set_link_id("b0");
    hello->set_chunk_bytes(1000);
    hello->set_connection(connection);
    hello->set_connections(connections);
    EXPECT_TRUE(stream->Write(chunk));
    return stream;
  }

  LoopbackCluster cluster_;
  Plan plan_;
  Opened lower_ = absl::UnknownError("");
  Opened upper_ = absl::UnknownError("");
};

TEST_F(StripedLinkTest, FramesOfEverySizeBothWaysAtOnceAndTheOrderlyEnd) {
  OpenBoth();
  const std::vector<size_t> sizes = {0, 1, kMinChunkBytes, 5 * kMinChunkBytes + 1, 8 << 20, 3};
  std::vector<std::thread> threads;
  for (worker::Link* link : {lower_->get(), upper_->get()}) {
    threads.emplace_back([&sizes, link] {
      for (size_t i = 0; i < sizes.size(); ++i)
        ASSERT_TRUE(link->Send(MakeFrame(static_cast<int64_t>(i), sizes[i]), kLong).ok());
      const absl::Status finished = link->Finish(kLong);
      EXPECT_TRUE(finished.ok()) << finished;
    });
    threads.emplace_back([&sizes, link] {
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto got = link->Receive(kMaxPayload, kLong);
        ASSERT_TRUE(got.ok()) << got.status();
        const worker::Frame sent = MakeFrame(static_cast<int64_t>(i), sizes[i]);
        ASSERT_EQ(got->header.step(), sent.header.step());
        ASSERT_TRUE(got->payload == sent.payload);
      }
      EXPECT_EQ(link->Receive(kMaxPayload, kLong).status().code(), absl::StatusCode::kOutOfRange);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE((*lower_)->wire_bytes_sent(), 8 << 20);
}

TEST_F(StripedLinkTest, WhyOneEndStopsReachesTheOtherWithItsCause) {
  for (const bool dialling : {true, false}) {
    OpenBoth();
    worker::Link* from = dialling ? lower_->get() : upper_->get();
    worker::Link* to = dialling ? upper_->get() : lower_->get();
    std::thread receiver([&] {
      const absl::Status status = to->Receive(kMaxPayload, kLong).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      EXPECT_TRUE(Says(status, "out of memory")) << status;
      EXPECT_EQ(CauseBeside(status).step(), 17) << status;
    });
    from->Cancel(WithCause(absl::ResourceExhaustedError("out of memory"),
                           MakeCause(FailureCause::SESSION_FAILED, 1, "node-b", 17)));
    receiver.join();
    lower_ = absl::UnknownError("");
    upper_ = absl::UnknownError("");
    plan_.set_generation(plan_.generation() + 1);
    cluster_.Prepare(&plan_);
  }
}

TEST_F(StripedLinkTest, APeerThatKnowsOneConnectionGetsOne) {
  std::thread serve([&] { upper_ = cluster_.opener(1)->Open(plan_, plan_.links(0), 1, kLong); });
  const auto old = DialByHand(0, 0);
  LinkChunk answer;
  EXPECT_TRUE(old->Read(&answer));
  serve.join();
  ASSERT_TRUE(upper_.ok()) << upper_.status();
  EXPECT_EQ(answer.hello().connections(), 0);

  std::thread dial([&] { lower_ = cluster_.opener(0)->Open(plan_, plan_.links(0), 0, kLong); });
  auto taken = cluster_.board(1)->Await(plan_.job_id(), plan_.generation(), "b0", kLong);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(taken->hello.connections(), 4);
  const auto older = ServeLinkStream(taken->call);
  answer.mutable_hello()->set_from_node_id("id-1");
  EXPECT_TRUE(older->Write(answer));
  dial.join();
  ASSERT_TRUE(lower_.ok()) << lower_.status();
  ASSERT_TRUE((*lower_)->Send(MakeFrame(1, 5), kLong).ok());
  LinkChunk got;
  ASSERT_TRUE(older->Read(&got));
  EXPECT_EQ(got.sequence(), 0u);
  EXPECT_EQ(got.data().size(), 5u);
}

TEST_F(StripedLinkTest, AnotherNumberOfConnectionsIsRefusedInWords) {
  std::thread serve([&] { upper_ = cluster_.opener(1)->Open(plan_, plan_.links(0), 1, kLong); });
  const auto other = DialByHand(0, 3);
  LinkChunk answer;
  EXPECT_FALSE(other->Read(&answer));
  serve.join();
  EXPECT_TRUE(Says(other->WhyBroken(), "has 3 connections for the link, this one's has 4"))
      << other->WhyBroken();
  EXPECT_EQ(upper_.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StripedLinkTest, ADialWithoutItsSiblingsFailsInWordsAtBothEnds) {
  std::thread serve([&] {
    upper_ = cluster_.opener(1)->Open(plan_, plan_.links(0), 1, absl::Milliseconds(300));
  });
  const auto first = DialByHand(0, 4);
  LinkChunk answer;
  EXPECT_TRUE(first->Read(&answer));
  const auto third = DialByHand(2, 4);
  serve.join();
  EXPECT_EQ(upper_.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(upper_.status(), "connection 2 of 4: nobody dialled")) << upper_.status();
  EXPECT_FALSE(first->Read(&answer));
  EXPECT_TRUE(Says(first->WhyBroken(), "connection 2 of 4")) << first->WhyBroken();
}

TEST_F(StripedLinkTest, ASecondConnectionThatNobodyTakesFailsInWords) {
  std::thread dial([&] {
    lower_ = cluster_.opener(0)->Open(plan_, plan_.links(0), 0, absl::Milliseconds(500));
  });
  auto taken = cluster_.board(1)->Await(plan_.job_id(), plan_.generation(), "b0", kLong);
  ASSERT_TRUE(taken.ok());
  const auto stream = ServeLinkStream(taken->call);
  LinkChunk answer;
  *answer.mutable_hello() = taken->hello;
  EXPECT_TRUE(stream->Write(answer));
  dial.join();
  EXPECT_EQ(lower_.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(lower_.status(), "connection 2 of 4: connected, but the peer's session did not"))
      << lower_.status();
}

TEST_F(StripedLinkTest, HellosThatCountWronglyAreRefused) {
  for (const auto& [connection, connections] :
       {std::pair(9, 20), {1, 1}, {-1, 4}, {4, 4}, {1, 0}}) {
    const auto stream = DialByHand(connection, connections);
    LinkChunk answer;
    EXPECT_FALSE(stream->Read(&answer));
    EXPECT_TRUE(Says(stream->WhyBroken(), "a link has 1 to 8, counted from 0"))
        << stream->WhyBroken();
  }
  plan_.mutable_links(0)->set_connections(kMaxConnections + 1);
  EXPECT_TRUE(Says(cluster_.opener(0)->Open(plan_, plan_.links(0), 0, kLong).status(),
                   "link b0 has 9 connections; 8 are allowed"));
}

}  // namespace
}  // namespace isthmus::daemon
