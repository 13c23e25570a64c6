#include "proto/plan/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "proto/codec/codec_text.h"
#include "proto/model/model_cost.h"
#include "proto/model/stage_shapes.h"
#include "proto/plan/parts.h"

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
      rank->set_stage(s);
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
  plan = Chains(3, 1);
  AddTiedGroup(ParseCodec("ef(lowrank(2))").value(), &plan);
  EXPECT_EQ(plan.groups(0).shapes_size(), 1) << "by matrix";
  EXPECT_TRUE(CheckGroup(plan, plan.groups(0)).ok());
  plan = Chains(3, 2);
  AddTiedGroup(CodecSpec(), &plan);
  EXPECT_THAT(plan.groups(0).ranks(), ElementsAre(0, 2, 3, 5)) << "all ends at once (Optimus-CC)";
  EXPECT_EQ(plan.groups(0).rule(), GroupPlan::SHARDED);
  plan = Chains(1, 4);
  AddTiedGroup(CodecSpec(), &plan);
  EXPECT_EQ(plan.groups_size(), 0) << "a stage that is first and last has no second copy";
}

// GPT-2's: while a part is on its way, others are coded, decoded and added up.
TEST(Groups, ALargeTiedEmbeddingGoesInParts) {
  for (const auto& [codec, parts] :
       std::vector<std::pair<const char*, int>>{{"bf16", 7},
                                                {"none", 14},
                                                {"quant(8)", 3},
                                                {"ef(quant(4, token))", 1},
                                                {"topk(0.5)", 1}}) {
    Plan plan = Chains(3, 1);
    plan.mutable_job()->mutable_model()->set_vocabulary(50257);
    plan.mutable_job()->mutable_model()->set_hidden(768);
    AddTiedGroup(ParseCodec(codec).value(), &plan);
    ASSERT_EQ(plan.groups_size(), parts) << codec;
    int64_t end = 50257;
    for (const GroupPlan& group : plan.groups()) {
      EXPECT_TRUE(CheckGroup(plan, group).ok()) << CheckGroup(plan, group);
      if (parts == 1) continue;
      EXPECT_EQ(SetName(group), "tied");
      EXPECT_EQ(FirstElement(plan, group), (end - group.rows()) * 768) << "the last rows first";
      end -= group.rows();
    }
    EXPECT_EQ(end, parts == 1 ? 50257 : 0) << codec;
  }
  Plan plan = Chains(3, 2);
  plan.mutable_job()->mutable_model()->set_vocabulary(50257);
  plan.mutable_job()->mutable_model()->set_hidden(768);
  AddTiedGroup(CodecSpec(), &plan);
  EXPECT_EQ(plan.groups_size(), 1) << "sharded, in parts already";
}

TEST(Groups, MomentumGoesExactInTheWarmUp) {
  Plan plan = Chains(2, 2);
  plan.mutable_job()->mutable_model()->set_hidden(32);
  RecipeSpec* r = plan.mutable_job()->mutable_recipe();
  r->set_optimizer("quantized_adam");
  r->set_optimizer_warmup(10);
  const CodecSpec codec = ParseCodec("ef(quant(8, token))").value();
  AddTiedGroup(codec, &plan);
  AddGradientGroups(codec, codec, {OwnShapes(plan, 0), OwnShapes(plan, 1)}, {1, 2}, &plan);
  ASSERT_EQ(plan.groups_size(), 4) << "in buckets, too";
  for (const GroupPlan& group : plan.groups()) {
    EXPECT_EQ(group.value(), GroupPlan::MOMENTUM);
    EXPECT_TRUE(CheckGroup(plan, group).ok());
    EXPECT_EQ(GroupCodec(plan, group, FrameHeader::SUM, 9).kind(), CodecSpec::NONE);
    EXPECT_EQ(GroupCodec(plan, group, FrameHeader::SUM, 10).kind(), CodecSpec::FEEDBACK);
  }
  EXPECT_FALSE(FrozenAt(plan.job(), 9));
  EXPECT_TRUE(FrozenAt(plan.job(), 10));
  r->set_optimizer("adamw");
  EXPECT_FALSE(FrozenAt(plan.job(), 10));
  EXPECT_FALSE(CheckGroup(plan, plan.groups(0)).ok());
}

TEST(Groups, AHeadOfItsOwnIsTheLastStagesAlone) {
  for (const int64_t local_steps : {1, 4}) {
    Plan plan = Chains(3, 2);
    plan.mutable_job()->mutable_model()->set_tied(false);
    plan.mutable_job()->mutable_strategy()->set_local_steps(local_steps);
    for (int d = 0; d < 2; ++d) plan.add_replicas()->set_samples(1);
    AddTiedGroup(CodecSpec(), &plan);
    EXPECT_EQ(plan.groups_size(), 0);
    std::vector<LayerTensors> tensors;
    for (int s = 0; s < 3; ++s) tensors.push_back(OwnShapes(plan, s));
    AddGradientGroups(CodecSpec(), CodecSpec(), tensors, {}, &plan);
    EXPECT_EQ(plan.groups_size(), 3) << "one a stage";
    int64_t elements = 0;
    for (int s = 0; s < 3; ++s) {
      EXPECT_EQ(OwnElements(plan, s), ElementsOf(AllOf(tensors[s])));
      elements += OwnElements(plan, s);
    }
    EXPECT_EQ(elements, ParameterCount(plan.job().model()));
  }
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

TEST(Groups, EachStageOfReplicasAddsUpItsGradients) {
  Plan plan = Chains(2, 3);
  AddGradientGroups(ParseCodec("quant(4)").value(), ParseCodec("bf16").value(),
                    {{{{1, 1, 1000}}}, {{{1, 1, 513}}}}, {}, &plan);
  ASSERT_EQ(plan.groups_size(), 2);
  EXPECT_THAT(plan.groups(1).ranks(), ElementsAre(1, 3, 5));
  EXPECT_EQ(plan.groups(0).rows(), 2);
  EXPECT_EQ(plan.groups(1).rows(), 2) << "the last row is not full";
  EXPECT_TRUE(CheckGroup(plan, plan.groups(1)).ok());
  plan = Chains(2, 1);
  AddGradientGroups(CodecSpec(), CodecSpec(), {{{{1, 1, 1}}}, {{{1, 1, 1}}}}, {}, &plan);
  EXPECT_EQ(plan.groups_size(), 0);
}

// Codecs that work by matrix get the tensors of a stage one by one; a tensor has one owner.
TEST(Groups, ByMatrixAPartIsWholeTensors) {
  Plan plan = Chains(1, 3);
  const std::vector<TensorDims> tensors = {{1, 1, 10}, {1, 10, 20}, {1, 1, 5}, {1, 8, 8}};
  const CodecSpec codec = ParseCodec("ef(lowrank(2))").value();
  AddGradientGroups(codec, codec, {{tensors}}, {}, &plan);
  const GroupPlan& group = plan.groups(0);
  EXPECT_EQ(group.rows(), 279);
  EXPECT_EQ(group.width(), 1);
  ASSERT_EQ(group.shapes_size(), 4);
  EXPECT_TRUE(CheckGroup(plan, group).ok()) << CheckGroup(plan, group);
  int64_t at = 0, bytes = 0;
  size_t count = 0;
  for (int i = 0; i < 3; ++i) {
    const Rows rows = OwnedRows(group, i);
    EXPECT_EQ(rows.begin, at) << "the parts follow each other";
    at = rows.end;
    int64_t elements = 0;
    for (const TensorDims& d : ShapesIn(group, rows)) {
      elements += d.elements();
      ++count;
    }
    EXPECT_EQ(elements, rows.count());
    bytes += RowsBytes(group, codec, rows, false);
    EXPECT_GE(RowsBytes(group, codec, rows, true), RowsBytes(group, codec, rows, false));
  }
  EXPECT_EQ(at, 279);
  EXPECT_EQ(count, tensors.size());
  EXPECT_EQ(bytes, 4 * (10 + 2 * 30 + 5 + 2 * 16)) << "vectors as fp32";

  const auto refused = [&](const std::function<void(GroupPlan*)>& spoil) {
    GroupPlan other = group;
    spoil(&other);
    return std::string(CheckGroup(plan, other).message());
  };
  for (const auto& spoil : std::vector<std::function<void(GroupPlan*)>>{
           [](GroupPlan* g) { g->clear_shapes(); }, [](GroupPlan* g) { g->set_rows(280); },
           [](GroupPlan* g) { g->mutable_shapes(1)->set_rows(-10); },
           [](GroupPlan* g) { *g->mutable_contribution() = *g->mutable_sum() = CodecSpec(); }})
    EXPECT_THAT(refused(spoil), testing::HasSubstr("the shapes of its tensors"));
}

// compression.gradient_stages.
TEST(Groups, LaterStagesReduceAsFp32) {
  const CodecSpec codec = ParseCodec("ef(lowrank(2))").value(), none;
  const std::vector<LayerTensors> tensors(3, {{{1, 8, 8}}});
  for (int coded = -1; coded <= 4; ++coded) {
    Plan plan = Chains(3, 2);
    if (coded >= 0) plan.mutable_job()->mutable_compression()->set_gradient_stages(coded);
    AddGradientGroups(codec, codec, tensors, {}, &plan);
    for (int s = 0; s < 3; ++s) {
      const bool has = coded < 0 || s < coded;
      EXPECT_EQ(FormatCodec(plan.groups(s).sum()), has ? "ef(lowrank(2))" : "none") << coded;
      EXPECT_EQ(FormatCodec(plan.groups(s).contribution()), has ? "ef(lowrank(2))" : "none");
      EXPECT_EQ(plan.groups(s).shapes_size(), has ? 1 : 0);
      EXPECT_TRUE(CheckGroup(plan, plan.groups(s)).ok());
    }
  }
}

TEST(Groups, RanksAndPlansHaveNames) {
  Plan plan = Chains(2, 1);
  EXPECT_EQ(ShapeWords(plan), "2 stages");
  EXPECT_EQ(StageWords(plan, 1), "stage 1");
  plan = Chains(2, 2);
  for (int r = 0; r < 2; ++r) plan.add_replicas()->set_samples(1);
  for (int r : {2, 3}) plan.mutable_ranks(r)->set_replica(1);
  EXPECT_EQ(ShapeWords(plan), "2 replicas x 2 stages");
  EXPECT_EQ(StageWords(plan, 3), "stage 1 of replica 1");
  EXPECT_EQ(ShapeWords(4, 1), "4 replicas x 1 stage");
}

TEST(Groups, ReplicasShareTheBatch) {
  Plan plan = Chains(1, 2);
  plan.mutable_ranks(1)->set_replica(1);
  plan.mutable_job()->mutable_recipe()->set_global_batch(7);
  EXPECT_FALSE(CheckReplicas(plan).ok()) << "one replica, and a rank of another";
  plan.add_replicas()->set_samples(4);
  plan.add_replicas()->set_samples(2);
  EXPECT_FALSE(CheckReplicas(plan).ok()) << "6 of 7";
  plan.mutable_replicas(1)->set_samples(3);
  EXPECT_TRUE(CheckReplicas(plan).ok());
  EXPECT_EQ(ShareOf(plan, 1).begin, 4);
  EXPECT_EQ(ShareOf(plan, 1).end, 7);
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
