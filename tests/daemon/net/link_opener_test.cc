#include "daemon/net/link_opener.h"

#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

bool Says(const absl::Status& status, const std::string& word) {
  return status.message().find(word) != absl::string_view::npos;
}

TEST(LinkOpener, NobodyAtTheAddressIsUnavailable) {
  LoopbackCluster cluster(1);
  Plan plan = TwoStagePlan();
  plan.mutable_ranks(1)->set_address("127.0.0.1:1");
  const auto link = cluster.opener(0)->Open(plan, plan.links(0), 0, absl::Milliseconds(300));
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(link.status(), "check that the daemon runs there")) << link.status();
}

TEST(LinkOpener, ADialThatNeverComesIsUnavailableAndNamed) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  const auto link = cluster.opener(1)->Open(plan, plan.links(0), 1, absl::Milliseconds(20));
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(link.status(), "nobody dialled within 20ms: check that the daemon there runs"))
      << link.status();
}

TEST(LinkOpener, APeerWhoseSessionDoesNotComeIsUnavailable) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  const auto link = cluster.opener(0)->Open(plan, plan.links(0), 0, absl::Milliseconds(300));
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(link.status(), "the peer's session did not take the link")) << link.status();
}

TEST(LinkOpener, AnOldGenerationIsRefusedTellingBoth) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  cluster.board(1)->SetSession(plan.job_id(), 9);
  const auto link = cluster.opener(0)->Open(plan, plan.links(0), 0, kLong);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(link.status(), "generation 7") && Says(link.status(), "generation 9"))
      << link.status();
}

TEST(LinkOpener, CancelEndsBothKindsOfWait) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  absl::Status dialled;
  absl::Status served;
  Plan other = plan;
  other.mutable_links(0)->set_id("b1");  // nobody dials this one
  std::thread dial(
      [&] { dialled = cluster.opener(0)->Open(plan, plan.links(0), 0, kLong).status(); });
  std::thread serve(
      [&] { served = cluster.opener(1)->Open(other, other.links(0), 1, kLong).status(); });
  cluster.opener(0)->Cancel(absl::CancelledError("stop now"));
  cluster.opener(1)->Cancel(absl::CancelledError("stop now"));
  dial.join();
  serve.join();
  EXPECT_TRUE(Says(dialled, "stop now")) << dialled;
  EXPECT_TRUE(Says(served, "stop now")) << served;
}

TEST(LinkOpener, BothEndsTellThatTheyExchangeCodecStates) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  absl::StatusOr<std::unique_ptr<worker::Link>> served = absl::UnknownError("");
  std::thread serve([&] { served = cluster.opener(1)->Open(plan, plan.links(0), 1, kLong); });
  const auto dialled = cluster.opener(0)->Open(plan, plan.links(0), 0, kLong);
  serve.join();
  ASSERT_TRUE(dialled.ok() && served.ok()) << dialled.status() << served.status();
  EXPECT_TRUE((*dialled)->peer_exchanges_codec_state());
  EXPECT_TRUE((*served)->peer_exchanges_codec_state());
}

TEST(LinkOpener, TheUpperStageDialsWhereThePlanSaysSo) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  plan.mutable_links(0)->set_upper_dials(true);
  plan.mutable_ranks(1)->set_address("127.0.0.1:1");  // nobody can dial it
  absl::StatusOr<std::unique_ptr<worker::Link>> dialled = absl::UnknownError("");
  std::thread dial([&] { dialled = cluster.opener(1)->Open(plan, plan.links(0), 1, kLong); });
  const auto served = cluster.opener(0)->Open(plan, plan.links(0), 0, kLong);
  dial.join();
  EXPECT_TRUE(dialled.ok() && served.ok()) << dialled.status() << served.status();
}

TEST(LinkOpener, AnotherDaemonAtTheAddressIsRefusedInWords) {
  LoopbackCluster cluster(1);
  Watchdog watchdog;
  DialBoard board;
  PeerServerOptions other;
  other.node_id = "other-id";
  other.name = "other";
  other.board = &board;
  other.watchdog = &watchdog;
  const auto server = PeerServer::Start(other).value();
  Plan plan = TwoStagePlan();
  plan.mutable_ranks(1)->set_address(absl::StrCat("127.0.0.1:", server->port()));
  const auto link = cluster.opener(0)->Open(plan, plan.links(0), 0, kLong);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(link.status(), "another daemon answers there: other (identity other-id)"))
      << link.status();
  server->Shutdown();
}

TEST(LinkOpener, AStageThatIsNotOfTheLinkIsRefused) {
  LoopbackCluster cluster(1);
  Plan plan = TwoStagePlan();
  for (int stage : {-1, 2, 100}) {
    EXPECT_EQ(cluster.opener(0)->Open(plan, plan.links(0), stage, kLong).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  plan.mutable_links(0)->set_upper(5);
  EXPECT_EQ(cluster.opener(0)->Open(plan, plan.links(0), 0, kLong).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// F7: an HTTP proxy of the environment must not catch what goes between daemons.
TEST(LinkOpener, AProxyInTheEnvironmentIsIgnored) {
  setenv("http_proxy", "http://127.0.0.1:9/", 1);
  setenv("grpc_proxy", "http://127.0.0.1:9/", 1);
  setenv("https_proxy", "http://127.0.0.1:9/", 1);
  {
    LoopbackCluster cluster(2);
    Plan plan = TwoStagePlan();
    cluster.Prepare(&plan);
    std::thread upper(
        [&] { EXPECT_TRUE(cluster.opener(1)->Open(plan, plan.links(0), 1, kLong).ok()); });
    const auto link = cluster.opener(0)->Open(plan, plan.links(0), 0, absl::Seconds(20));
    EXPECT_TRUE(link.ok()) << link.status();
    upper.join();
  }
  unsetenv("http_proxy");
  unsetenv("grpc_proxy");
  unsetenv("https_proxy");
}

}  // namespace
}  // namespace isthmus::daemon
