#include "proto/plan/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;

Plan Chains(int stages, int replicas) {
  Plan plan;
  plan.mutable_job()->mutable_model()->set_layers(2 * stages);
  plan.mutable_job()->mutable_model()->set_vocabulary(11);
  plan.mutable_job()->mutable_model()->set_hidden(4);
  for (int d = 0; d < replicas; ++d) {
    for (int s = 0; s < stages; ++s) {
      RankPlan* rank = plan.add_ranks();
      rank->set_first_layer(2 * s);
      rank->set_end_layer(2 * s + 2);
    }
  }
  return plan;
}

TEST(Groups, TheTiedEmbeddingHasTwoEndsAReplica) {
  Plan plan = Chains(3, 1);
  AddTiedGroup(ParseCodec("bf16").value(), &plan);
  ASSERT_EQ(plan.groups_size(), 1);
  EXPECT_THAT(plan.groups(0).ranks(), ElementsAre(0, 2));
  EXPECT_EQ(plan.groups(0).rule(), GroupPlan::EXCHANGE);
  EXPECT_EQ(plan.groups(0).rows() * plan.groups(0).width(), 44);
  EXPECT_TRUE(CheckGroup(plan, plan.groups(0)).ok());
  plan = Chains(3, 2);
  AddTiedGroup(CodecSpec(), &plan);
  EXPECT_THAT(plan.groups(0).ranks(), ElementsAre(0, 2, 3, 5)) << "all ends at once (Optimus-CC)";
  EXPECT_EQ(plan.groups(0).rule(), GroupPlan::SHARDED);
  plan = Chains(1, 4);
  AddTiedGroup(CodecSpec(), &plan);
  EXPECT_EQ(plan.groups_size(), 0) << "a stage that is first and last has no second copy";
}

TEST(Groups, PartsAreDisjointAndCoverAllRows) {
  GroupPlan group;
  group.set_width(4);
  for (int ranks = 2; ranks <= 9; ++ranks) {
    group.add_ranks(10 + ranks);
    for (int rows : {1, 2, 7, 64, 1001}) {
      group.set_rows(rows);
      int64_t next = 0;
      for (int i = 0; i < group.ranks_size(); ++i) {
        EXPECT_EQ(OwnedRows(group, i).begin, next);
        next = OwnedRows(group, i).end;
        EXPECT_LE(OwnedRows(group, i).count(), rows / group.ranks_size() + 1);
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(Groups, AFrameHoldsWhatItsReceiverNeeds) {
  GroupPlan group;
  for (int rank : {3, 5}) group.add_ranks(rank);
  group.set_rows(10);
  group.set_rule(GroupPlan::EXCHANGE);
  EXPECT_EQ(FrameRows(group, FrameHeader::CONTRIBUTION, 3, 5).count(), 10);
  group.set_rule(GroupPlan::SHARDED);
  EXPECT_EQ(FrameRows(group, FrameHeader::CONTRIBUTION, 3, 5).begin, 5) << "the receiver's part";
  EXPECT_EQ(FrameRows(group, FrameHeader::SUM, 3, 5).begin, 0) << "the sender's part";
}

}  // namespace
}  // namespace isthmus
