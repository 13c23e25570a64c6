// What the operators promise of a model, asked of the engine that trains: the wider model computes
// what the small one does, pairs of units get the same gradients, a mixture gets different ones
// (arXiv 2404.07999; worker/multilevel/README.md).
#include <cmath>

#include "base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/job_defaults.h"
#include "tests/engine/pipeline.h"
#include "tests/multilevel/random_model.h"
#include "worker/engine/gpt2_decoder.h"

namespace isthmus::multilevel {
namespace {

constexpr int kVocabulary = 50, kContext = 16;
const Shape kSmall{2, 16, 2, kVocabulary, kContext};
const std::vector<int32_t> kText = {3, 1, 41, 5, 9, 26, 5, 35, 8, 49, 7, 0};

engine::Pipeline PipelineOf(const Shape& s) {
  const JobSpec job = engine::TinyJob(static_cast<int>(s.layers), static_cast<int>(s.hidden),
                                      static_cast<int>(s.heads), kContext, kVocabulary);
  return engine::Pipeline(engine::MakePlan(job, {static_cast<int>(s.layers)}));
}

Model ModelOf(const std::string& bytes) {
  Model model;
  const auto parsed = ParseSafetensors(bytes).value();
  for (const auto& [name, entry] : parsed) model[name] = ToFloats(entry).value();
  return model;
}

// A model that has learned something: no two units are alike, biases and norms are not what they
// were at the start.
Model Trained(uint64_t seed) {
  engine::Pipeline pipeline = PipelineOf(kSmall);
  Model model = ModelOf(pipeline.ExportWeights());
  for (auto& [name, values] : model) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += 0.2F * (static_cast<float>(RandomBelow(seed, 5, i, 1 << 20)) / (1 << 20) - 0.5F);
  }
  pipeline.Import(WeightsOf(kSmall, model), pipeline.ExportOptimizer());
  for (int step = 0; step < 5; ++step) pipeline.Step(step);
  return ModelOf(pipeline.ExportWeights());
}

std::vector<float> LogitsOf(const Shape& shape, const Model& model) {
  ModelSpec spec = SpecOf(shape);
  spec.set_norm_epsilon(1e-5);
  return engine::MakeGpt2Decoder(spec, MemorySource(WeightsOf(shape, model)), {"cpu", 1})
      .value()
      ->Append(kText)
      .value();
}

double Furthest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0 : 1e30;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

double Spread(const std::vector<float>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *high - *low;
}

class MultilevelEngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = Trained(1); }
  static Model Grown(const Mapping& mapping) {
    return ApplyAll(DecoalesceMixes(kSmall, mapping), model_);
  }
  // After one step of AdamW the first moment is the gradient times a constant.
  static Model GradientsOf(const Shape& shape, const Model& model) {
    engine::Pipeline pipeline = PipelineOf(shape);
    pipeline.Import(WeightsOf(shape, model), pipeline.ExportOptimizer());
    pipeline.Gradients(0);
    pipeline.Apply(0, 1e-3);
    Model out;
    for (auto& [name, values] : ModelOf(pipeline.ExportOptimizer())) {
      const std::string moment = ".exp_avg";
      if (name.size() > moment.size() &&
          name.compare(name.size() - moment.size(), moment.size(), moment) == 0)
        out[name.substr(0, name.size() - moment.size())] = values;
    }
    return out;
  }
  // The largest difference between the gradients of units that were one, beside the largest
  // gradient.
  static double Asymmetry(const Shape& large, const Model& gradients, const Mapping& mapping) {
    double most = 0, size = 0;
    for (const Mix& mix : CoalesceMixes(large, mapping)) {
      const std::vector<float>& g = gradients.at(mix.sources.front());
      std::vector<int64_t> rows, columns;
      for (int64_t r = 0; r < mix.rows.result; ++r) {
        rows.clear();
        mix.rows.SourcesOf(r, &rows);
        for (int64_t c = 0; c < mix.columns.result; ++c) {
          columns.clear();
          mix.columns.SourcesOf(c, &columns);
          const double first = g[rows[0] * mix.columns.source + columns[0]];
          size = std::max(size, std::abs(first));
          for (const int64_t i : rows) {
            for (const int64_t j : columns)
              most = std::max(most, std::abs(first - g[i * mix.columns.source + j]));
          }
        }
      }
    }
    EXPECT_GT(size, 1e-4);
    return most / size;
  }
  static Model model_;
};
Model MultilevelEngineTest::model_;

// fp32: logits of order 1, sums of up to 256 products.
TEST_F(MultilevelEngineTest, AWiderModelComputesWhatTheSmallOneDoes) {
  const std::vector<float> want = LogitsOf(kSmall, model_);
  ASSERT_GT(Spread(want), 0.5);
  for (const Groups groups : {Groups::kStrided, Groups::kAdjacent}) {
    for (const int64_t factor : {2, 3, 4}) {
      const Mapping mapping{factor, 1, groups};
      const Shape large = Decoalesced(kSmall, mapping).value();
      EXPECT_LT(Furthest(LogitsOf(large, Grown(mapping)), want), 1e-5) << factor;
    }
  }
}

TEST_F(MultilevelEngineTest, TheRuleForNormsBehindTheBlocksDoesNotPreserveAGpt2) {
  Mapping mapping{2, 1};
  mapping.tied = Tied::kEmbedding;
  const Shape large = Decoalesced(kSmall, mapping).value();
  EXPECT_GT(Furthest(LogitsOf(large, Grown(mapping)), LogitsOf(kSmall, model_)), 1e-2);
}

TEST_F(MultilevelEngineTest, ADeeperModelIsAnotherFunctionAndComesBack) {
  const Mapping mapping{1, 2};
  const Shape large = Decoalesced(kSmall, mapping).value();
  const Model deep = Grown(mapping);
  EXPECT_GT(Furthest(LogitsOf(large, deep), LogitsOf(kSmall, model_)), 1e-3);
  EXPECT_EQ(ApplyAll(CoalesceMixes(large, mapping), deep), model_);
}

TEST_F(MultilevelEngineTest, TheLossThatIsTrainedIsTheSame) {
  const Mapping mapping{2, 1};
  const Shape large = Decoalesced(kSmall, mapping).value();
  engine::Pipeline small = PipelineOf(kSmall), wide = PipelineOf(large);
  small.Import(WeightsOf(kSmall, model_), small.ExportOptimizer());
  wide.Import(WeightsOf(large, Grown(mapping)), wide.ExportOptimizer());
  EXPECT_NEAR(wide.Loss(3), small.Loss(3), 1e-5);
}

// Units that were one get one gradient, so they would stay one for ever: the reason for alpha < 1.
TEST_F(MultilevelEngineTest, PairsStayPairsUntilTheyAreMixed) {
  const Mapping mapping{2, 1};
  const Shape large = Decoalesced(kSmall, mapping).value();
  const Model grown = Grown(mapping);
  EXPECT_LT(Asymmetry(large, GradientsOf(large, grown), mapping), 1e-4);
  const Model before = ModelOf(PipelineOf(large).ExportWeights());
  Model mixed;
  for (const Mix& same : SameMixes(large)) {
    ASSERT_TRUE(Interpolate(same, 0.25, ReaderOf(before), ReaderOf(grown), [&](auto row) {
                  auto& to = mixed[same.name];
                  to.insert(to.end(), row.begin(), row.end());
                  return absl::OkStatus();
                }).ok());
  }
  EXPECT_GT(Asymmetry(large, GradientsOf(large, mixed), mapping), 1e-2);
}

}  // namespace
}  // namespace isthmus::multilevel
