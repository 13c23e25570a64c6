// Plans for daemons on GPUs: what delta buffers take of a card, and several daemons on one.
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/reduction_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

void PutOnCard(const std::string& uuid, int64_t bytes, NodeInfo* node) {
  node->set_device(uuid.empty() ? "cuda:0" : "cuda:0 " + uuid);
  node->set_device_model("NVIDIA H200");
  node->set_device_memory_bytes(bytes);
}

PlannerInput Input(const std::vector<std::string>& names) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.generation = 3;
  in.job = MakeJob();
  for (const std::string& name : names) *in.topology.add_nodes() = MakeNode(name, 20);
  JoinAll(&in.topology, 10000, 0.01);
  return in;
}

// "lab" on a card below "home" on a CPU, delta between them.
class DeltaOnACard : public ::testing::Test {
 protected:
  DeltaOnACard() : in_(Input({"lab", "home"})) {
    for (const char* name : {"lab", "home"}) in_.job.mutable_strategy()->add_nodes(name);
    for (int i = 0; i < 2; ++i) in_.job.mutable_strategy()->add_layers_per_stage(3);
    in_.job.mutable_strategy()->set_stages(2);
    SetCard(80 * kGiB);
  }
  void SetCard(int64_t bytes) { PutOnCard("", bytes, in_.topology.mutable_nodes(0)); }
  absl::StatusOr<PlannedJob> With(const char* codec) {
    in_.job.mutable_compression()->set_forward(codec);
    in_.job.mutable_compression()->set_backward("quant(8)");
    return MakePlan(in_);
  }
  // 9600 samples of 128 positions x 256 channels of bf16 at each end.
  const int64_t buffers_ = int64_t{9600} * 128 * 256 * 2;
  PlannerInput in_;
};

TEST_F(DeltaOnACard, AFramesBuffersAndBodiesAreInTheCardsMemory) {
  const int64_t elements = 4 * 128 * 256;
  const Plan plain = With("quant(4)")->plan, delta = With("delta(quant(4))")->plan,
             narrow = With("delta(quant(4), buffer=8)")->plan;
  EXPECT_EQ(delta.ranks(0).memory_bytes() - plain.ranks(0).memory_bytes(), (2 + 4) * elements);
  EXPECT_EQ(delta.ranks(1).memory_bytes() - plain.ranks(1).memory_bytes(), buffers_)
      << "the host has all";
  EXPECT_GT(narrow.ranks(0).memory_bytes() - plain.ranks(0).memory_bytes(), (1 + 2 + 4) * elements)
      << "codes and scales, opened";
  EXPECT_THAT(delta.explanation(),
              Contains(HasSubstr("(on cards: " + FormatBytes(buffers_) + " of it on lab); with")));
}

// A card that the stage fills holds no buffers: its host's memory does, and the plan says so.
TEST_F(DeltaOnACard, AFullCardNeitherRefusesNorIsPromised) {
  const int64_t need = With("delta(quant(4))")->plan.ranks(0).memory_bytes();
  SetCard(need);
  absl::StatusOr<PlannedJob> full = With("delta(quant(4))");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_THAT(full->plan.explanation(),
              Contains(HasSubstr("of it in memory (on cards: a frame's alone on lab, the rest in "
                                 "pinned memory of the host)")));
  SetCard(need + 400);
  EXPECT_THAT(With("delta(quant(4))")->plan.explanation(),
              Contains(HasSubstr("(on cards: up to 100 bytes of it on lab, the rest in pinned")));
  SetCard(need - 1);
  const absl::Status refused = With("delta(quant(4))").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(),
              HasSubstr("memory: a frame of delta(quant(4)) on boundary b0 takes 768 KiB of the "
                        "card of daemon lab"));
}

TEST_F(DeltaOnACard, BuffersOfAFullCardNeedRoomOnItsHost) {
  SetCard(With("delta(quant(4))")->plan.ranks(0).memory_bytes());
  in_.topology.mutable_nodes(0)->set_memory_bytes(kGiB / 2);
  in_.topology.mutable_nodes(0)->set_disk_bytes(kGiB);
  const absl::StatusOr<PlannedJob> spills = With("delta(quant(4))");
  ASSERT_TRUE(spills.ok()) << spills.status();
  EXPECT_THAT(spills->warnings, Contains(HasSubstr("of delta buffers at each end go to a spill")));
  in_.topology.mutable_nodes(0)->set_disk_bytes(0);
  EXPECT_THAT(With("delta(quant(4))").status().message(),
              HasSubstr("daemon lab has 252 MiB of memory"));
}

// The host has all of its buffers, should the card have no room: no connections of that.
TEST_F(DeltaOnACard, ConnectionsGetNoneOfTheHostsMemoryForBuffers) {
  for (LinkMeasurement& link : *in_.topology.mutable_links()) link.set_connections(8);
  EXPECT_EQ(With("delta(quant(4))")->plan.links(0).connections(), 8);
  in_.topology.mutable_nodes(0)->set_memory_bytes(kProcessBytes + buffers_);
  const absl::StatusOr<PlannedJob> planned = With("delta(quant(4))");
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_LE(planned->plan.links(0).connections(), 1);
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("the memory of lab has no room for more")));
}

// Both daemons of a card are told the same: what is left of it beside both stages.
TEST_F(DeltaOnACard, TheWordsOfASharedCardAreOfWhatBothStagesLeave) {
  for (NodeInfo& node : *in_.topology.mutable_nodes())
    node.set_address("host:" + std::to_string(node.name().size()));
  const auto put = [&](int64_t bytes) {
    for (int i : {0, 1}) PutOnCard("GPU-1", bytes, in_.topology.mutable_nodes(i));
    return With("delta(quant(4))")->plan;
  };
  const Plan roomy = put(160 * kGiB);
  const int64_t stages = roomy.ranks(0).memory_bytes() + roomy.ranks(1).memory_bytes();
  const int64_t card =
      2 * std::max(roomy.ranks(0).memory_bytes(), roomy.ranks(1).memory_bytes()) + 400;
  const std::string room = FormatBytes((card - stages) / 4);
  EXPECT_THAT(put(card).explanation(),
              Contains(HasSubstr("(on cards: up to " + room + " of it on lab, up to " + room +
                                 " of it on home, the rest in pinned")));
}

TEST_F(DeltaOnACard, WhatBuffersAreGoingToTakeOfACard) {
  const Plan plan = With("delta(quant(4))")->plan;
  const int64_t stage = plan.ranks(0).memory_bytes();
  EXPECT_EQ(PlannedCardBuffers(plan, 0, 80 * kGiB), buffers_);
  EXPECT_EQ(PlannedCardBuffers(plan, 0, stage + 400), 100);
  EXPECT_EQ(PlannedCardBuffers(plan, 0, stage), 0);
  EXPECT_EQ(PlannedCardBuffers(plan, 1, 0), 0) << "on a CPU";
  EXPECT_EQ(PlannedCardBuffers(With("quant(4)")->plan, 0, 80 * kGiB), 0);
}

TEST(TiedOnACard, BothPartsOfTheExchangeAreInItsMemory) {
  PlannerInput in = Input({"a", "b"});
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  for (int i = 0; i < 2; ++i) in.job.mutable_strategy()->add_layers_per_stage(3);
  in.job.mutable_strategy()->set_stages(2);
  in.job.mutable_compression()->set_tied("bf16");
  PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(0));
  const Plan plan = MakePlan(in)->plan;
  const NodeInfo& card = in.topology.nodes(0);
  const int64_t stage = StageBytes(in.job, 2, 0, 0, 3, card);
  EXPECT_EQ(plan.ranks(0).memory_bytes() - stage,
            8 * in.job.model().vocabulary() * in.job.model().hidden());
  PutOnCard("", plan.ranks(0).memory_bytes() - 1, in.topology.mutable_nodes(0));
  EXPECT_THAT(MakePlan(in).status().message(),
              HasSubstr("memory: the exchange by compression.tied bf16 needs"));
}

// Balanced layers leave room for it.
TEST(TiedOnACard, ALayerMovesWhereTheExchangeHasNoRoomBesideIt) {
  PlannerInput in = Input({"a", "b"});
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  in.job.mutable_strategy()->set_stages(2);
  for (int i : {0, 1}) PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(i));
  for (const int replicas : {1, 2}) {
    if (replicas == 2) {
      for (const char* name : {"c", "d"}) {
        *in.topology.add_nodes() = MakeNode(name, 20);
        PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(in.topology.nodes_size() - 1));
        in.job.mutable_strategy()->add_nodes(name);
      }
      in.topology.clear_links();
      JoinAll(&in.topology, 10000, 0.01);
      in.job.mutable_strategy()->set_replicas(2);
      in.job.mutable_strategy()->set_local_steps(10);
      FillDefaults(&in.job);
    }
    PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(0));
    const Plan plan = MakePlan(in)->plan;
    PutOnCard("", plan.ranks(0).memory_bytes() - 1, in.topology.mutable_nodes(0));
    const absl::StatusOr<PlannedJob> moved = MakePlan(in);
    ASSERT_TRUE(moved.ok()) << moved.status();
    EXPECT_EQ(moved->plan.ranks(0).end_layer(), plan.ranks(0).end_layer() - 1);
  }
}

// A codec by matrix reduces on the host (worker/sync/device_reduction.h).
TEST(TiedOnACard, ByMatrixItIsTheHosts) {
  PlannerInput in = Input({"a", "b"});
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  for (int i = 0; i < 2; ++i) in.job.mutable_strategy()->add_layers_per_stage(3);
  in.job.mutable_strategy()->set_stages(2);
  in.job.mutable_compression()->set_tied("lowrank(4)");
  PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(0));
  EXPECT_EQ(MakePlan(in)->plan.ranks(0).memory_bytes(),
            StageBytes(in.job, 2, 0, 0, 3, in.topology.nodes(0)));
  const int64_t elements = int64_t{in.job.model().vocabulary()} * in.job.model().hidden();
  const int64_t host = kProcessBytes + TiedResidualBytes(in.job) + 8 * elements;
  in.topology.mutable_nodes(0)->set_memory_bytes(host);
  EXPECT_TRUE(MakePlan(in).ok()) << MakePlan(in).status();
  in.topology.mutable_nodes(0)->set_memory_bytes(host - 1);
  EXPECT_THAT(MakePlan(in).status().message(),
              HasSubstr("of its host. Use another codec, or set model.tied: false"));
}

// Sharded reductions and the indices of kept are the host's, whatever computes.
TEST(HostOfACard, HoldsWhatReplicasReduce) {
  PlannerInput in = Input({"a", "b"});
  in.job.mutable_strategy()->set_replicas(2);
  in.job.mutable_strategy()->set_stages(1);
  for (int i : {0, 1}) PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(i));
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  for (int i : {0, 1})
    PutOnCard("", planned->plan.ranks(0).memory_bytes(), in.topology.mutable_nodes(i));
  EXPECT_TRUE(MakePlan(in).ok()) << "the card holds the stage alone: " << MakePlan(in).status();
  in.topology.mutable_nodes(1)->set_memory_bytes(int64_t{270} << 20);
  const absl::Status refused = MakePlan(in).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("in all; it may use 270 MiB of its host. Use more"));
}

TEST(HostOfACard, HoldsIndices) {
  PlannerInput in = Input({"a", "b"});
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  in.job.mutable_strategy()->set_stages(2);
  PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(0));
  in.job.mutable_compression()->set_forward("topk(0.25)");
  const auto bytes = [&](const char* backward) {
    in.job.mutable_compression()->set_backward(backward);
    const Plan plan = MakePlan(in)->plan;
    return std::make_pair(plan.ranks(0).memory_bytes(), plan.ranks(1).memory_bytes());
  };
  const auto kept = bytes("kept"), other = bytes("topk(0.25)");
  EXPECT_EQ(kept.first, other.first);
  EXPECT_GT(kept.second, other.second);
}

// Three stages on cards over slow links, so that more is under way than 1f1b's own.
class WarmUpsOnCards : public ::testing::Test {
 protected:
  WarmUpsOnCards() : in_(Input({"a", "b", "c"})) {
    in_.topology.clear_links();
    JoinAll(&in_.topology, 20, 20);
    for (int i : {0, 1, 2}) {
      in_.job.mutable_strategy()->add_nodes(in_.topology.nodes(i).name());
      in_.job.mutable_strategy()->add_layers_per_stage(2);
      PutOnCard("", 80 * kGiB, in_.topology.mutable_nodes(i));
    }
    in_.job.mutable_strategy()->set_stages(3);
    in_.job.mutable_compression()->set_forward("topk(0.25)");
    in_.job.mutable_compression()->set_backward("kept");
  }
  // Most micro-batches whose activations a stage keeps.
  static int Held(const RankPlan& stage) {
    int now = 0, most = 0;
    for (const Action& action : stage.train()) {
      now += (action.op() == Action::FWD) - (action.op() == Action::BWD);
      most = std::max(most, now);
    }
    return most;
  }
  PlannerInput in_;
};

TEST_F(WarmUpsOnCards, TheirIndicesAreTheHosts) {
  const Plan plan = MakePlan(in_)->plan;
  const NodeInfo& card = in_.topology.nodes(1);
  const int held = Held(plan.ranks(1));
  ASSERT_GT(held, 2) << "1f1b's own";
  EXPECT_EQ(plan.ranks(1).memory_bytes(), StageBytes(in_.job, 3, 1, 2, 4, card) +
                                              TrainedBytes(in_.job, 2, 4, card, held) -
                                              TrainedBytes(in_.job, 2, 4, card, 2));
  PutOnCard("", plan.ranks(1).memory_bytes(), in_.topology.mutable_nodes(1));
  EXPECT_EQ(Held(MakePlan(in_)->plan.ranks(1)), held);
}

TEST_F(WarmUpsOnCards, TheMemoryOfTheHostHoldsThemBack) {
  const int64_t each = 4 * 4 * 128 * 64;  // bytes x samples x positions x kept of 256
  in_.topology.mutable_nodes(1)->set_memory_bytes(kProcessBytes + (3 + 2) * each);
  const absl::StatusOr<PlannedJob> planned = MakePlan(in_);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(Held(planned->plan.ranks(0)), 3);
  EXPECT_EQ(Held(planned->plan.ranks(1)), 2);
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("(the memory of b carries no more)")));
}

// "a" and "b" on one card, "c" on another.
PlannerInput OneCard(int64_t bytes) {
  PlannerInput in = Input({"a", "b", "c"});
  for (int i : {0, 1, 2}) PutOnCard(i < 2 ? "GPU-1" : "GPU-2", bytes, in.topology.mutable_nodes(i));
  return in;
}

std::vector<std::string> NamesOf(const Plan& plan) {
  std::vector<std::string> names;
  for (const RankPlan& rank : plan.ranks()) names.push_back(rank.node_name());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(SharedCards, APlanTakesOneDaemonOfACard) {
  PlannerInput in = OneCard(80 * kGiB);
  in.job.mutable_strategy()->set_stages(2);
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_THAT(NamesOf(planned->plan), ::testing::ElementsAre("a", "c"));
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("card of a: b computes on it as well and is left out: daemons of "
                                 "one card are together no faster than one")));
  in.topology.mutable_nodes(0)->clear_data_files();
  in.topology.mutable_nodes(0)->set_data_listed(true);
  EXPECT_THAT(NamesOf(MakePlan(in)->plan), ::testing::ElementsAre("b", "c")) << "it has the data";
}

TEST(SharedCards, SeveralThatAreNeededShareMemoryAndSpeed) {
  PlannerInput in = OneCard(80 * kGiB);
  in.job.mutable_strategy()->set_stages(3);
  const absl::StatusOr<PlannedJob> shared = MakePlan(in);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_THAT(
      shared->plan.explanation(),
      Contains(HasSubstr("card of a, b (NVIDIA H200, 80.0 GiB): each counts on 40.0 GiB and on "
                         "1/2 of its speed, as they compute at once")));
  EXPECT_THAT(shared->plan.explanation(), Contains(HasSubstr("of 40.0 GiB of its card")));
  EXPECT_THAT(shared->plan.explanation(), Contains(HasSubstr("of 80.0 GiB of its card")));
  for (int i : {0, 1, 2}) PutOnCard("", 80 * kGiB, in.topology.mutable_nodes(i));
  const Plan apart = MakePlan(in)->plan;  // daemons that do not say which card they have
  EXPECT_GT(shared->plan.predicted_step_s(), 1.3 * apart.predicted_step_s());
  EXPECT_THAT(apart.explanation(), Not(Contains(HasSubstr("card of a"))));
}

TEST(SharedCards, AStageThatFitsTheWholeCardAloneIsRefusedBesideAnother) {
  PlannerInput in = OneCard(80 * kGiB);
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  for (int i = 0; i < 2; ++i) in.job.mutable_strategy()->add_layers_per_stage(3);
  in.job.mutable_strategy()->set_stages(2);
  const Plan plan = MakePlan(in)->plan;
  const int64_t larger = std::max(plan.ranks(0).memory_bytes(), plan.ranks(1).memory_bytes());
  for (int i : {0, 1}) PutOnCard("GPU-1", 2 * larger, in.topology.mutable_nodes(i));
  EXPECT_TRUE(MakePlan(in).ok()) << MakePlan(in).status();
  for (int i : {0, 1}) PutOnCard("GPU-1", 2 * larger - 2, in.topology.mutable_nodes(i));
  const absl::Status refused = MakePlan(in).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("card of a, b (NVIDIA H200, "));
}

TEST(SharedCards, WhatAnotherJobTakesOfACardIsNotThere) {
  PlannerInput in = OneCard(80 * kGiB);
  in.absent.push_back({"id-b", "b", "b runs job other-1", true, in.topology.nodes(1)});
  in.absent.back().planned_bytes = 30 * kGiB;
  in.topology.mutable_nodes()->DeleteSubrange(1, 1);
  in.job.mutable_strategy()->add_nodes("a");
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("card of a (NVIDIA H200, 80.0 GiB): jobs on b were planned to "
                                 "take 30.0 GiB of it, this job counts on 50.0 GiB")));
  in.absent.back().planned_bytes = 80 * kGiB;
  EXPECT_EQ(MakePlan(in).status().code(), absl::StatusCode::kResourceExhausted);
}

// A card that another job fills is left alone, and the plan is made elsewhere.
TEST(SharedCards, AFullCardIsNoPartOfAPlan) {
  PlannerInput in = OneCard(80 * kGiB);
  in.absent.push_back({"id-b", "b", "b runs job other-1", true, in.topology.nodes(1)});
  in.absent.back().planned_bytes = 80 * kGiB;
  in.topology.mutable_nodes()->DeleteSubrange(1, 1);
  in.job.mutable_strategy()->set_stages(1);
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_THAT(NamesOf(planned->plan), ::testing::ElementsAre("c"));
  in.job.mutable_strategy()->set_stages(2);
  const absl::Status refused = MakePlan(in).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << "it comes when that job ends";
  EXPECT_THAT(refused.message(),
              HasSubstr("a has 0 bytes of its card (80.0 GiB) for a job, less than a process "
                        "takes: jobs on b were planned to take 80.0 GiB of it"));
}

// Of three daemons of a card a plan that needs two counts on halves.
TEST(SharedCards, NoMoreShareACardThanThePlanNeeds) {
  PlannerInput in = OneCard(80 * kGiB);
  PutOnCard("GPU-1", 80 * kGiB, in.topology.mutable_nodes(2));
  in.job.mutable_strategy()->set_stages(2);
  const Plan plan = MakePlan(in)->plan;
  EXPECT_THAT(NamesOf(plan), ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(plan.explanation(), Contains(HasSubstr("card of a, b (NVIDIA H200, 80.0 GiB): each "
                                                     "counts on 40.0 GiB and on 1/2")));
  EXPECT_THAT(plan.explanation(), Contains(HasSubstr("card of a, b: c computes on it as well")));
}

// A daemon that starts on the card of a job is none of its plan.
TEST(SharedCards, AJobThatRanOnTwoOfThreeCountsOnHalves) {
  PlannerInput in = OneCard(80 * kGiB);
  PutOnCard("GPU-1", 80 * kGiB, in.topology.mutable_nodes(2));
  for (const char* name : {"b", "c"}) in.job.mutable_strategy()->add_nodes(name);
  in.job.mutable_strategy()->set_stages(2);
  in.previous = MakePlan(in)->plan;
  in.job.mutable_strategy()->clear_nodes();
  in.job.mutable_strategy()->set_stages(0);
  in.start_step = 100;
  in.from_checkpoint = true;
  const Plan plan = MakePlan(in)->plan;
  EXPECT_THAT(plan.explanation(), Contains(HasSubstr("card of b, c: a computes on it as well")));
  for (const RankPlan& rank : plan.ranks()) EXPECT_NE(rank.node_name(), "a");
}

// One that no other daemon reaches leaves the whole card to its neighbour.
TEST(SharedCards, TheDaemonWithLinksStays) {
  PlannerInput in = OneCard(80 * kGiB);
  in.topology.clear_links();
  Join(&in.topology, "b", "c", 10000, 0.01);
  in.job.mutable_strategy()->set_stages(2);
  const Plan plan = MakePlan(in)->plan;
  EXPECT_THAT(NamesOf(plan), ::testing::ElementsAre("b", "c"));
  EXPECT_THAT(plan.explanation(), Not(Contains(HasSubstr("1/2 of its speed"))));
}

TEST(SharedCards, AJobThatRanOnSeveralStaysThere) {
  PlannerInput in = OneCard(80 * kGiB);
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  in.job.mutable_strategy()->set_stages(2);
  in.previous = MakePlan(in)->plan;
  in.job.mutable_strategy()->clear_nodes();
  in.start_step = 100;
  in.from_checkpoint = true;
  EXPECT_THAT(MakePlan(in)->plan.explanation(), Contains(HasSubstr("1/2 of its speed")));
  in.previous.Clear();
  EXPECT_THAT(NamesOf(MakePlan(in)->plan), ::testing::ElementsAre("a", "c"));
}

}  // namespace
}  // namespace isthmus::coordinator
