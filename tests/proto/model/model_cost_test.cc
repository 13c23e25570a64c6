#include "proto/model/model_cost.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

ModelSpec Model(int layers, int hidden, int heads, int context, int vocabulary) {
  ModelSpec m;
  m.set_layers(layers);
  m.set_hidden(hidden);
  m.set_heads(heads);
  m.set_context(context);
  m.set_vocabulary(vocabulary);
  return m;
}

TEST(ModelCost, CountsTheParametersOfThePublishedGpt2) {
  EXPECT_EQ(ParameterCount(Model(12, 768, 12, 1024, 50257)), 124439808);
  EXPECT_EQ(ParameterCount(Model(48, 1600, 25, 1024, 50257)), 1557611200);
}

TEST(ModelCost, StagesAddUpToTheModelPlusTheTiedCopy) {
  const ModelSpec m = Model(6, 128, 4, 64, 256);
  const PartCost whole = StageCost(m, 0, 6, 3);
  PartCost sum = StageCost(m, 0, 1, 3);
  sum += StageCost(m, 1, 4, 3);
  sum += StageCost(m, 4, 6, 3);
  EXPECT_EQ(sum.parameters, whole.parameters + 256 * 128);
  EXPECT_DOUBLE_EQ(sum.flops(), whole.flops());
  EXPECT_EQ(sum.activation_bytes, whole.activation_bytes);
}

TEST(ModelCost, ForwardIsTwoOperationsAParameterAndTokenForWideModels) {
  const ModelSpec m = Model(1, 4096, 32, 128, 256);
  const PartCost block = BlockCost(m, 2);
  const double two_per_parameter = 2.0 * block.parameters * 2 * 128;
  EXPECT_NEAR(block.forward_flops / two_per_parameter, 1.0,
              0.02);  // attention and elementwise work are small here
  EXPECT_NEAR(block.backward_flops / block.forward_flops, 2.0, 0.02);
}

TEST(ModelCost, MemoryGrowsWithMicroBatchesInFlight) {
  const ModelSpec m = Model(4, 128, 4, 64, 256);
  const int64_t one = StageMemoryBytes(m, 0, 2, 8, 1), three = StageMemoryBytes(m, 0, 2, 8, 3);
  EXPECT_GE(three - one, 2 * StageCost(m, 0, 2, 8).activation_bytes);
  EXPECT_GE(one, 16 * StageCost(m, 0, 2, 8).parameters);
}

// Of a layer its input is kept, and a forward pass is made once more; the head is as without.
TEST(ModelCost, RecomputingKeepsInputsAndCostsAForwardPassOfTheLayers) {
  const ModelSpec m = Model(12, 768, 12, 1024, 50257);
  const PartCost kept = StageCost(m, 1, 9, 8), again = StageCost(m, 1, 9, 8, {}, true);
  EXPECT_EQ(again.activation_bytes, 8 * 4 * BoundaryElements(m, 8));
  EXPECT_EQ(again.recomputed_flops, kept.forward_flops);
  EXPECT_NEAR(again.flops() / kept.flops(), 4 / 3.0, 0.01);
  EXPECT_EQ(again.parameters, kept.parameters);
  EXPECT_EQ(again.transient_bytes, kept.transient_bytes + BlockCost(m, 8).activation_bytes);
  for (const int micros : {1, 4}) {
    EXPECT_LT(
        StageMemoryBytes(m, 0, 12, 8, micros, {}, true),
        StageMemoryBytes(m, 0, 12, 8, micros) - micros * (8 * BlockCost(m, 8).activation_bytes));
    for (const bool bf16 : {false, true})
      EXPECT_LT(CardMemoryBytes(m, bf16, 0, 12, 8, micros, {}, true),
                CardMemoryBytes(m, bf16, 0, 12, 8, micros));
  }
}

// What a card was measured to hold, as worker/engine/README.md has it: not less, and a quarter more
// at most.
TEST(ModelCost, ACardHoldsWhatWasMeasured) {
  struct Measured {
    ModelSpec model;
    bool bf16;
    int64_t samples;
    double gib;
  };
  const std::vector<Measured> all = {{Model(12, 768, 12, 1024, 50304), true, 8, 5.7},
                                     {Model(12, 768, 12, 1024, 50304), false, 8, 7.5},
                                     {Model(12, 1600, 25, 1024, 50304), true, 4, 11.1}};
  for (const Measured& m : all) {
    const double gib =
        static_cast<double>(CardMemoryBytes(m.model, m.bf16, 0, 12, m.samples, 1)) / (1 << 30);
    EXPECT_GE(gib, m.gib);
    EXPECT_LE(gib, 1.25 * m.gib);
  }
}

// Values, gradients and two moments: a checkpoint holds no copy of them.
TEST(ModelCost, MemoryOfAWideModelIsItsState) {
  const ModelSpec m = Model(4, 512, 4, 8, 4096);
  for (int stage = 0; stage < 2; ++stage) {
    const int64_t parameters = StageCost(m, 2 * stage, 2 * stage + 2, 1).parameters;
    const int64_t bytes = StageMemoryBytes(m, 2 * stage, 2 * stage + 2, 1, 1);
    EXPECT_GE(bytes, 16 * parameters);
    EXPECT_LE(bytes, 18 * parameters);
  }
}

// Each recorded pass has the bf16 gradients of all layers in memory of its own.
TEST(ModelCost, OnACardARecomputingPassHasGradientsOfItsOwn) {
  const ModelSpec m = Model(24, 1600, 25, 1024, 50304);
  const auto one_more = [&](bool bf16) {
    return CardMemoryBytes(m, bf16, 0, 12, 1, 2, {}, true) -
           CardMemoryBytes(m, bf16, 0, 12, 1, 1, {}, true);
  };
  const int64_t gradients = 12 * 2 * int64_t{12} * 1600 * 1600;
  EXPECT_GT(one_more(true), gradients);
  EXPECT_LT(one_more(true), 2 * gradients);
  EXPECT_LT(one_more(false), gradients);
}

}  // namespace
}  // namespace isthmus
