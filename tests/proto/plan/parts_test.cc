#include "proto/plan/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two replicas of a chain of stages with `layers` each.
Plan Chains(int stages, int layers) {
  Plan plan;
  plan.mutable_job()->mutable_model()->set_layers(layers * stages);
  plan.mutable_job()->mutable_model()->set_vocabulary(11);
  plan.mutable_job()->mutable_model()->set_hidden(4);
  for (int d = 0; d < 2; ++d) {
    for (int s = 0; s < stages; ++s) {
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(s);
      rank->set_replica(d);
      rank->set_first_layer(layers * s);
      rank->set_end_layer(layers * (s + 1));
    }
  }
  return plan;
}

TEST(Parts, BucketsAreDisjointCoverTheSetAndKeepItsRows) {
  for (int layers : {1, 2, 3, 7}) {
    for (int64_t size : {1, 100, 511, 512, 5000}) {
      const LayerTensors tensors(layers, {{1, 1, size}, {1, 1, 3}});
      for (int buckets = 1; buckets <= 8; ++buckets) {
        const std::vector<Bucket> cut = CutBuckets(tensors, buckets, 512);
        EXPECT_LE(cut.size(), std::min<size_t>(buckets, layers));
        int64_t end = (layers * (size + 3) + 511) / 512;
        for (const Bucket& bucket : cut) {  // the last layers first
          EXPECT_EQ(bucket.rows.end, end);
          EXPECT_GT(bucket.rows.count(), 0);
          EXPECT_GE(bucket.rows.begin * 512, bucket.first_layer * (size + 3))
              << "its gradients are not complete with those of its layers";
          end = bucket.rows.begin;
        }
        EXPECT_EQ(end, 0);
        if (size < 5000) continue;
        EXPECT_EQ(cut.size(), std::min<size_t>(buckets, layers));
      }
    }
  }
}

TEST(Parts, GroupsOfAStageAreItsBuckets) {
  for (const char* codec : {"quant(8)", "ef(lowrank(2))"}) {
    Plan plan = Chains(2, 3);
    const LayerTensors layers(3, {{1, 40, 50}, {1, 1, 7}});
    AddGradientGroups(ParseCodec(codec).value(), ParseCodec(codec).value(), {layers, layers},
                      {3, 1}, &plan);
    ASSERT_EQ(plan.groups_size(), 4);
    int64_t elements = 0;
    for (int g = 0; g < 4; ++g) {
      const GroupPlan& group = plan.groups(g);
      EXPECT_TRUE(CheckGroup(plan, group).ok()) << CheckGroup(plan, group);
      EXPECT_EQ(SetName(group), g < 3 ? "stage 0" : "stage 1");
      EXPECT_EQ(IsOfferedEarly(plan, group), g < 2);
      EXPECT_EQ(group.shapes_size(), codec[0] == 'q' ? 0 : g < 3 ? 2 : 6);
      if (g == 3) continue;
      EXPECT_EQ(group.part(), g);
      EXPECT_EQ(group.parts(), 3);
      elements += group.rows() * group.width();
    }
    EXPECT_EQ(plan.groups(0).id(), "stage 0 part 0");
    EXPECT_EQ(plan.groups(3).id(), "stage 1");
    EXPECT_GE(elements, 3 * 2007);
    EXPECT_EQ(FirstElement(plan, plan.groups(2)), 0);
    EXPECT_GT(FirstElement(plan, plan.groups(0)), FirstElement(plan, plan.groups(1)));
    EXPECT_EQ(GradientParts(plan, 0), 3);
    EXPECT_EQ(GradientParts(plan, 3), 1);
    EXPECT_THAT(BucketLayers(layers, plan, 0), ElementsAre(2, 1));
    EXPECT_THAT(BucketLayers(layers, plan, 1), ElementsAre());
    plan.mutable_job()->mutable_strategy()->set_schedule("overlap");
    EXPECT_FALSE(IsOfferedEarly(plan, plan.groups(0))) << "no pass of such a step is the last one";
  }
}

// T11.4: the fragments of all stages together are all layers, each once; the tied embedding is in
// the first one.
TEST(Parts, FragmentsAreStridedLayers) {
  for (const char* codec : {"quant(8)", "ef(lowrank(2))"}) {
    Plan plan = Chains(2, 3);
    for (int r : {0, 1}) plan.add_replicas()->set_samples(r + 1);
    plan.mutable_job()->mutable_strategy()->set_local_steps(20);
    plan.mutable_job()->mutable_strategy()->set_fragments(4);
    const LayerTensors layers(3, {{1, 40, 50}, {1, 1, 7}});
    AddGradientGroups(ParseCodec(codec).value(), ParseCodec(codec).value(), {layers, layers}, {},
                      &plan);
    std::map<std::string, int64_t> elements;
    for (const GroupPlan& group : plan.groups()) {
      EXPECT_TRUE(CheckGroup(plan, group).ok()) << CheckGroup(plan, group);
      EXPECT_EQ(group.parts(), 4);
      elements[group.id()] = group.rows() * group.width();
    }
    const int64_t one = codec[0] == 'q' ? 2048 : 2007;  // rows, or tensors
    const int64_t tied = 44;
    EXPECT_EQ(elements, (std::map<std::string, int64_t>{{"stage 0 part 0", one},
                                                        {"stage 0 part 1", one},
                                                        {"stage 0 part 2", one},
                                                        {"stage 1 part 0", one},
                                                        {"stage 1 part 1", one},
                                                        {"stage 1 part 3", one},
                                                        {"tied first", tied},
                                                        {"tied last", tied}}));
    EXPECT_EQ(plan.groups(plan.groups_size() - 1).part(), 0);
    plan.mutable_groups(0)->set_parts(5);
    EXPECT_THAT(std::string(CheckParts(plan, plan.groups(0)).message()),
                HasSubstr("another number of fragments"));
  }
}

TEST(Parts, TheCheckFindsEveryKindOfFault) {
  Plan good = Chains(1, 3);
  AddGradientGroups(CodecSpec(), CodecSpec(), {LayerTensors(3, {{1, 40, 50}})}, {3}, &good);
  ASSERT_TRUE(CheckParts(good, good.groups(1)).ok());
  const std::pair<const char*, std::function<void(Plan*)>> cases[] = {
      {"part 3 of 3", [](Plan* p) { p->mutable_groups(1)->set_part(3); }},
      {"part -1 of 3", [](Plan* p) { p->mutable_groups(1)->set_part(-1); }},
      {"only a sharded group",
       [](Plan* p) { p->mutable_groups(1)->set_rule(GroupPlan::EXCHANGE); }},
      {"not reduced in parts", [](Plan* p) { p->mutable_groups(1)->set_tensors(GroupPlan::TIED); }},
      {"do not follow each other", [](Plan* p) { p->mutable_groups(2)->set_part(1); }},
      {"do not follow each other", [](Plan* p) { p->mutable_groups(2)->set_parts(4); }},
      {"the other parts are missing", [](Plan* p) { p->mutable_groups()->RemoveLast(); }},
  };
  for (const auto& [message, spoil] : cases) {
    Plan plan = good;
    spoil(&plan);
    EXPECT_THAT(std::string(CheckParts(plan, plan.groups(1)).message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace isthmus
