// Plans for daemons on GPUs: what delta buffers take of a card, and several daemons on one.
#include "coordinator/core/format.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/planner.h"
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
