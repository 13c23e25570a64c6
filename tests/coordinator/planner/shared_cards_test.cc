#include "coordinator/planner/shared_cards.h"

#include "coordinator/core/card.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

TEST(Card, IsWhatFollowsTheDevice) {
  EXPECT_EQ(CardOf("cuda:0 GPU-2f1c"), "GPU-2f1c");
  EXPECT_EQ(DeviceName("cuda:0 GPU-2f1c"), "cuda:0");
  for (const char* device : {"cpu", "cuda:1", ""}) {
    EXPECT_EQ(CardOf(device), "");
    EXPECT_EQ(DeviceName(device), device);
  }
}

TEST(SharedCards, RanksOfOneCardAreCounted) {
  Plan plan;
  for (const char* id : {"a", "b", "c"}) plan.add_ranks()->set_node_id(id);
  const auto card_of = [](const std::string& id) { return id == "c" ? "GPU-2" : "GPU-1"; };
  EXPECT_EQ(RanksOnCard(plan, "GPU-1", card_of), 2);
  EXPECT_EQ(RanksOnCard(plan, "GPU-2", card_of), 1);
  EXPECT_EQ(RanksOnCard(plan, "", card_of), 1);
}

TEST(SharedCards, CpusAndCardsOfTheirOwnAreLeftAsTheyAre) {
  PlannerInput in;
  in.job = MakeJob();
  for (const char* name : {"a", "b", "c"}) *in.topology.add_nodes() = MakeNode(name, 20);
  in.topology.mutable_nodes(0)->set_device("cuda:0 GPU-1");
  in.topology.mutable_nodes(0)->set_device_memory_bytes(1 << 30);
  in.topology.mutable_nodes(1)->set_device("cpu");
  const std::string before = in.topology.SerializeAsString();
  std::vector<CardWords> words;
  EXPECT_FALSE(LeaveSomeOfEachCard(1, &in, &words));
  ShareCards(&in, &words);
  EXPECT_TRUE(words.empty());
  EXPECT_EQ(in.topology.SerializeAsString(), before);
}

}  // namespace
}  // namespace isthmus::coordinator
