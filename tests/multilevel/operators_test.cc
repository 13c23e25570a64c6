// The operators of arXiv 2404.07999 against their matrices: F_out T_out = I, T_in F_in = I,
// R G = I, what a result is made of, and that a round trip gives the small model back bit for bit.
#include "worker/multilevel/operators.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multilevel/random_model.h"

namespace isthmus::multilevel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Matrix = std::vector<std::vector<double>>;

const Shape kLarge{4, 16, 4, 11, 5};

Matrix Zeros(int64_t rows, int64_t columns) {
  return Matrix(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
}

Matrix Times(const Matrix& a, const Matrix& b) {
  Matrix out = Zeros(static_cast<int64_t>(a.size()), static_cast<int64_t>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}

Matrix Transposed(const Matrix& a) {
  Matrix out = Zeros(static_cast<int64_t>(a[0].size()), static_cast<int64_t>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) out[j][i] = a[i][j];
  }
  return out;
}

Matrix NormRow(Matrix a) {
  for (auto& row : a) {
    double sum = 0;
    for (const double x : row) sum += x;
    for (double& x : row) x /= sum;
  }
  return a;
}

Matrix Identity(int64_t n) {
  Matrix out = Zeros(n, n);
  for (int64_t i = 0; i < n; ++i) out[i][i] = 1;
  return out;
}

// The paper's F_out: result x source, rows of membership divided by their sum.
Matrix Average(const Axis& axis) {
  Matrix out = Zeros(axis.result, axis.source);
  for (int64_t i = 0; i < axis.result; ++i) {
    std::vector<int64_t> from;
    axis.SourcesOf(i, &from);
    for (const int64_t j : from) out[i][j] = 1;
  }
  return NormRow(out);
}

class Groupings : public testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Both, Groupings, testing::Values(Groups::kStrided, Groups::kAdjacent));

TEST_P(Groupings, UpAndDownAreInverse) {
  for (const int64_t factor : {1, 2, 3, 4}) {
    const Axis down{12, 12 * factor, 2, 3, GetParam()}, up{12 * factor, 12, 2, 3, GetParam()};
    const Matrix f_out = Average(down), t_out = Average(up);
    EXPECT_EQ(t_out, NormRow(Transposed(f_out)));  // T_out := norm_row(F_out^T)
    EXPECT_EQ(Times(f_out, t_out), Identity(12)) << factor;
    const Matrix f_in = t_out;                       // norm_row(F_out^T): inputs are summed
    const Matrix t_in = NormRow(Transposed(t_out));  // inputs are divided
    EXPECT_EQ(Times(t_in, f_in), Identity(12)) << factor;
  }
}

TEST(Operators, DefaultGroupsAreThoseOfThePaper) {
  std::vector<int64_t> from;
  Axis{4, 8, 1, 1, Groups::kStrided}.SourcesOf(1, &from);  // [I/2, I/2]
  EXPECT_THAT(from, ElementsAre(1, 5));
  from.clear();
  Axis{4, 8, 1, 1, Groups::kAdjacent}.SourcesOf(1, &from);  // l_{2i-1,i} = l_{2i,i} = 1/2
  EXPECT_THAT(from, ElementsAre(2, 3));
  from.clear();
  Axis{4, 8, 2, 1, Groups::kAdjacent}.SourcesOf(3, &from);  // units of two: heads stay whole
  EXPECT_THAT(from, ElementsAre(5, 7));
  EXPECT_EQ(Mapping().width, Groups::kStrided);
  EXPECT_EQ(Mapping().depth, Groups::kAdjacent);
}

// W2 = F_out W1 F_in with weights stored out x in, by the matrices; here they are stored in x out.
TEST_P(Groupings, WeightsAreThoseOfTheMatrices) {
  Mapping mapping;
  mapping.width = GetParam();
  const Model large = RandomModel(kLarge, 3);
  for (const Mix& mix : CoalesceMixes(kLarge, mapping)) {
    if (mix.name != "transformer.h.1.mlp.c_fc.weight") continue;
    Matrix mean = Zeros(mix.rows.source, mix.columns.source);
    for (const char* layer : {"2", "3"}) {  // neighbours
      const auto& w = large.at(absl::StrCat("transformer.h.", layer, ".mlp.c_fc.weight"));
      for (size_t i = 0; i < w.size(); ++i)
        mean[i / mean[0].size()][i % mean[0].size()] += 0.5 * w[i];
    }
    const Matrix f_in = NormRow(Transposed(Average(mix.rows)));
    const Matrix want = Times(Transposed(f_in), Times(mean, Transposed(Average(mix.columns))));
    const std::vector<float> got = ApplyAll({mix}, large).at(mix.name);
    ASSERT_EQ(got.size(), want.size() * want[0].size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i / want[0].size()][i % want[0].size()], 1e-6) << i;  // fp32
    return;
  }
  FAIL() << "no such tensor";
}

TEST(Operators, CoalesceUndoesDecoalesceBitForBit) {
  const Shape small{2, 8, 2, 11, 5};
  Model model = RandomModel(small, 7);
  model["transformer.ln_f.bias"][1] = -0.0F;
  for (const Groups width : {Groups::kStrided, Groups::kAdjacent}) {
    for (const Groups depth : {Groups::kStrided, Groups::kAdjacent}) {
      for (const Tied tied : {Tied::kFinalNorm, Tied::kEmbedding}) {
        for (const int64_t factor : {1, 2, 4}) {
          const Mapping mapping{factor, 2 * factor, width, depth, tied};
          const Shape large = Decoalesced(small, mapping).value();
          const Model up = ApplyAll(DecoalesceMixes(small, mapping), model);
          const Model back = ApplyAll(CoalesceMixes(large, mapping), up);
          ASSERT_EQ(back.size(), model.size());
          for (const auto& [name, values] : model) {
            const auto& got = back.at(name);
            ASSERT_EQ(got.size(), values.size()) << name;
            EXPECT_EQ(std::memcmp(got.data(), values.data(), 4 * got.size()), 0) << name;
          }
        }
      }
    }
  }
}

TEST(Operators, AFactorOfThreeComesBackToTheLastBit) {
  const Shape small{1, 4, 2, 5, 3};
  const Mapping mapping{3, 3};
  const Model model = RandomModel(small, 1);
  const Model back = ApplyAll(CoalesceMixes(Decoalesced(small, mapping).value(), mapping),
                              ApplyAll(DecoalesceMixes(small, mapping), model));
  for (const auto& [name, values] : model) {
    for (size_t i = 0; i < values.size(); ++i)  // a third is rounded once
      EXPECT_NEAR(back.at(name)[i], values[i], 1.2e-7 * std::abs(values[i])) << name;
  }
}

TEST(Operators, TheTiedRuleMovesTheFactor) {
  const Shape small{1, 4, 2, 3, 2};
  const Model model = RandomModel(small, 2);
  const auto first = [&](Tied tied, const char* name) {
    return ApplyAll(DecoalesceMixes(small, {2, 1, Groups::kStrided, Groups::kAdjacent, tied}),
                    model)
               .at(name)[0] /
           model.at(name)[0];
  };
  EXPECT_EQ(first(Tied::kFinalNorm, "transformer.wte.weight"), 1);
  EXPECT_EQ(first(Tied::kFinalNorm, "transformer.wpe.weight"), 1);
  EXPECT_EQ(first(Tied::kFinalNorm, "transformer.ln_f.weight"), 0.5);
  EXPECT_EQ(first(Tied::kFinalNorm, "transformer.ln_f.bias"), 0.5);
  EXPECT_EQ(first(Tied::kEmbedding, "transformer.wte.weight"), 0.5);
  EXPECT_EQ(first(Tied::kEmbedding, "transformer.ln_f.weight"), 1);
  EXPECT_EQ(first(Tied::kFinalNorm, "transformer.h.0.ln_1.weight"), 1);
}

TEST(Operators, AFactorThatDoesNotDivideIsNamed) {
  const auto error = [](Mapping mapping) {
    return std::string(Coalesced(kLarge, mapping).status().message());
  };
  EXPECT_THAT(error({3, 2}), HasSubstr("width factor 3 does not divide the 4 heads"));
  EXPECT_THAT(error({2, 3}), HasSubstr("depth factor 3 does not divide the 4 layers"));
  EXPECT_THAT(error({0, 1}), HasSubstr("factors are 1 and more"));
  EXPECT_FALSE(Decoalesced(kLarge, {kMaxHeads, 1}).ok());
  EXPECT_FALSE(Decoalesced(kLarge, {1, kMaxLayers}).ok());
  EXPECT_EQ(Coalesced(kLarge, {4, 2}).value(), (Shape{2, 4, 1, 11, 5}));
}

TEST(Operators, ParametersAreThoseOfTheTensors) {
  int64_t sum = 0;
  for (const auto& [name, values] : RandomModel(kLarge, 1))
    sum += static_cast<int64_t>(values.size());
  EXPECT_EQ(Parameters(kLarge), sum);
  EXPECT_EQ(Parameters({12, 768, 12, 50257, 1024}), 124439808);  // GPT-2
}

TEST(Operators, InterpolationHasItsEndsBitForBit) {
  const Shape shape{1, 4, 2, 3, 2};
  Model a = RandomModel(shape, 1), b = RandomModel(shape, 2);
  const std::string name = "transformer.ln_f.bias";
  a[name][0] = -0.0F;
  b[name][1] = -0.0F;
  const auto mix = [&](double alpha) {
    std::vector<float> out;
    for (const Mix& same : SameMixes(shape)) {
      if (same.name != name) continue;
      EXPECT_TRUE(Interpolate(same, alpha, ReaderOf(a), ReaderOf(b), [&](auto row) {
                    out.insert(out.end(), row.begin(), row.end());
                    return absl::OkStatus();
                  }).ok());
    }
    return out;
  };
  EXPECT_EQ(std::memcmp(mix(0).data(), a[name].data(), 16), 0);
  EXPECT_EQ(std::memcmp(mix(1).data(), b[name].data(), 16), 0);
  EXPECT_FLOAT_EQ(mix(0.25)[2], 0.75F * a[name][2] + 0.25F * b[name][2]);  // of the other: alpha
}

TEST(Operators, ASumThatOverflowsIsRefused) {
  const Shape shape{1, 4, 2, 3, 2};
  Model model = RandomModel(shape, 1);
  for (float& x : model["transformer.ln_f.weight"]) x = std::numeric_limits<float>::max();
  absl::Status status;
  for (const Mix& mix : CoalesceMixes(shape, {2, 1})) {
    if (mix.name == "transformer.ln_f.weight")
      status = ApplyMix(mix, ReaderOf(model), [](auto) { return absl::OkStatus(); });
  }
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("transformer.ln_f.weight of the result: element 0 is inf"));
}

}  // namespace
}  // namespace isthmus::multilevel
