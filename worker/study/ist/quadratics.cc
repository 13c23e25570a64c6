#include "worker/study/ist/quadratics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/rng.h"

namespace isthmus::study::ist {
namespace {

constexpr double kTwoPi = 6.283185307179586;

double Normal(uint64_t seed, uint64_t stream, uint64_t index) {  // Box and Muller
  const double u = 1 - RandomUniform(seed, stream, 2 * index);
  return std::sqrt(-2 * std::log(u)) *
         std::cos(kTwoPi * RandomUniform(seed, stream, 2 * index + 1));
}

Parts Cut(const std::vector<int64_t>& order, int64_t workers) {
  Parts parts(workers);
  const int64_t each = static_cast<int64_t>(order.size()) / workers;
  for (int64_t i = 0; i < workers; ++i)
    parts[i].assign(order.begin() + i * each, order.begin() + (i + 1) * each);
  return parts;
}

}  // namespace

Matrix Quadratics::MeanL() const {
  Matrix mean(dimension());
  for (const Matrix& one : l) mean = Sum(mean, 1.0 / static_cast<double>(workers()), one);
  return mean;
}

Vector Quadratics::MeanB() const {
  Vector mean(dimension());
  for (const Vector& one : b) {
    for (size_t j = 0; j < mean.size(); ++j) mean[j] += one[j] / static_cast<double>(workers());
  }
  return mean;
}

double Quadratics::Value(const Vector& x) const {
  return SquareNorm(MeanL(), x) / 2 - Dot(MeanB(), x);
}

Vector Quadratics::Minimum() const { return Solve(MeanL(), MeanB()); }

Quadratics RandomQuadratics(int64_t workers, int64_t dimension, bool homogeneous, uint64_t seed) {
  Quadratics q;
  for (int64_t i = 0; i < workers; ++i) {
    const uint64_t stream = homogeneous ? 1 : 1 + static_cast<uint64_t>(i);
    Matrix a(dimension), l(dimension);
    for (size_t k = 0; k < a.values.size(); ++k) a.values[k] = Normal(seed, 2 * stream, k);
    for (int64_t r = 0; r < dimension; ++r) {
      for (int64_t c = 0; c < dimension; ++c) {
        for (int64_t k = 0; k < dimension; ++k)
          l.at(r, c) += a.at(r, k) * a.at(c, k) / static_cast<double>(dimension);
      }
      l.at(r, r) += 0.5;
    }
    Vector b(dimension);
    for (int64_t j = 0; j < dimension; ++j) b[j] = 1 + Normal(seed, 2 * stream + 1, j);
    q.l.push_back(std::move(l));
    q.b.push_back(std::move(b));
  }
  return q;
}

Quadratics WithoutB(Quadratics q) {
  for (Vector& b : q.b) std::fill(b.begin(), b.end(), 0.0);
  return q;
}

Quadratics Preconditioned(const Quadratics& q) {
  Quadratics out = q;
  const Vector diagonal = DiagonalOf(q.MeanL());
  for (int64_t i = 0; i < q.workers(); ++i) {
    for (int64_t r = 0; r < q.dimension(); ++r) {
      for (int64_t c = 0; c < q.dimension(); ++c)
        out.l[i].at(r, c) /= std::sqrt(diagonal[r] * diagonal[c]);
      out.b[i][r] /= std::sqrt(diagonal[r]);
    }
  }
  return out;
}

Parts DealParts(Deal deal, int64_t workers, int64_t dimension, int64_t q, uint64_t seed,
                int64_t round) {
  uint64_t draw = 0;
  std::vector<int64_t> order(dimension);
  const auto shuffle = [&](int64_t first) {  // so many places of a random order
    std::iota(order.begin(), order.end(), 0);
    for (int64_t j = 0; j < first; ++j) {
      const auto left = static_cast<uint64_t>(dimension - j);
      std::swap(order[j], order[j + static_cast<int64_t>(RandomBelow(
                                        seed, 1 + static_cast<uint64_t>(round), draw++, left))]);
    }
  };
  if (deal == Deal::kPermutation) {
    ISTHMUS_CHECK(workers * q == dimension);
    shuffle(dimension);
    return Cut(order, workers);
  }
  Parts parts;
  for (int64_t i = 0; i < workers; ++i) {
    shuffle(q);
    parts.emplace_back(order.begin(), order.begin() + q);
  }
  return parts;
}

std::vector<Parts> AllPermutations(int64_t workers, int64_t dimension) {
  ISTHMUS_CHECK(dimension <= 8);
  std::vector<int64_t> order(dimension);
  std::iota(order.begin(), order.end(), 0);
  std::vector<Parts> all;
  do {
    all.push_back(Cut(order, workers));
  } while (std::next_permutation(order.begin(), order.end()));
  return all;
}

std::vector<Parts> AllSubsets(int64_t workers, int64_t dimension, int64_t q) {
  std::vector<bool> in(dimension);
  std::fill(in.begin(), in.begin() + q, true);
  std::vector<Parts> all;
  do {
    std::vector<int64_t> set;
    for (int64_t j = 0; j < dimension; ++j) {
      if (in[j]) set.push_back(j);
    }
    all.emplace_back(workers, set);
  } while (std::prev_permutation(in.begin(), in.end()));
  return all;
}

Scale Constant(double c) {
  return [c](int64_t, int64_t) { return c; };
}

Scale ByDiagonal(const Quadratics& q) {
  std::vector<Vector> scales;
  for (const Matrix& l : q.l) {
    scales.push_back(DiagonalOf(l));
    for (double& s : scales.back()) s = std::sqrt(static_cast<double>(q.workers()) / s);
  }
  return [scales](int64_t worker, int64_t coordinate) { return scales[worker][coordinate]; };
}

Vector Gradient(const Quadratics& q, const Parts& parts, const Scale& scale, Method method,
                const Vector& x) {
  Vector g(x.size());
  const double share = 1.0 / static_cast<double>(q.workers());
  for (int64_t i = 0; i < q.workers(); ++i) {
    for (const int64_t j : parts[i]) {
      double slope = -q.b[i][j];
      if (method == Method::kSubnetwork) {
        for (const int64_t k : parts[i]) slope += q.l[i].at(j, k) * scale(i, k) * x[k];
      } else {
        for (size_t k = 0; k < x.size(); ++k) slope += q.l[i].at(j, static_cast<int64_t>(k)) * x[k];
      }
      g[j] += share * scale(i, j) * slope;
    }
  }
  return g;
}

Matrix RoundMatrix(const Quadratics& q, const Parts& parts, const Scale& scale) {
  Matrix out(q.dimension());
  const double share = 1.0 / static_cast<double>(q.workers());
  for (int64_t i = 0; i < q.workers(); ++i) {
    for (const int64_t j : parts[i]) {
      for (const int64_t k : parts[i])
        out.at(j, k) += share * scale(i, j) * q.l[i].at(j, k) * scale(i, k);
    }
  }
  return out;
}

Vector RoundShift(const Quadratics& q, const Parts& parts, const Scale& scale) {
  Vector out(q.dimension());
  for (int64_t i = 0; i < q.workers(); ++i) {
    for (const int64_t j : parts[i])
      out[j] += scale(i, j) * q.b[i][j] / static_cast<double>(q.workers());
  }
  return out;
}

Matrix ExpectedMatrix(const Quadratics& q, double c, int64_t held) {
  const auto d = static_cast<double>(q.dimension()), h = static_cast<double>(held);
  const double rho = d > 1 ? (h - 1) / (d - 1) : 1;
  const Matrix mean = q.MeanL();
  const Matrix mixed = Sum(Sum(Matrix(mean.n), rho, mean), 1 - rho, Diagonal(DiagonalOf(mean)));
  return Sum(Matrix(mean.n), c * c * h / d, mixed);
}

Vector FixedPoint(const Quadratics& q, double c, int64_t held) {
  Vector shift = q.MeanB();
  const double share = static_cast<double>(held) / static_cast<double>(q.dimension());
  for (double& s : shift) s *= c * share;
  return Solve(ExpectedMatrix(q, c, held), shift);
}

Vector ScaledFixedPoint(const Quadratics& q) {
  Vector out(q.dimension());
  const auto n = static_cast<double>(q.workers());
  for (int64_t i = 0; i < q.workers(); ++i) {
    for (int64_t j = 0; j < q.dimension(); ++j)
      out[j] += q.b[i][j] / std::sqrt(q.l[i].at(j, j)) / n / std::sqrt(n);
  }
  return out;
}

void Train(const Quadratics& q, const Run& run, const Scale& scale, Vector x,
           const std::function<void(int64_t round, const Vector& x)>& see) {
  for (int64_t round = 0; round < run.rounds; ++round) {
    see(round, x);
    const Parts parts = DealParts(run.deal, q.workers(), q.dimension(), run.held, run.seed, round);
    const Vector g = Gradient(q, parts, scale, run.method, x);
    for (size_t j = 0; j < x.size(); ++j) x[j] -= run.gamma * g[j];
  }
  see(run.rounds, x);
}

Vector TimeAverage(const Quadratics& q, const Run& run, const Scale& scale) {
  Vector sum(q.dimension());
  double count = 0;
  Train(q, run, scale, sum, [&](int64_t round, const Vector& x) {
    if (round < run.rounds / 10) return;
    ++count;
    for (size_t j = 0; j < x.size(); ++j) sum[j] += x[j];
  });
  for (double& s : sum) s /= count;
  return sum;
}

}  // namespace isthmus::study::ist
