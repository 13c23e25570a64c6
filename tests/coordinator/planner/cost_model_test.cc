#include "coordinator/planner/cost_model.h"

#include "coordinator/core/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<int> Balance(const JobSpec& job, const std::vector<NodeInfo>& nodes) {
  std::vector<const NodeInfo*> pointers;
  for (const NodeInfo& n : nodes) pointers.push_back(&n);
  auto layers = BalanceLayers(job, pointers);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return layers.ok() ? *layers : std::vector<int>();
}

TEST(CostModel, SecondsScaleWithOperationsAndSpeed) {
  const JobSpec job = MakeJob();
  const StageSeconds one = StageTime(job, MakeNode("a", 10), 1, 2);
  const StageSeconds two = StageTime(job, MakeNode("a", 10), 1, 3);
  const StageSeconds fast = StageTime(job, MakeNode("a", 20), 1, 2);
  EXPECT_DOUBLE_EQ(two.forward_s, 2 * one.forward_s);
  EXPECT_DOUBLE_EQ(fast.backward_s, one.backward_s / 2);
  EXPECT_NEAR(one.backward_s / one.forward_s, 2, 0.1);
}

TEST(CostModel, LayersFollowSpeedAndTheHeadCounts) {
  EXPECT_THAT(Balance(MakeJob(8), {MakeNode("a", 10), MakeNode("b", 10)}), ElementsAre(4, 4));
  EXPECT_THAT(Balance(MakeJob(8), {MakeNode("a", 10), MakeNode("b", 30)}), ElementsAre(2, 6));
  JobSpec wide = MakeJob(8);
  wide.mutable_model()->set_vocabulary(50257);  // the head costs as much as several blocks
  const std::vector<int> layers = Balance(wide, {MakeNode("a", 10), MakeNode("b", 10)});
  EXPECT_GT(layers[0], layers[1]);
  EXPECT_THAT(Balance(MakeJob(1), {MakeNode("a", 10)}), ElementsAre(1));
  EXPECT_THAT(Balance(MakeJob(2), {MakeNode("a", 1), MakeNode("b", 1000)}), ElementsAre(1, 1));
  EXPECT_THAT(Balance(MakeJob(3), {MakeNode("a", 1), MakeNode("b", 1), MakeNode("c", 1)}),
              ElementsAre(1, 1, 1));
}

TEST(CostModel, NoOtherCutIsFaster) {
  const JobSpec job = MakeJob(9);
  const std::vector<NodeInfo> nodes = {MakeNode("a", 7), MakeNode("b", 11), MakeNode("c", 23)};
  auto slowest = [&](const std::vector<int>& layers) {
    double worst = 0;
    for (int s = 0, first = 0; s < 3; first += layers[s], ++s) {
      worst = std::max(worst, StageTime(job, nodes[s], first, first + layers[s]).sum());
    }
    return worst;
  };
  const double mine = slowest(Balance(job, nodes));
  for (int a = 1; a < 8; ++a) {
    for (int b = 1; a + b < 9; ++b) {
      EXPECT_LE(mine, slowest({a, b, 9 - a - b}) * (1 + 1e-9)) << a << " " << b;
    }
  }
}

// A card of 8 GiB in a host of 256 GiB does not hold what the host would; one of 80 GiB in a host
// of 1 GiB holds it.
TEST(CostModel, AStageOnAGpuLiesInItsCardsMemory) {
  JobSpec job = MakeJob(24, 1024, 1024);
  job.mutable_recipe()->set_precision("bf16");
  NodeInfo small = MakeNode("small", 1e5, int64_t{256} << 30),
           large = MakeNode("large", 1e5, int64_t{1} << 30);
  small.set_device_memory_bytes(int64_t{8} << 30);
  large.set_device_memory_bytes(int64_t{80} << 30);
  const absl::Status refused = CheckMemory(job, {&small}, {24});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("on daemon small, which may use 8.00 GiB of its card ("));
  EXPECT_TRUE(CheckMemory(job, {&large}, {24}).ok());
  EXPECT_EQ(BalanceLayers(job, {&small}).status().code(), absl::StatusCode::kResourceExhausted);
  small.clear_device_memory_bytes();
  EXPECT_TRUE(CheckMemory(job, {&small}, {24}).ok());
}

TEST(CostModel, RecomputingTakesAForwardPassMoreAndIsNamedWhereItWouldFit) {
  JobSpec job = MakeJob(24, 1024, 1024);
  job.mutable_recipe()->set_micro_batch(4);
  JobSpec again = job;
  again.mutable_recipe()->set_recompute(true);
  NodeInfo node = MakeNode("a", 10);
  const StageSeconds kept = StageTime(job, node, 1, 9), more = StageTime(again, node, 1, 9);
  EXPECT_DOUBLE_EQ(more.forward_s, kept.forward_s);
  EXPECT_DOUBLE_EQ(more.backward_s, kept.backward_s + kept.forward_s);
  const int64_t less = StageBytes(again, 1, 0, 0, 24, node);
  EXPECT_LT(less, StageBytes(job, 1, 0, 0, 24, node) * 2 / 3);
  node.set_memory_bytes(less);
  EXPECT_TRUE(CheckMemory(again, {&node}, {24}).ok());
  EXPECT_TRUE(BalanceLayers(again, {&node}).ok());
  EXPECT_THAT(
      std::string(CheckMemory(job, {&node}, {24}).message()),
      ::testing::HasSubstr("bytes); with recipe.recompute it would need " + FormatBytes(less)));
  EXPECT_EQ(BalanceLayers(job, {&node}).status(), CheckMemory(job, {&node}, {24}));
  NodeInfo half = node;
  half.set_memory_bytes(std::max(StageBytes(again, 2, 0, 0, 12, node),  //
                                 StageBytes(again, 2, 1, 12, 24, node)));
  EXPECT_TRUE(BalanceLayers(again, {&half, &half}).ok());
  EXPECT_THAT(std::string(BalanceLayers(job, {&half, &half}).status().message()),
              ::testing::HasSubstr("; with recipe.recompute they would hold them"));
  node.set_memory_bytes(less / 4);
  for (const JobSpec* j : {&job, &again}) {
    EXPECT_THAT(std::string(CheckMemory(*j, {&node}, {24}).message()),
                ::testing::Not(::testing::HasSubstr("recompute")));
    EXPECT_THAT(std::string(BalanceLayers(*j, {&node}).status().message()),
                ::testing::Not(::testing::HasSubstr("recompute")));
  }
}

TEST(CostModel, MicroBatchesInFlight) {
  EXPECT_EQ(MicrosInFlight("gpipe", 4, 0, 8), 8);
  EXPECT_EQ(MicrosInFlight("1f1b", 4, 0, 8), 4);
  EXPECT_EQ(MicrosInFlight("1f1b", 4, 3, 8), 1);
  EXPECT_EQ(MicrosInFlight("1f1b", 4, 0, 2), 2);
}

TEST(CostModel, FirstVisitsAreCountedForWhatIsLeft) {
  JobSpec job = MakeJob();
  job.mutable_recipe()->set_steps(1000);
  job.mutable_recipe()->set_global_batch(16);
  DataSize data;
  EXPECT_EQ(FirstVisits(job, data, {}), 1) << "not known: none is counted on";
  data.known = true;
  data.train_samples = 32000;
  EXPECT_EQ(FirstVisits(job, data, {}), 1) << "half a pass";
  data.train_samples = 15385;
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {}), 15385 / 16000.0) << "1.04 passes";
  data.train_samples = 1600;  // 100 steps a pass
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {}), 0.1);
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {500, -1}), 0.2) << "anew, of what is left";
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {950, -1}), 1);
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {500, 0}), 0);
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {500, 400}), 0);
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {60, 0}), 40 / 940.0);
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {130, 70}), 70 / 870.0)
      << "30 steps of one pass and 30 of the next, perhaps with the same samples";
  EXPECT_DOUBLE_EQ(FirstVisits(job, data, {140, 70}), 60 / 860.0);
}

TEST(CostModel, BytesOfARunAreTheMeanOfItsVisits) {
  const CodecSpec delta = ParseCodec("delta(quant(3))").value();
  const TensorDims dims{4, 128, 128};
  EXPECT_DOUBLE_EQ(MeanWireBytes(delta, dims, 1), WireBytes(delta, dims, false));
  EXPECT_DOUBLE_EQ(MeanWireBytes(delta, dims, 0), WireBytes(delta, dims, true));
  EXPECT_DOUBLE_EQ(MeanWireBytes(delta, dims, 0.25),
                   (WireBytes(delta, dims, false) + 3 * WireBytes(delta, dims, true)) / 4);
  EXPECT_EQ(VisitWords(delta, dims, 0.9616),
            "256 KiB on a first visit, 25.0 KiB after; 96 % of visits are first ones");
}

TEST(Figures, ReadLikeAPersonWroteThem) {
  EXPECT_EQ(FormatRate(18.2e6), "18.2 Mbit/s");
  EXPECT_EQ(FormatRate(2.5e9), "2.50 Gbit/s");
  EXPECT_EQ(FormatRate(300e3), "300 kbit/s");
  EXPECT_EQ(FormatBytes(100), "100 bytes");
  EXPECT_EQ(FormatBytes(1.5 * (1 << 30)), "1.50 GiB");
  EXPECT_EQ(FormatSeconds(0.41), "0.41 s");
  EXPECT_EQ(FormatSeconds(0.012), "12.0 ms");
  EXPECT_EQ(FormatSeconds(9000), "2.50 h");
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatShare(0.958), "96 %");
  EXPECT_EQ(FormatShare(0.0039), "0.4 %");
  EXPECT_EQ(FormatShare(1), "100 %");
  EXPECT_EQ(FormatShare(0), "0 %");
  EXPECT_EQ(FormatCount(131072), "131072");
  EXPECT_EQ(FormatCount(4.84e6), "4.84 million");
  EXPECT_EQ(DurationWords(absl::Milliseconds(7540)), "7.5 s");
}

}  // namespace
}  // namespace isthmus::coordinator
