// Sessions as threads over real gRPC links on loopback, with a stage of exact arithmetic: what
// holds over links in memory holds here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "tests/daemon/net/cut_proxy.h"
#include "tests/daemon/net/loopback_cluster.h"
#include "tests/worker/faulty_link.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using daemon::LoopbackCluster;
using ::testing::HasSubstr;

constexpr int64_t kServerWindow = 1 << 20;

Plan PlanFor(LoopbackCluster* cluster, const WorldShape& shape) {
  Plan plan = MakePlan(shape);
  cluster->Prepare(&plan);
  return plan;
}

std::vector<double> Losses(const WorldShape& shape, std::string* weights) {
  LoopbackCluster cluster(shape.stages, kServerWindow);
  World::Options options;
  options.links = &cluster;
  World world(PlanFor(&cluster, shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  *weights = world.Weights(shape.steps);
  return world.last().losses();
}

class AnyCut : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(AnyCut, EqualsOneStage) {
  WorldShape shape;
  shape.eval_every = 2;
  shape.stages = 1;
  std::string one_weights;
  const std::vector<double> one = Losses(shape, &one_weights);
  std::tie(shape.stages, shape.schedule) = GetParam();
  std::string weights;
  EXPECT_EQ(Losses(shape, &weights), one);
  EXPECT_EQ(weights, one_weights);
}

INSTANTIATE_TEST_SUITE_P(Stages, AnyCut,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values("1f1b", "gpipe")));

TEST(RankGrpc, DeltaCodecsAreTheSameRunToRun) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 20;
  shape.forward = "delta(quant(4))";
  shape.backward = "quant(6) | zstd";
  shape.check_buffers = true;
  std::string first_weights;
  const std::vector<double> first = Losses(shape, &first_weights);
  std::string weights;
  EXPECT_EQ(Losses(shape, &weights), first);
  EXPECT_EQ(weights, first_weights);
}

// Tensors of several chunks and more than the windows hold.
TEST(RankGrpc, BigTensorsBothWays) {
  WorldShape shape;
  shape.stages = 2;
  shape.layers = 2;
  shape.hidden = 256;
  shape.context = 256;
  shape.global_batch = 8;
  shape.micro_batch = 4;
  shape.steps = 2;
  std::string weights;
  const std::vector<double> two = Losses(shape, &weights);
  shape.stages = 1;
  EXPECT_EQ(Losses(shape, &weights), two);
}

TEST(RankGrpc, ACancelledRankEndsTheOthersWithItsReason) {
  for (int victim = 0; victim < 3; ++victim) {
    WorldShape shape;
    shape.stages = 3;
    shape.steps = 1'000'000;
    LoopbackCluster cluster(shape.stages, kServerWindow);
    World::Options options;
    options.links = &cluster;
    World world(PlanFor(&cluster, shape), options);
    world.Start();
    while (world.session(victim).step() < 3) std::this_thread::yield();
    const auto begin = std::chrono::steady_clock::now();
    world.session(victim).Cancel(absl::InternalError("the disk of that host is full"));
    for (const absl::Status& status : world.Join()) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("the disk of that host is full"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
}

TEST(RankGrpc, AStopEndsAllTogether) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 1'000'000;
  LoopbackCluster cluster(shape.stages, kServerWindow);
  World::Options options;
  options.links = &cluster;
  World world(PlanFor(&cluster, shape), options);
  world.Start();
  while (world.session(1).step() < 3) std::this_thread::yield();
  world.session(1).RequestStop();
  for (const absl::Status& status : world.Join()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(world.session(0).step(), world.session(2).step());
}

// Each step sends about 2 kB either way: connections are reset in every one or two.
TEST(RankGrpc, ConnectionsThatAreCutChangeNothing) {
  constexpr int kCuts = 15;
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 40;
  shape.forward = "delta(quant(4))";
  shape.backward = "quant(6)";
  shape.check_buffers = true;
  std::string undisturbed_weights;
  const std::vector<double> undisturbed = Losses(shape, &undisturbed_weights);

  LoopbackCluster cluster(shape.stages, kServerWindow);
  World::Options options;
  options.links = &cluster;
  Plan plan = PlanFor(&cluster, shape);
  std::vector<std::unique_ptr<daemon::CutProxy>> proxies;
  for (int rank = 0; rank < shape.stages; ++rank) {
    proxies.push_back(std::make_unique<daemon::CutProxy>(cluster.server(rank)->port()));
    plan.mutable_ranks(rank)->set_address(proxies.back()->address());
    proxies.back()->CutEvery(20'000, 3'000, kCuts);  // the first after the links are open
  }
  World world(plan, options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(world.last().losses(), undisturbed);
  EXPECT_EQ(world.Weights(shape.steps), undisturbed_weights);
  EXPECT_EQ(proxies[1]->cuts() + proxies[2]->cuts(), 2 * kCuts);
}

// Bulk that waits for the uplink is waited for itself: by votes, and through them by the frames
// that it gives way to. Both directions of all links are full here, the line is slow.
TEST(RankGrpc, AGateOnTheUplinkIsNoTrapWhateverReplicasExchange) {
  WorldShape shape;
  shape.replicas = {4, 3};
  shape.layers = 4;
  shape.hidden = 2048;  // frames of several pieces
  shape.steps = 3;
  std::vector<WorldShape> shapes;
  for (const char* gradients :
       {"none", "bf16", "ef(lowrank(1))", "ef(quant(4, token, symmetric))"}) {
    shape.gradients = gradients;
    shapes.push_back(shape);
  }
  shape.gradients = "none";
  shape.buckets = 3;
  shapes.push_back(shape);
  shape.schedule = "overlap";
  shapes.push_back(shape);
  shape.schedule = "1f1b";
  shape.local_steps = 2;
  shape.steps = 5;
  shape.fragments = 2;
  shape.fragment_delay = 1;
  shapes.push_back(shape);
  for (const WorldShape& each : shapes) {
    SCOPED_TRACE(absl::StrCat(each.gradients, ", ", each.schedule, ", ", each.local_steps,
                              " local steps, ", each.fragments, " fragments"));
    std::vector<double> losses[2];
    for (const bool gate : {false, true}) {
      const int ranks = each.stages * static_cast<int>(each.replicas.size());
      LoopbackCluster cluster(ranks, kServerWindow, gate ? 50'000'000 : 0);
      World::Options options;
      options.links = &cluster;
      World world(PlanFor(&cluster, each), options);
      for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
      losses[gate] = world.Losses();
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

// Faults above the link: the session must see them whatever the link is.
class FaultTest : public ::testing::TestWithParam<int> {};

TEST_P(FaultTest, EndsEveryRank) {
  const uint64_t seed = GetParam();
  Fault fault;
  fault.kind = static_cast<Fault::Kind>(Fault::kDrop + RandomBelow(seed, 1, 0, 6));
  fault.link_id = "b0";
  fault.sender_stage = static_cast<int>(RandomBelow(seed, 2, 0, 2));
  fault.frame = static_cast<int64_t>(RandomBelow(seed, 3, 0, 20));
  fault.seed = seed;
  WorldShape shape;
  shape.stages = 2;
  shape.step_ms = 2000;
  LoopbackCluster cluster(shape.stages, kServerWindow);
  FaultyLinkOpener faulty(&cluster, fault);
  World::Options options;
  options.links = &faulty;
  World world(PlanFor(&cluster, shape), options);
  const std::string what = absl::StrCat(FaultName(fault.kind), " of frame ", fault.frame,
                                        " of stage ", fault.sender_stage);
  for (const absl::Status& status : world.Run()) EXPECT_FALSE(status.ok()) << what;
  EXPECT_TRUE(faulty.struck()) << what;
}

INSTANTIATE_TEST_SUITE_P(Seeds, FaultTest, ::testing::Range(0, 12));

}  // namespace
}  // namespace isthmus::worker
