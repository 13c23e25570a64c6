#include "compress/feedback.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

std::vector<float> Send(Pair* pair, const std::vector<float>& x, int32_t micro) {
  FrameContext context;
  context.micro = micro;
  std::string payload;
  std::vector<float> y(x.size());
  const TensorDims dims = pair->Dims(x.size() / static_cast<size_t>(pair->Dims(1).elements()));
  EXPECT_TRUE(pair->encoder->Encode(View(x, dims), context, &payload).ok());
  EXPECT_TRUE(
      pair->decoder->Decode(payload, pair->encoder->version(), context, View(&y, dims)).ok());
  return y;
}

// T2.2: what has arrived is what was sent, but for the last residual. (T1.8's analogue: the
// residual is all that is ever missing.)
TEST(Feedback, SumsTelescope) {
  for (const char* text :
       {"lep(quant(2))", "lep(lowrank(2))", "lep(topk(0.1))", "lep(sign)",
        "lep(cocktail(0.3, 0.3, 4))", "lep(randomk(0.2))", "ef(quant(2))", "ef(topk(0.1))"}) {
    Pair pair(text, 12, 10);
    std::vector<double> sent(240, 0), arrived(240, 0);
    double largest_residual = 0;
    for (uint64_t i = 0; i < 200; ++i) {
      const std::vector<float> g = Gaussian(240, 3, i);
      const std::vector<float> y = Send(&pair, g, 0);
      for (size_t k = 0; k < 240; ++k) {
        sent[k] += g[k];
        arrived[k] += y[k];
        if (i == 199)
          largest_residual = std::max(largest_residual, std::fabs(sent[k] - arrived[k]));
      }
    }
    // Without feedback 200 independent errors would add up; with it what is missing is one
    // residual, which one more call can show:
    const std::vector<float> zeros(240, 0.0f);
    for (int i = 0; i < 400; ++i) {
      const std::vector<float> y = Send(&pair, zeros, 0);
      for (size_t k = 0; k < 240; ++k) arrived[k] += y[k];
    }
    double left = 0;
    for (size_t k = 0; k < 240; ++k) left = std::max(left, std::fabs(sent[k] - arrived[k]));
    EXPECT_LT(left, 0.05 * largest_residual + 1e-3)
        << text << ": of a largest residual of " << largest_residual;
  }
}

TEST(Feedback, EfKeepsMicroBatchesApartAndLepPassesOn) {
  const std::vector<float> x = {1.0f, 0.3f, 0, 0}, zeros(4, 0.0f);
  Pair ef("ef(topk(0.25, values=none))", 1, 4), lep("lep(topk(0.25, values=none))", 1, 4);
  EXPECT_EQ(Send(&ef, x, 0), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(Send(&ef, zeros, 1), zeros);
  EXPECT_EQ(Send(&ef, zeros, 0), (std::vector<float>{0, 0.3f, 0, 0}));
  EXPECT_EQ(Send(&lep, x, 0), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(Send(&lep, zeros, 1), (std::vector<float>{0, 0.3f, 0, 0}));
}

TEST(Feedback, NonFiniteLeavesNoResidual) {
  Pair pair("lep(quant(4))", 4, 5);
  std::vector<float> x = Gaussian(20, 1);
  x[7] = std::numeric_limits<float>::quiet_NaN();
  Send(&pair, x, 0);
  x[7] = 0;
  for (float v : Send(&pair, x, 0)) EXPECT_TRUE(std::isfinite(v));
}

// T2.3: the error of the upstream weight gradient, sum of x_i^T (g_i - received g_i), with
// activations x_i of a given correlation.
double WeightGradientError(const std::string& text, float correlation) {
  const size_t positions = 24, in = 12, hidden = 16;
  Pair pair(text, positions, hidden);
  std::vector<float> x = Gaussian(positions * in, 21);
  std::vector<double> error(in * hidden, 0.0);
  for (uint64_t micro = 0; micro < 60; ++micro) {
    const std::vector<float> fresh = Gaussian(positions * in, 22, micro),
                             g = Gaussian(positions * hidden, 23, micro);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = correlation * x[i] + std::sqrt(1 - correlation * correlation) * fresh[i];
    const std::vector<float> y = Send(&pair, g, static_cast<int32_t>(micro));
    for (size_t p = 0; p < positions; ++p) {
      for (size_t i = 0; i < in; ++i) {
        for (size_t j = 0; j < hidden; ++j)
          error[i * hidden + j] += double{x[p * in + i]} * (g[p * hidden + j] - y[p * hidden + j]);
      }
    }
  }
  double sum = 0;
  for (double e : error) sum += e * e;
  return std::sqrt(sum);
}

TEST(Feedback, LepWinsOnlyWhereNeighbouringActivationsAreAlike) {
  const double plain_alike = WeightGradientError("lowrank(4)", 1.0f),
               lep_alike = WeightGradientError("lep(lowrank(4))", 1.0f);
  const double plain_apart = WeightGradientError("lowrank(4)", 0.0f),
               lep_apart = WeightGradientError("lep(lowrank(4))", 0.0f);
  EXPECT_LT(lep_alike, 0.6 * plain_alike) << lep_alike << " " << plain_alike;
  EXPECT_GT(lep_apart, 1.2 * plain_apart) << lep_apart << " " << plain_apart;
}

}  // namespace
}  // namespace isthmus::compress
