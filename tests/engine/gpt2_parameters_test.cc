#include "worker/engine/gpt2_parameters.h"

#include <gtest/gtest.h>

#include <cmath>

#include "proto/model/model_cost.h"

namespace isthmus::engine {
namespace {

ModelSpec Model() {
  ModelSpec m;
  m.set_layers(4);
  m.set_hidden(64);
  m.set_heads(4);
  m.set_context(32);
  m.set_vocabulary(100);
  return m;
}

TEST(Gpt2Parameters, CountsAgreeWithTheCostModel) {
  for (auto [first, end] : {std::pair<int, int>{0, 4}, {0, 1}, {1, 3}, {3, 4}}) {
    int64_t n = 0;
    for (const ParameterSpec& spec : StageParameters(Model(), first, end)) n += spec.elements();
    EXPECT_EQ(n, StageCost(Model(), first, end, 1).parameters) << first << " " << end;
  }
}

TEST(Gpt2Parameters, AHeadOfItsOwnIsTheLastTensorOfTheLastStage) {
  ModelSpec model = Model();
  model.set_tied(false);
  for (auto [first, end] : {std::pair<int, int>{0, 4}, {0, 1}, {1, 3}, {3, 4}}) {
    const std::vector<ParameterSpec> specs = StageParameters(model, first, end);
    int64_t n = 0;
    for (const ParameterSpec& spec : specs) n += spec.elements();
    EXPECT_EQ(n, StageCost(model, first, end, 1).parameters) << first << " " << end;
    EXPECT_EQ(specs.front().name == kTokenEmbedding, first == 0);
    EXPECT_EQ(specs.back().name == "lm_head.weight", end == 4);
  }
  const ParameterSpec head = StageParameters(model, 3, 4).back();
  EXPECT_TRUE(head.decay);
  std::vector<float> values(head.elements()), embedding(values);
  FillInitial(head, 3, values.data());
  FillInitial(StageParameters(model, 0, 1).front(), 3, embedding.data());
  EXPECT_NE(values, embedding);
}

TEST(Gpt2Parameters, DecayIsForMatricesAlone) {
  for (const ParameterSpec& spec : StageParameters(Model(), 0, 4))
    EXPECT_EQ(spec.decay, spec.shape.size() == 2) << spec.name;
}

TEST(Gpt2Parameters, InitialValues) {
  for (const ParameterSpec& spec : StageParameters(Model(), 0, 4)) {
    std::vector<float> values(spec.elements());
    FillInitial(spec, 3, values.data());
    double mean = 0, squares = 0;
    for (float v : values) mean += v, squares += static_cast<double>(v) * v;
    mean /= values.size();
    const double std = std::sqrt(squares / values.size() - mean * mean);
    if (spec.init_std == 0) {
      EXPECT_EQ(mean, spec.init_constant);
      continue;
    }
    const bool residual = spec.name.find("c_proj") != std::string::npos;
    const double expected = residual ? 0.02 / std::sqrt(8.0) : 0.02;
    // Five standard errors of the sample's mean and deviation.
    EXPECT_NEAR(mean, 0, 5 * expected / std::sqrt(values.size())) << spec.name;
    EXPECT_NEAR(std / expected, 1, 5 / std::sqrt(2.0 * values.size())) << spec.name;
  }
}

TEST(Gpt2Parameters, ValuesAreTheSameOnEveryHost) {
  const ParameterSpec spec{kTokenEmbedding, {4}, true, 0.02, 0};
  float a[4], b[4];
  FillInitial(spec, 1, a);
  FillInitial(spec, 2, b);
  EXPECT_NE(a[0], b[0]);
  // From an independent computation in integers. A change here makes old seeds mean other weights.
  EXPECT_EQ(a[0], -0x1.914cccp-8f);
  EXPECT_EQ(a[1], 0x1.2668f6p-6f);
  EXPECT_EQ(a[2], 0x1.dd147ap-9f);
  EXPECT_EQ(a[3], 0x1.1367aep-6f);
}

}  // namespace
}  // namespace isthmus::engine
