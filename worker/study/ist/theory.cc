#include "worker/study/ist/theory.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/study/ist/quadratics.h"

namespace isthmus::study::ist {
namespace {

constexpr double kExact = 1e-10;   // sums of doubles
constexpr double kAverage = 0.02;  // of the default number of rounds
constexpr double kDefaultRounds = 200'000;

TheoryRow Row(std::string what, double measured, double expected, double tolerance) {
  const double size = std::max(std::abs(expected), 1e-300);
  return {"",       std::move(what), measured,
          expected, false,           std::abs(measured - expected) / size,
          tolerance};
}

TheoryRow Bound(std::string what, double measured, double most) {
  TheoryRow row = Row(std::move(what), measured, most, kExact);
  row.bound = true;
  if (measured <= most) row.deviation = 0;
  return row;
}

TheoryRow Row(std::string what, const Vector& measured, const Vector& expected, double tolerance) {
  TheoryRow row = Row(std::move(what), Norm(measured), Norm(expected), tolerance);
  row.deviation = Norm(Difference(measured, expected)) / std::max(Norm(expected), 1e-300);
  return row;
}

Vector Flat(const Matrix& a) { return a.values; }

// The mean of what each of `all` gives.
Matrix MeanMatrix(const std::vector<Parts>& all, const std::function<Matrix(const Parts&)>& of) {
  Matrix mean = of(all.front());
  std::fill(mean.values.begin(), mean.values.end(), 0.0);
  for (const Parts& parts : all) mean = Sum(mean, 1.0 / static_cast<double>(all.size()), of(parts));
  return mean;
}

// The results for one seed, in the order of the table.
class Theory {
 public:
  Theory(const TheoryOptions& options, uint64_t seed)
      : rounds_(options.rounds),
        seed_(seed),
        average_(kAverage *
                 std::sqrt(std::max(1.0, kDefaultRounds / static_cast<double>(options.rounds)))) {}

  std::vector<TheoryRow> Rows() {
    Part("expectation", &Theory::Expectations);
    Part("no minimum apart", &Theory::Rates);
    Part("homogeneous", &Theory::Homogeneous);
    Part("fixed point", &Theory::FixedPoints);
    Part("neighbourhood", &Theory::Neighbourhoods);
    Part("control", &Theory::Controls);
    Part("indefinite", &Theory::Indefinite);
    return std::move(rows_);
  }

 private:
  void Part(const std::string& name, std::vector<TheoryRow> (Theory::*rows)()) {
    for (TheoryRow& row : (this->*rows)()) {
      row.part = name;
      rows_.push_back(std::move(row));
    }
  }

  // E mean(C L C) by enumeration, and what a sketch does to a vector.
  std::vector<TheoryRow> Expectations() {
    std::vector<TheoryRow> rows;
    const Quadratics q = RandomQuadratics(2, 4, false, seed_);
    const auto matrix = [&](double c) {
      return [&q, c](const Parts& parts) { return RoundMatrix(q, parts, Constant(c)); };
    };
    rows.push_back(Row("E Bk, Perm-2 of d = 4, n = 2",
                       Flat(MeanMatrix(AllPermutations(2, 4), matrix(2))),
                       Flat(ExpectedMatrix(q, 2, 2)), kExact));
    rows.push_back(Row("E Bk, Rand-3 of d = 4, n = 2",
                       Flat(MeanMatrix(AllSubsets(2, 4, 3), matrix(4.0 / 3))),
                       Flat(ExpectedMatrix(q, 4.0 / 3, 3)), kExact));
    double variance = 0;  // of Rand-2 on a vector, beside its square
    const std::vector<Parts> sets = AllSubsets(1, 4, 2);
    const Vector x = q.b.front();
    for (const Parts& parts : sets) {
      Vector away = x;
      for (const int64_t j : parts.front()) away[j] -= 2 * x[j];
      variance += Dot(away, away) / Dot(x, x) / static_cast<double>(sets.size());
    }
    rows.push_back(Row("E|Cx - x|^2 / |x|^2 = d/q - 1, Rand-2", variance, 1, kExact));
    const Quadratics scaled = RandomQuadratics(5, 5, false, seed_);
    const Vector one = Flat(Diagonal(Vector(5, 1.0)));
    Vector furthest = one;
    for (const Parts& parts : AllPermutations(5, 5)) {
      const Vector round = Flat(RoundMatrix(scaled, parts, ByDiagonal(scaled)));
      if (Norm(Difference(round, one)) >= Norm(Difference(furthest, one))) furthest = round;
    }
    rows.push_back(
        Row("Bk = I in every round, Perm-1 scaled by Diag(L_i), n = 5", furthest, one, kExact));
    return rows;
  }

  // Theorem 1: b_i = 0, Perm-1 unscaled, moments by enumeration and by running.
  std::vector<TheoryRow> Rates() {
    constexpr int64_t kWorkers = 4, kRounds = 6, kRuns = 20'000;  // later moments have long tails
    const Quadratics q =
        WithoutB(NearlyDiagonal(RandomQuadratics(kWorkers, kWorkers, false, seed_)));
    const Scale scale = Constant(kWorkers);
    const Matrix l = q.MeanL();
    const std::vector<Parts> all = AllPermutations(kWorkers, kWorkers);
    const Matrix b = ExpectedMatrix(q, kWorkers, 1);
    const Matrix lb = Product(l, b), bl = Product(b, l);
    Matrix w = Sum(lb, 1, bl);
    for (double& value : w.values) value /= 2;
    const Matrix blb = MeanMatrix(all, [&](const Parts& parts) {
      const Matrix one = RoundMatrix(q, parts, scale);
      return Product(one, Product(l, one));
    });
    const double gamma = 1 / RelativeEigenvalues(blb, w).front();
    const double least = RelativeEigenvalues(w, l).back();
    const Vector x0(kWorkers, 1.0);
    Moments exact(q, scale, all, gamma, x0);
    double gradients = 0;  // the sum of E|grad f|^2 in the norm of the theorem: E x^T W x
    for (int64_t k = 0; k < kRounds; ++k) {
      gradients += exact.Expected(w);
      exact.Step();
    }
    double measured = 0;
    for (int64_t run = 0; run < kRuns; ++run) {
      Train(q,
            {kRounds, gamma, Deal::kPermutation, 1, Method::kSubnetwork,
             seed_ * 100'000 + static_cast<uint64_t>(run)},
            scale, x0, [&](int64_t round, const Vector& x) {
              if (round == kRounds) measured += SquareNorm(l, x) / kRuns;
            });
    }
    const double start = SquareNorm(l, x0), end = exact.Expected(l);
    return {
        Row("rate a round, E|x_k - x*|^2_L, 20000 runs, against moments",
            std::pow(measured / start, 1.0 / kRounds), std::pow(end / start, 1.0 / kRounds), 0.02),
        Bound("rate a round <= 1 - gamma lambda_min", std::pow(end / start, 1.0 / kRounds),
              1 - gamma * least),
        Bound("mean E|grad f|^2 <= 2 (f(x0) - f(xK)) / (gamma K)", gradients / kRounds,
              (start - end) / (gamma * kRounds))};
  }

  // Equal workers, preconditioned, Perm-1: nothing is random.
  std::vector<TheoryRow> Homogeneous() {
    constexpr int64_t kWorkers = 6, kRounds = 30;
    const auto n = static_cast<double>(kWorkers);
    const Quadratics q = Preconditioned(RandomQuadratics(kWorkers, kWorkers, true, seed_));
    const Vector b = q.MeanB(), x0(kWorkers, 1.0);
    const auto target = [&](double by) {
      Vector out = b;
      for (double& value : out) value /= by;
      return out;
    };
    const auto last = [&](const Quadratics& problem, double c, double gamma, int64_t rounds) {
      Vector out;
      Train(problem, {rounds, gamma, Deal::kPermutation, 1, Method::kSubnetwork, seed_},
            Constant(c), x0, [&](int64_t, const Vector& x) { out = x; });
      return out;
    };
    Vector closed = target(std::sqrt(n));
    const double left = std::pow(1 - 0.1, kRounds);
    for (size_t j = 0; j < closed.size(); ++j) closed[j] = left * x0[j] + (1 - left) * closed[j];
    const Quadratics flat = WithoutB(q);
    const double kept = std::pow(1 - 0.05 * n, kRounds);
    Vector zero = x0;  // one more than what is left, since a deviation from zero has no size
    for (const double value : last(flat, n, 1 / n, 1)) zero[0] += std::abs(value);
    Vector shrunk = x0;
    for (double& value : shrunk) value *= kept;
    return {Row("x_k, C = sqrt(n) ee^T, gamma 0.1, k = 30", last(q, std::sqrt(n), 0.1, kRounds),
                closed, kExact),
            Row("x_inf = b/sqrt(n) in one step, gamma 1", last(q, std::sqrt(n), 1, 1),
                target(std::sqrt(n)), kExact),
            Row("x_inf = b/n, C = n ee^T, in one step, gamma 1/n", last(q, n, 1 / n, 1), target(n),
                kExact),
            Row("x_inf = b, plain mask, gamma n", last(q, 1, n, 1), b, kExact),
            Row("x_k without b, C = n ee^T, gamma 0.05: (1 - gamma n)^k x0",
                last(flat, n, 0.05, kRounds), shrunk, kExact),
            Row("without b zero in one step, gamma 1/n (plus 1)", zero, x0, kExact)};
  }

  // Where the mean of the models settles, and how far that is from x*.
  std::vector<TheoryRow> FixedPoints() {
    std::vector<TheoryRow> rows;
    const Quadratics scaled = RandomQuadratics(6, 6, false, seed_);
    rows.push_back(Row("Perm-1 scaled by Diag(L_i): Db/sqrt(n)",
                       TimeAverage(scaled, Of(0.05, 1), ByDiagonal(scaled)),
                       ScaledFixedPoint(scaled), average_));
    const Quadratics q = RandomQuadratics(4, 8, false, seed_);
    const Vector best = q.Minimum();
    const auto add = [&](const std::string& name, Deal deal, double c) {
      Run run = Of(Gamma(q, c, 2), 2);
      run.deal = deal;
      const Vector mean = TimeAverage(q, run, Constant(c)), point = FixedPoint(q, c, 2);
      rows.push_back(Row(absl::StrCat(name, ", d = 8, n = 4, c = ", c), mean, point, average_));
      rows.push_back(Row(absl::StrCat("  its bias |x_inf - x*| / |x*|"),
                         Norm(Difference(mean, best)) / Norm(best),
                         Norm(Difference(point, best)) / Norm(best), average_));
    };
    for (const double c : {1.0, 2.0, 4.0}) add("Perm-2", Deal::kPermutation, c);
    add("Rand-2", Deal::kIndependent, 4);
    return rows;
  }

  // Theorem 2: the bias h stays, whatever gamma; only the noise goes with it.
  std::vector<TheoryRow> Neighbourhoods() {
    constexpr int64_t kWorkers = 5;
    std::vector<TheoryRow> rows;
    const Quadratics q = RandomQuadratics(kWorkers, kWorkers, false, seed_);
    const Scale scale = ByDiagonal(q);
    const Matrix l = q.MeanL();
    const Vector point = ScaledFixedPoint(q), best = q.Minimum();
    const double bias = SquareNorm(l, Difference(best, point));  // |h|^2_L
    double noise = 0;                                            // E|g - E g|^2_L
    const std::vector<Parts> all = AllPermutations(kWorkers, kWorkers);
    for (const Parts& parts : all)
      noise += SquareNorm(l, Difference(RoundShift(q, parts, scale), point)) /
               static_cast<double>(all.size());
    for (const double gamma : {0.5, 0.1, 0.02}) {
      double sum = 0, count = 0;
      Train(q, Of(gamma, 1), scale, point, [&](int64_t, const Vector& x) {
        sum += SquareNorm(l, Difference(x, best));
        ++count;
      });
      rows.push_back(
          Row(absl::StrCat("E|x - x*|^2_L = |h|^2 + gamma/(2 - gamma) sigma^2, gamma ", gamma),
              sum / count, bias + gamma / (2 - gamma) * noise, average_));
    }
    constexpr double kBeta = 0.25, kGamma = 0.2;  // at most (1/2 - beta) / (1/2 + beta) = 1/3
    double sum = 0;
    Vector last;
    const Vector x0(kWorkers, 3.0);
    Train(q, Of(kGamma, 1), scale, x0, [&](int64_t round, const Vector& x) {
      if (round < rounds_) sum += SquareNorm(l, Difference(x, best));
      last = x;
    });
    const auto k = static_cast<double>(rounds_);
    rows.push_back(Bound("mean E|grad f|^2 <= the bound of theorem 2, gamma 0.2, beta 1/4", sum / k,
                         2 * (q.Value(x0) - q.Value(last)) / (kGamma * k) +
                             (2 * (1 - kGamma) / kBeta + kGamma) * bias + kGamma * noise));
    return rows;
  }

  // The gradient at the whole model, sketched afterwards: no bias.
  std::vector<TheoryRow> Controls() {
    const Quadratics q = RandomQuadratics(4, 8, false, seed_);
    const Vector best = q.Minimum();
    Run run = Of(Gamma(q, 4, 2), 2);
    run.method = Method::kCompressedGradient;
    const Vector permuted = TimeAverage(q, run, Constant(4));
    run.deal = Deal::kIndependent;
    const Vector drawn = TimeAverage(q, run, Constant(4));
    // Mean square distance to x* with a tenth of gamma, over that: the control's shrinks.
    const auto spread = [&](double gamma) {
      run.gamma = gamma;
      double sum = 0;
      Train(q, run, Constant(4), best,
            [&](int64_t, const Vector& x) { sum += SquareNorm(q.MeanL(), Difference(x, best)); });
      return sum;
    };
    const double gamma = run.gamma, wide = spread(gamma);
    return {Row("compressed gradients, Perm-2: x*", permuted, best, average_),
            Row("compressed gradients, Rand-2: x*", drawn, best, average_),
            Bound("E|x - x*|^2_L with gamma/10, over that with gamma, <= 1/5",
                  spread(gamma / 10) / wide, 0.2)};
  }

  // W need not be positive: a step may raise f. L = [[1, 2.5], [2.5, 9]], n = d = 2, Perm-1.
  std::vector<TheoryRow> Indefinite() {
    Quadratics q;
    q.l.assign(2, Matrix(2, {1, 2.5, 2.5, 9}));
    q.b.assign(2, Vector(2));
    const Matrix b = ExpectedMatrix(q, 2, 1), l = q.MeanL();
    Matrix w = Sum(Product(l, b), 1, Product(b, l));
    for (double& value : w.values) value /= 2;
    const Eigen eigen = SymmetricEigen(w);
    const double trace = w.at(0, 0) + w.at(1, 1);
    const double determinant = w.at(0, 0) * w.at(1, 1) - w.at(0, 1) * w.at(1, 0);
    const Vector v = {eigen.vectors.at(0, 1), eigen.vectors.at(1, 1)};
    constexpr double kGamma = 1e-6;
    double rise = 0;
    Train(q, {1, kGamma, Deal::kPermutation, 1, Method::kSubnetwork, seed_}, Constant(2), v,
          [&](int64_t, const Vector& x) { rise = q.Value(x) - q.Value(v); });
    return {Row("lambda_min(W) < 0, L = [[1, 2.5], [2.5, 9]]", eigen.values.back(),
                trace / 2 - std::sqrt(trace * trace / 4 - determinant), kExact),
            Row("f rises by -gamma v^T W v along it, by gamma", rise / kGamma, -eigen.values.back(),
                1e-4)};
  }

  // E x x^T of the runs, exactly: M <- E (I - gamma B) M (I - gamma B)^T.
  class Moments {
   public:
    Moments(const Quadratics& q, const Scale& scale, const std::vector<Parts>& all, double gamma,
            const Vector& x0)
        : moment_(static_cast<int64_t>(x0.size())) {
      const Matrix one = Diagonal(Vector(x0.size(), 1.0));
      for (const Parts& parts : all)
        steps_.push_back(Sum(one, -gamma, RoundMatrix(q, parts, scale)));
      for (int64_t i = 0; i < moment_.n; ++i) {
        for (int64_t j = 0; j < moment_.n; ++j) moment_.at(i, j) = x0[i] * x0[j];
      }
    }
    void Step() {
      Matrix next(moment_.n);
      for (const Matrix& step : steps_)  // each is symmetric
        next = Sum(next, 1.0 / static_cast<double>(steps_.size()),
                   Product(step, Product(moment_, step)));
      moment_ = std::move(next);
    }
    double Expected(const Matrix& a) const { return Dot(a.values, moment_.values); }  // E x^T a x

   private:
    std::vector<Matrix> steps_;
    Matrix moment_;
  };

  // Shrinks what is off the diagonal until W is diagonally dominant, so positive.
  static Quadratics NearlyDiagonal(Quadratics q) {
    const Matrix mean = q.MeanL();
    double most = 0;
    for (int64_t i = 0; i < mean.n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < mean.n; ++j) {
        if (i != j) sum += std::abs(mean.at(i, j)) * (mean.at(i, i) + mean.at(j, j)) / 2;
      }
      most = std::max(most, sum / (mean.at(i, i) * mean.at(i, i)));
    }
    for (Matrix& l : q.l) {
      for (int64_t i = 0; i < l.n; ++i) {
        for (int64_t j = 0; j < l.n; ++j) {
          if (i != j) l.at(i, j) *= std::min(1.0, 0.5 / most);
        }
      }
    }
    return q;
  }
  // A step that is small beside the largest one that converges.
  static double Gamma(const Quadratics& q, double c, int64_t held) {
    return 0.03 / SymmetricEigen(ExpectedMatrix(q, c, held)).values.front();
  }
  Run Of(double gamma, int64_t held) const {
    return {rounds_, gamma, Deal::kPermutation, held, Method::kSubnetwork, seed_};
  }

  const int64_t rounds_;
  const uint64_t seed_;
  const double average_;
  std::vector<TheoryRow> rows_;
};

// How near a row is to its limit: what the worst seed is told by.
double Strain(const TheoryRow& row) {
  return row.bound ? row.measured / row.expected : row.deviation;
}

}  // namespace

std::vector<TheoryRow> TheoryTable(const TheoryOptions& options) {
  std::vector<TheoryRow> worst;
  for (int64_t seed = 1; seed <= options.seeds; ++seed) {
    std::vector<TheoryRow> rows = Theory(options, static_cast<uint64_t>(seed)).Rows();
    if (worst.empty()) worst = rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!(Strain(rows[i]) <= Strain(worst[i]))) worst[i] = std::move(rows[i]);
    }
  }
  return worst;
}

}  // namespace isthmus::study::ist
