// Links over loopback gRPC whose connections are cut: what both ends do about it.
#include "daemon/net/redialler.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/queue.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/net/cut_proxy.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kMaxPayload = int64_t{64} << 20;

class RediallerTest : public testing::Test {
 protected:
  RediallerTest() : cluster_(2, 1 << 20), plan_(TwoStagePlan()) {
    cluster_.Prepare(&plan_);
    proxy_ = std::make_unique<CutProxy>(cluster_.server(1)->port());
    plan_.mutable_ranks(1)->set_address(proxy_->address());
  }

  void Open(int connections = 1) {
    if (connections > 1) plan_.mutable_links(0)->set_connections(connections);
    std::thread serve([&] {
      auto opened = cluster_.opener(1)->Open(plan_, plan_.links(0), 1, kLong);
      ASSERT_TRUE(opened.ok()) << opened.status();
      upper_ = *std::move(opened);
    });
    auto opened = lower_opener_->Open(plan_, plan_.links(0), 0, kLong);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) lower_ = *std::move(opened);
    serve.join();
  }
  // Frames 0 to `count` of `bytes` each way at once.
  void Exchange(int count, size_t bytes) {
    std::vector<std::thread> threads;
    for (worker::Link* link : {lower_.get(), upper_.get()}) {
      threads.emplace_back([=] {
        for (int i = 0; i < count; ++i) {
          const absl::Status sent = link->Send(MakeFrame(i, bytes), kLong);
          ASSERT_TRUE(sent.ok()) << i << ": " << sent;
        }
      });
      threads.emplace_back([=] {
        for (int i = 0; i < count; ++i) {
          const auto got = link->Receive(kMaxPayload, kLong);
          ASSERT_TRUE(got.ok()) << i << ": " << got.status();
          ASSERT_EQ(got->header.step(), i);
          ASSERT_TRUE(got->payload == MakeFrame(i, bytes).payload) << i;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Finish() {
    std::thread upper([&] { EXPECT_TRUE(upper_->Finish(kLong).ok()); });
    EXPECT_TRUE(lower_->Finish(kLong).ok());
    upper.join();
  }

  LoopbackCluster cluster_;
  GrpcLinkOpener* lower_opener_ = cluster_.opener(0);
  Plan plan_;
  std::unique_ptr<CutProxy> proxy_;
  std::unique_ptr<worker::Link> lower_;
  std::unique_ptr<worker::Link> upper_;
};

TEST_F(RediallerTest, NothingIsLostOnAConnectionThatIsCutAgainAndAgain) {
  constexpr int kCuts = 12;
  Open();
  proxy_->CutEvery(10'000, 700'000, kCuts);
  Exchange(120, 200'000);
  EXPECT_EQ(proxy_->cuts(), kCuts);
  EXPECT_GT(proxy_->accepted(), kCuts);
  Finish();
}

TEST_F(RediallerTest, NorOnALinkOfSeveral) {
  constexpr int kCuts = 5;
  Open(3);
  proxy_->CutEvery(10'000, 1'500'000, kCuts);
  Exchange(100, 200'000);
  EXPECT_EQ(proxy_->cuts(), kCuts);
  Finish();
}

TEST_F(RediallerTest, ItIsToldToWhomAConnectionBrokeAndThatItGoesOn) {
  BoundedQueue<std::string> told(10);
  GrpcLinkOpener opener(
      LinkOpenerOptions{"id-0",
                        cluster_.board(0),
                        cluster_.watchdog(),
                        {},
                        [&](const std::string& peer, const std::string& trouble) {
                          EXPECT_TRUE(told.Push(absl::StrCat(peer, ": ", trouble), kLong).ok());
                        },
                        nullptr});
  lower_opener_ = &opener;
  Open();
  proxy_->Cut();
  Exchange(1, 1000);
  EXPECT_THAT(told.Pop(kLong).value(), StartsWith("id-1: link b0 to node-b ("));
  EXPECT_EQ(told.Pop(kLong).value(), "id-1: ");
  Finish();
  lower_.reset();
}

// A frame that was sent and not read when the connection broke, with nothing sent after it.
TEST_F(RediallerTest, WhatWasUnderWayIsSentAgainUnasked) {
  Open();
  proxy_->Hold(true);
  ASSERT_TRUE(lower_->Send(MakeFrame(1, 1000), kLong).ok());
  ASSERT_TRUE(upper_->Send(MakeFrame(2, 1000), kLong).ok());
  proxy_->Cut();
  proxy_->Hold(false);
  std::thread upper([&] { EXPECT_TRUE(upper_->Receive(kMaxPayload, kLong).ok()); });
  EXPECT_TRUE(lower_->Receive(kMaxPayload, kLong).ok());
  upper.join();
  EXPECT_EQ(proxy_->cuts(), 1);
  Finish();
}

// Else the outage would count as the time that its bytes took.
TEST_F(RediallerTest, AFrameThatABreakInterruptedTellsNothingOfTheRate) {
  Open();
  std::promise<void> waits;
  std::thread upper([&] {
    waits.set_value();
    const auto got = upper_->Receive(kMaxPayload, kLong);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->train_bytes, 0);
  });
  waits.get_future().wait();
  proxy_->CutEvery(1'000'000, 0, 1);
  EXPECT_TRUE(lower_->Send(MakeFrame(1, 4'000'000), kLong).ok());
  upper.join();
  EXPECT_EQ(proxy_->cuts(), 1);
  Finish();
}

TEST_F(RediallerTest, TheServingEndWakesADiallerThatHasNotNoticed) {
  Open();
  proxy_->CutServerAlone();
  std::thread upper([&] { EXPECT_TRUE(upper_->Receive(kMaxPayload, kLong).ok()); });
  EXPECT_TRUE(upper_->Send(MakeFrame(1, 1000), kLong).ok());
  EXPECT_TRUE(lower_->Receive(kMaxPayload, kLong).ok());
  EXPECT_TRUE(lower_->Send(MakeFrame(1, 1000), kLong).ok());
  upper.join();
  Finish();
}

TEST_F(RediallerTest, ADaemonThatIsGoneEndsTheLinkAtOnce) {
  Open();
  std::thread upper([&] {
    const absl::Status status = upper_->Receive(kMaxPayload, kLong).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not open here any more"));
  });
  proxy_->Go();
  const absl::Status status = lower_->Receive(kMaxPayload, kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("; nobody listens there"));
  upper.join();
}

TEST_F(RediallerTest, AnEndThatCancelsIsNotDialledAgain) {
  for (const bool dialling : {true, false}) {
    Open();
    const int before = proxy_->accepted();
    worker::Link* from = dialling ? lower_.get() : upper_.get();
    worker::Link* to = dialling ? upper_.get() : lower_.get();
    std::thread receiver([&] {
      const absl::Status status = to->Receive(kMaxPayload, kLong).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("another link of it broke"));
    });
    from->Cancel(absl::UnavailableError("another link of it broke"));
    receiver.join();
    lower_.reset();
    upper_.reset();
    EXPECT_EQ(proxy_->accepted(), before);
    plan_.set_generation(plan_.generation() + 1);
    for (int stage = 0; stage < 2; ++stage)
      cluster_.board(stage)->SetSession(plan_.job_id(), plan_.generation());
  }
}

RedialOptions OptionsFor(LoopbackCluster* cluster, const std::string& address) {
  RedialOptions options;
  options.address = address;
  options.hello.set_job_id("job-1");
  options.hello.set_generation(7);
  options.hello.set_link_id("b0");
  options.hello.set_from_node_id("id-0");
  options.hello.set_to_node_id("id-1");
  options.peer_node_id = "id-1";
  options.board = &cluster->board(0)->redials();
  options.watchdog = cluster->watchdog();
  options.patience = absl::Milliseconds(300);
  return options;
}

TEST(Redialler, BothEndsGiveUpAfterTheirPatience) {
  LoopbackCluster cluster(2);
  CutProxy proxy(cluster.server(1)->port());
  proxy.Hold(true);
  RedialOptions options = OptionsFor(&cluster, proxy.address());
  const absl::Status dialled = DialAgain(options)->Redial(0).status();
  EXPECT_EQ(dialled.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(dialled.message()), HasSubstr("not mended within 300ms (no answer of"));
  EXPECT_EQ(AwaitDial(options)->Redial(0).status(),
            absl::UnavailableError("not mended within 300ms (it did not dial)"));
}

TEST(Redialler, ALinkThatIsNotThereIsFinalForBothEnds) {
  LoopbackCluster cluster(2);
  RedialOptions options =
      OptionsFor(&cluster, absl::StrCat("127.0.0.1:", cluster.server(1)->port()));
  options.patience = kLong;
  options.reached = std::make_shared<std::atomic<bool>>(true);
  for (const auto& make : {DialAgain, AwaitDial}) {
    const absl::Status status = make(options)->Redial(0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("link b0 of job job-1, generation 7, is not open here any more"));
  }
}

// A dialler behind NAT: nobody answers at its address.
TEST(Redialler, TheServingEndAsksNobodyThatItHasNotReached) {
  LoopbackCluster cluster(2);
  RedialOptions options =
      OptionsFor(&cluster, absl::StrCat("127.0.0.1:", cluster.server(1)->port()));
  options.reached = std::make_shared<std::atomic<bool>>(false);
  cluster.server(1)->Shutdown();
  const auto redialler = AwaitDial(options);
  redialler->Prepare();
  EXPECT_FALSE(*options.reached);
  EXPECT_EQ(redialler->Redial(0).status(),
            absl::UnavailableError("not mended within 300ms (it did not dial)"));
}

TEST(Redialler, WhereItHasReachedTheOtherOneARefusalThereIsFinal) {
  LoopbackCluster cluster(2);
  RedialOptions options =
      OptionsFor(&cluster, absl::StrCat("127.0.0.1:", cluster.server(1)->port()));
  options.patience = kLong;
  options.reached = std::make_shared<std::atomic<bool>>(false);
  const auto redialler = AwaitDial(options);
  redialler->Prepare();
  EXPECT_TRUE(*options.reached);
  cluster.server(1)->Shutdown();
  EXPECT_EQ(redialler->Redial(0).status(), absl::FailedPreconditionError("nobody listens there"));
}

TEST(Redialler, CancelEndsBoth) {
  LoopbackCluster cluster(2);
  CutProxy proxy(cluster.server(1)->port());
  proxy.Hold(true);
  RedialOptions options = OptionsFor(&cluster, proxy.address());
  options.patience = kLong;
  options.reached = std::make_shared<std::atomic<bool>>(true);
  for (const auto& make : {DialAgain, AwaitDial}) {
    const auto redialler = make(options);
    std::thread waits(
        [&] { EXPECT_EQ(redialler->Redial(0).status().code(), absl::StatusCode::kCancelled); });
    redialler->Cancel();
    waits.join();
  }
}

}  // namespace
}  // namespace isthmus::daemon
