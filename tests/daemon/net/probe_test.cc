#include "daemon/net/probe.h"

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/peer_service.grpc.pb.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

NodeInfo PeerAt(const std::string& address) {
  NodeInfo peer;
  peer.set_id("peer-id");
  peer.set_name("peer");
  peer.set_address(address);
  return peer;
}

TEST(Prober, MeasuresLoopback) {
  LoopbackCluster cluster(1);
  Prober prober;
  const ProbeResult all =
      prober.Measure("me", PeerAt(absl::StrCat("127.0.0.1:", cluster.server(0)->port())), {});
  ASSERT_EQ(all.links_size(), 1);
  EXPECT_GT(all.bytes(), 0);
  const LinkMeasurement& result = all.links(0);
  EXPECT_EQ(result.error(), "");
  EXPECT_EQ(result.from_id(), "me");
  EXPECT_EQ(result.to_id(), "peer-id");
  EXPECT_GT(result.rate_bits_per_s(), 1e7);
  EXPECT_GT(result.round_trip_s(), 0);
  EXPECT_LT(result.round_trip_s(), 1);
}

TEST(Prober, MeasuresTheOtherWayToo) {
  LoopbackCluster cluster(1);
  Prober prober;
  ProbeOptions options;
  options.both_ways = true;
  options.max_bytes = 1 << 20;
  const ProbeResult result =
      prober.Measure("me", PeerAt(absl::StrCat("127.0.0.1:", cluster.server(0)->port())), options);
  ASSERT_EQ(result.links_size(), 2);
  EXPECT_EQ(result.links(1).from_id(), "peer-id");
  EXPECT_EQ(result.links(1).to_id(), "me");
  EXPECT_EQ(result.links(1).error(), "");
  EXPECT_GT(result.links(1).rate_bits_per_s(), 1e6);
  EXPECT_LE(result.bytes(), 4 << 20) << "max_bytes bounds both";
}

TEST(Prober, AnotherDaemonAtTheAddressIsRefusedInWords) {
  Watchdog watchdog;
  DialBoard board;
  PeerServerOptions other;
  other.node_id = "other-id";
  other.name = "other";
  other.board = &board;
  other.watchdog = &watchdog;
  const auto server = PeerServer::Start(other).value();
  Prober prober;
  const NodeInfo peer = PeerAt(absl::StrCat("127.0.0.1:", server->port()));
  const LinkMeasurement result = prober.Measure("me", peer, {}).links(0);
  EXPECT_NE(result.error().find("another daemon answers there: other (identity other-id), meant "
                                "was identity peer-id"),
            std::string::npos)
      << result.error();
  EXPECT_NE(result.error().find("--advertise"), std::string::npos);
  EXPECT_EQ(result.rate_bits_per_s(), 0);
  server->Shutdown();
}

// A daemon that does not look at whom a question is for still says who it is.
TEST(Prober, AnAnswerOfAnotherDaemonIsRefused) {
  struct Careless final : Peer::Service {
    grpc::Status Echo(grpc::ServerContext*, const ProbeRequest*, ProbeReply* reply) override {
      reply->set_node_id("other-id");
      return grpc::Status::OK;
    }
  } service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  Prober prober;
  const NodeInfo peer = PeerAt(absl::StrCat("127.0.0.1:", port));
  const LinkMeasurement result = prober.Measure("me", peer, {}).links(0);
  EXPECT_NE(result.error().find("identity other-id, meant was identity peer-id"), std::string::npos)
      << result.error();
  EXPECT_NE(result.error().find("--advertise"), std::string::npos);
  server->Shutdown();
}

TEST(Prober, APeerThatIsNotThereGivesAnErrorInTime) {
  Prober prober;
  ProbeOptions options;
  options.connect = absl::Milliseconds(300);
  for (const char* address : {"127.0.0.1:1", "no address", "host.invalid:7071", "192.0.2.1:9"}) {
    const absl::Time start = absl::Now();
    const LinkMeasurement result = prober.Measure("me", PeerAt(address), options).links(0);
    EXPECT_NE(result.error(), "") << address;
    EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << address;
    EXPECT_EQ(result.rate_bits_per_s(), 0);
  }
}

TEST(Prober, CancelEndsItNowAndLater) {
  Prober prober;
  ProbeOptions options;
  options.connect = absl::Seconds(60);
  options.budget = absl::Seconds(60);
  LinkMeasurement result;
  std::thread measuring(
      [&] { result = prober.Measure("me", PeerAt("127.0.0.1:1"), options).links(0); });
  prober.Cancel();
  measuring.join();
  EXPECT_NE(result.error().find("cancelled"), std::string::npos);
  EXPECT_NE(prober.Measure("me", PeerAt("127.0.0.1:1"), options).links(0).error(), "");
}

}  // namespace
}  // namespace isthmus::daemon
