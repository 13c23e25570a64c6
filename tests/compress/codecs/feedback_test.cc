#include "compress/codecs/feedback.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"
#include "tests/compress/string_state.h"

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

// What the encoder still owes of a micro-batch: its residuals, read by one that sends all it has.
std::vector<float> Residual(Pair* pair, const std::string& exact, size_t n) {
  StringSink sink;
  StateWriter writer(&sink);
  EXPECT_TRUE(pair->encoder->SaveState(&writer).ok());
  EXPECT_TRUE(writer.Finish().ok());
  StringSource source(sink.text);
  StateReader reader(&source);
  Pair rest(exact, pair->options);
  EXPECT_TRUE(rest.encoder->LoadState(&reader).ok());
  return Send(&rest, std::vector<float>(n, 0.0f), 0);
}

double Largest(const std::vector<double>& x) {
  double most = 0;
  for (double v : x) most = std::max(most, std::fabs(v));
  return most;
}

// T2.2: what has arrived is what was sent, but for the last residual, to rounding: 200 additions in
// fp32 of numbers up to some tens.
TEST(Feedback, SumsTelescope) {
  for (const char* text :
       {"lep(quant(2))", "lep(lowrank(2))", "lep(topk(0.1))", "lep(sign)",
        "lep(cocktail(0.3, 0.3, 4))", "lep(randomk(0.2))", "ef(quant(2))", "ef(topk(0.1))"}) {
    Pair pair(text, 12, 10);
    std::vector<double> missing(240, 0);
    for (uint64_t i = 0; i < 200; ++i) {
      const std::vector<float> g = Gaussian(240, 3, i), y = Send(&pair, g, 0);
      for (size_t k = 0; k < 240; ++k) missing[k] += double{g[k]} - y[k];
    }
    const std::vector<float> residual =
        Residual(&pair, text[0] == 'l' ? "lep(none)" : "ef(none)", 240);
    std::vector<double> left = missing;
    for (size_t k = 0; k < 240; ++k) left[k] -= residual[k];
    EXPECT_GT(Largest(missing), 0.1) << text << ": something is owed";
    EXPECT_LT(Largest(left), 1e-3) << text << ": of " << Largest(missing);
  }
}

// T1.8: a compressed all-reduce, both of whose sides feed their errors back. The workers send their
// tensors to a server, which sends the mean of what arrived to all; over all rounds, what came out
// is the sum of the true means but for the mean of the workers' residuals and the server's.
TEST(Feedback, ACompressedAllReduceOwesItsResidualsAlone) {
  constexpr size_t kWorkers = 4, kRounds = 100, kElements = 96;
  for (const char* text : {"ef(quant(4, group=32))", "ef(quant(8))", "ef(topk(0.1))", "ef(sign)"}) {
    std::vector<std::unique_ptr<Pair>> workers;
    for (size_t w = 0; w < kWorkers; ++w) workers.push_back(std::make_unique<Pair>(text, 3, 32));
    Pair server(text, 3, 32);
    std::vector<double> missing(kElements, 0);
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<double> mean(kElements, 0);
      for (size_t w = 0; w < kWorkers; ++w) {
        const std::vector<float> x = Gaussian(kElements, 40 + w, round);
        const std::vector<float> y = Send(workers[w].get(), x, 0);
        for (size_t k = 0; k < kElements; ++k) {
          missing[k] += double{x[k]} / kWorkers;
          mean[k] += double{y[k]} / kWorkers;
        }
      }
      const std::vector<float> out = Send(&server, std::vector<float>(mean.begin(), mean.end()), 0);
      for (size_t k = 0; k < kElements; ++k) missing[k] -= out[k];
    }
    std::vector<double> left = missing;
    for (const auto& worker : workers) {
      const std::vector<float> e = Residual(worker.get(), "ef(none)", kElements);
      for (size_t k = 0; k < kElements; ++k) left[k] -= double{e[k]} / kWorkers;
    }
    const std::vector<float> e = Residual(&server, "ef(none)", kElements);
    for (size_t k = 0; k < kElements; ++k) left[k] -= e[k];
    EXPECT_GT(Largest(missing), 1e-3) << text << ": something is owed";
    EXPECT_LT(Largest(left), 1e-4) << text << ": of " << Largest(missing);
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
