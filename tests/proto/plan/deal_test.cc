// Who holds which heads and hidden units of a layer, round after round.
#include "proto/plan/deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `stages` x as many replicas as there are shares; 6 layers of width 24 with 8 heads.
Plan MakePlan(const std::vector<double>& shares, int whole_layers = 0, int stages = 1) {
  Plan plan;
  ModelSpec* model = plan.mutable_job()->mutable_model();
  model->set_layers(6);
  model->set_hidden(24);
  model->set_heads(8);
  model->set_context(4);
  model->set_vocabulary(11);
  RecipeSpec* recipe = plan.mutable_job()->mutable_recipe();
  recipe->set_steps(40);
  recipe->set_global_batch(static_cast<int>(shares.size()));
  plan.mutable_job()->mutable_strategy()->set_local_steps(5);
  DealPlan* deal = plan.mutable_deal();
  deal->set_seed(7);
  deal->set_whole_layers(whole_layers);
  for (size_t r = 0; r < shares.size(); ++r) {
    deal->add_shares(shares[r]);
    plan.add_replicas()->set_samples(1);
    plan.mutable_replicas(static_cast<int>(r))->set_slice(static_cast<int>(r));
    for (int s = 0; s < stages; ++s) {
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(s);
      rank->set_replica(static_cast<int>(r));
      rank->set_first_layer(6 * s / stages);
      rank->set_end_layer(6 * (s + 1) / stages);
    }
  }
  return plan;
}

TEST(Deal, CountsByLargestRemainderAtLeastOneEach) {
  const struct {
    int all;
    std::vector<double> shares;
    std::vector<int> counts;
  } table[] = {
      {8, {0.5, 0.5}, {4, 4}},
      {8, {0.75, 0.25}, {6, 2}},
      {7, {0.5, 0.5}, {4, 3}},
      {10, {0.34, 0.33, 0.33}, {4, 3, 3}},
      {12, {0.98, 0.01, 0.01}, {10, 1, 1}},
      {3, {0.98, 0.01, 0.01}, {1, 1, 1}},
      {5, {0.4, 0.4, 0.1, 0.1}, {1, 2, 1, 1}},
  };
  for (const auto& row : table)
    EXPECT_EQ(DealCounts(row.all, row.shares), row.counts)
        << row.all << " in " << row.shares.size();
}

TEST(Deal, EveryHeadAndUnitIsInOneSliceOfEachRound) {
  for (const std::vector<double>& shares :
       {std::vector<double>{0.5, 0.5},
        {0.7, 0.3},
        {0.4, 0.35, 0.25},
        {0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125}}) {
    const Plan plan = MakePlan(shares);
    const ModelSpec& model = plan.job().model();
    for (int64_t round : {0, 1, 2, 1000000}) {
      for (int layer = 0; layer < model.layers(); ++layer) {
        std::multiset<int> heads, units;
        for (size_t s = 0; s < shares.size(); ++s) {
          const LayerSlice slice =
              SliceOfLayer(plan.deal(), model, layer, round, static_cast<int>(s));
          EXPECT_TRUE(slice.dealt);
          EXPECT_TRUE(std::is_sorted(slice.heads.begin(), slice.heads.end()));
          EXPECT_TRUE(std::is_sorted(slice.units.begin(), slice.units.end()));
          EXPECT_EQ(slice.heads.size(), DealCounts(8, shares)[s]);
          EXPECT_EQ(slice.units.size(), DealCounts(96, shares)[s]);
          heads.insert(slice.heads.begin(), slice.heads.end());
          units.insert(slice.units.begin(), slice.units.end());
        }
        ASSERT_EQ(heads.size(), 8);
        ASSERT_EQ(units.size(), 96);
        EXPECT_EQ(std::set<int>(heads.begin(), heads.end()).size(), 8);
        EXPECT_EQ(std::set<int>(units.begin(), units.end()).size(), 96);
        EXPECT_EQ(*heads.rbegin(), 7);
        EXPECT_EQ(*units.rbegin(), 95);
      }
    }
  }
}

TEST(Deal, RoundsLayersAndSeedsDiffer) {
  Plan plan = MakePlan({0.5, 0.5});
  const ModelSpec model = plan.job().model();
  const auto slice = [&](int layer, int64_t round) {
    return SliceOfLayer(plan.deal(), model, layer, round, 0);
  };
  const LayerSlice one = slice(2, 3);
  EXPECT_TRUE(one == slice(2, 3));
  EXPECT_FALSE(one == slice(2, 4));
  EXPECT_FALSE(one == slice(3, 3));
  EXPECT_FALSE(one == slice(3, 2));
  plan.mutable_deal()->set_seed(8);
  EXPECT_FALSE(one == slice(2, 3));
}

// A unit comes to a slice in proportion to its share.
TEST(Deal, UnitsAreDealtEvenly) {
  const Plan plan = MakePlan({0.75, 0.25});
  std::vector<int> held(96);
  const int rounds = 2000;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int unit : SliceOfLayer(plan.deal(), plan.job().model(), 0, round, 1).units) ++held[unit];
  }
  for (int unit = 0; unit < 96; ++unit)  // five standard deviations
    EXPECT_NEAR(held[unit], rounds / 4, 5 * 19.4) << unit;
}

TEST(Deal, FirstAndLastLayersMayBeWhole) {
  const Plan plan = MakePlan({0.5, 0.5}, 2, 2);
  const Slice lower = SliceOf(plan, 0, 1), upper = SliceOf(plan, 1, 1);
  ASSERT_EQ(lower.size(), 3);
  EXPECT_FALSE(lower[0].dealt || lower[1].dealt || upper[1].dealt || upper[2].dealt);
  EXPECT_TRUE(lower[2].dealt && upper[0].dealt);
  EXPECT_EQ(lower[1].heads.size(), 8);
  EXPECT_EQ(lower[2].heads.size(), 4);
  const Slice common = Common(lower, WholeOf(plan, 0));
  EXPECT_THAT(common[0].heads, IsEmpty());
  EXPECT_EQ(common[2].heads, lower[2].heads);
  // 4 heads of width 3 with 24 x 3 four times and 9 biases, 48 units.
  EXPECT_EQ(SliceElements(plan.job().model(), lower), 4 * (4 * 24 * 3 + 9) + 48 * 49);
  EXPECT_EQ(OwnElements(plan, 0), ElementsOf(AllOf(OwnShapes(plan, 0))));
  EXPECT_EQ(OwnElements(MakePlan({0.5, 0.5}), 0),
            ElementsOf(AllOf(OwnShapes(MakePlan({0.5, 0.5}), 0))));
}

// What comes in and what stays is the next slice; what comes together is the whole model.
TEST(Deal, MovesMakeTheNextSliceOrTheWholeModel) {
  const Plan plan = MakePlan({0.5, 0.3, 0.2});
  const ModelSpec& model = plan.job().model();
  const int64_t step = 9;  // the last one of round 1
  ASSERT_EQ(RoundOf(plan, step), 1);
  for (int to = 0; to < 3; ++to) {
    for (const bool merged : {false, true}) {
      const Slice next = SliceOf(plan, to, 2);
      const Slice kept = Common(SliceOf(plan, to, 1), next);
      int64_t elements = SliceElements(model, merged && to == 0 ? SliceOf(plan, 0, 1) : kept);
      for (int from = 0; from < 3; ++from) {
        if (from != to) elements += SliceElements(model, Moves(plan, from, to, step, merged));
      }
      EXPECT_EQ(elements, SliceElements(model, merged && to == 0 ? WholeOf(plan, 0) : next))
          << to << merged;
    }
  }
  // After the last step the first replica alone gets something.
  EXPECT_GT(SliceElements(model, Moves(plan, 1, 0, 39, true)), 0);
  EXPECT_EQ(SliceElements(model, Moves(plan, 0, 1, 39, true)), 0);
}

TEST(Deal, GroupsHoldTheLargestFrame) {
  Plan plan = MakePlan({0.6, 0.4}, 0, 2);
  AddSliceGroups(CodecSpec(), &plan);
  ASSERT_EQ(plan.groups_size(), 2);
  EXPECT_EQ(plan.groups(0).id(), "slices 0");
  EXPECT_THAT(plan.groups(1).ranks(), ElementsAre(1, 3));
  EXPECT_EQ(plan.groups(0).rows(), SliceRows(plan, SliceOf(plan, 0, 17)));
  EXPECT_TRUE(CheckGroup(plan, plan.groups(0)).ok());
  EXPECT_TRUE(CheckDeal(plan).ok());
  plan.clear_deal();
  EXPECT_THAT(std::string(CheckGroup(plan, plan.groups(0)).message()),
              HasSubstr("the job has no subnetworks"));
  EXPECT_TRUE(CheckDeal(plan).ok());
}

// The whole model comes together where the plan wants it, or a decision says so.
// Ranks of other layers, frames of another size: indices ran past the end.
TEST(Deal, AGroupWhoseRanksDoNotShareTheirLayersIsRefused) {
  Plan good = MakePlan({0.5, 0.5}, 0, 2);
  CodecSpec bf16;
  bf16.set_kind(CodecSpec::BF16);
  AddSliceGroups(bf16, &good);
  ASSERT_EQ(good.groups_size(), 2);
  for (const GroupPlan& group : good.groups()) EXPECT_TRUE(CheckGroup(good, group).ok());
  const auto refusal = [&](const std::function<void(Plan*)>& change) {
    Plan bad = good;
    change(&bad);
    const absl::Status status = CheckGroup(bad, bad.groups(0));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](Plan* p) { p->mutable_ranks(2)->set_end_layer(2); }),
            "group slices 0: subnetworks: rank 2 holds layers 0 to 2, and rank 0, with which it "
            "shares them, 0 to 3");
  EXPECT_THAT(refusal([](Plan* p) { p->mutable_groups(0)->set_ranks(1, 3); }),
              HasSubstr("rank 3 holds layers 3 to 6, and rank 0, with which it shares them"));
  EXPECT_THAT(refusal([](Plan* p) { p->mutable_ranks(0)->set_end_layer(2'000'000'000); }),
              HasSubstr("rank 0 holds layers 0 to 2000000000 of 6"));
  EXPECT_THAT(refusal([](Plan* p) { p->mutable_ranks(2)->set_replica(2); }),
              HasSubstr("rank 2 is of replica 2, the plan has 2"));
  EXPECT_THAT(refusal([](Plan* p) { p->mutable_groups(0)->set_rows(1); }),
              HasSubstr("frames of 1 x 512 weights; the largest slice makes "));
  EXPECT_THAT(refusal([](Plan* p) { p->mutable_groups(0)->set_width(256); }),
              HasSubstr(" x 256 weights; the largest slice makes "));
  EXPECT_THAT(refusal([](Plan* p) { p->clear_deal(); }), HasSubstr("the job has no subnetworks"));
  EXPECT_THAT(refusal([](Plan* p) {
                p->mutable_job()->mutable_model()->set_heads(2'000'000'000);
                p->mutable_job()->mutable_model()->set_hidden(2'000'000'000);
              }),
              HasSubstr("2000000000 heads for a width of 2000000000 (model.heads, model.hidden)"));
  EXPECT_THAT(refusal([](Plan* p) { p->mutable_job()->mutable_model()->set_heads(7); }),
              HasSubstr("7 heads for a width of 24"));
}

TEST(Deal, AgreementsThatSettle) {
  Plan plan = MakePlan({0.5, 0.5});
  plan.mutable_job()->mutable_checkpoint()->set_every(15);
  const auto next = [&](int64_t from, bool all) {
    const Agreement a = NextAgreement(plan, from, all);
    return std::make_tuple(a.offer, a.apply, a.settles());
  };
  EXPECT_EQ(next(0, false), std::make_tuple(4, 4, false));
  EXPECT_EQ(next(3, true), std::make_tuple(4, 4, true));
  EXPECT_EQ(next(5, false), std::make_tuple(9, 9, false));
  EXPECT_EQ(next(10, false), std::make_tuple(14, 14, true));
  EXPECT_EQ(next(35, false), std::make_tuple(39, 39, true));
  EXPECT_TRUE(NextAgreement(plan, 0, false).of_all());
}

TEST(Deal, CodecsThatCarryWeights) {
  CodecSpec codec;
  EXPECT_TRUE(CarriesWeights(codec));
  codec.set_kind(CodecSpec::BF16);
  EXPECT_TRUE(CarriesWeights(codec));
  codec.set_kind(CodecSpec::FP16);
  EXPECT_TRUE(CarriesWeights(codec));
  codec.set_kind(CodecSpec::QUANT);
  codec.set_bits(8);
  EXPECT_FALSE(CarriesWeights(codec)) << "a scale of neighbours, which differ from frame to frame";
  codec.set_kind(CodecSpec::TOP_K);
  EXPECT_FALSE(CarriesWeights(codec));
}

TEST(Deal, RefusesWhatCanNotBe) {
  const auto refused = [](const Plan& plan) { return std::string(CheckDeal(plan).message()); };
  const Plan good = MakePlan({0.5, 0.5});
  Plan plan = good;
  plan.mutable_job()->mutable_strategy()->set_local_steps(1);
  EXPECT_THAT(refused(plan), HasSubstr("several replicas and local steps"));
  plan = MakePlan(std::vector<double>(9, 1.0 / 9));
  EXPECT_THAT(refused(plan), HasSubstr("9 slices, and a layer has 8 heads (model.heads)"));
  plan = MakePlan({0.5, 0.5}, 3);
  EXPECT_THAT(refused(plan), HasSubstr("none is left to deal"));
  plan = MakePlan({0.5, 0.4});
  EXPECT_THAT(refused(plan), HasSubstr("not 1 together"));
  plan = MakePlan({1.5, -0.5});
  EXPECT_THAT(refused(plan), HasSubstr("a slice has no share"));
  plan = good;
  plan.mutable_replicas(1)->set_slice(0);
  EXPECT_THAT(refused(plan), HasSubstr("slice 0 is not one of a replica's own"));
  plan = good;
  plan.mutable_deal()->add_shares(0.1);
  EXPECT_THAT(refused(plan), HasSubstr("3 slices for 2 replicas"));
  plan = good;
  plan.mutable_deal()->set_blocks(true);
  EXPECT_THAT(refused(plan), HasSubstr("whole layers can't be dealt"));
  plan = good;
  plan.mutable_job()->mutable_strategy()->set_fragments(2);
  EXPECT_THAT(refused(plan), HasSubstr("fragments"));
  plan = good;
  plan.mutable_job()->mutable_strategy()->set_schedule("overlap");
  EXPECT_THAT(refused(plan), HasSubstr("overlap"));
  plan = good;
  plan.mutable_job()->mutable_recipe()->set_optimizer("quantized_adam");
  EXPECT_THAT(refused(plan), HasSubstr("quantized_adam"));
  plan = good;
  CodecSpec codec;
  codec.set_kind(CodecSpec::SIGN);
  AddSliceGroups(codec, &plan);
  EXPECT_THAT(refused(plan), HasSubstr("loses too much"));
}

}  // namespace
}  // namespace isthmus
