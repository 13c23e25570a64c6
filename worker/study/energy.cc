#include "worker/study/energy.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace isthmus::study {
namespace {

constexpr int kMaxSweeps = 60;
constexpr double kTolerance = 1e-13;  // of the off-diagonal part, beside the whole

// Eigenvalues of a symmetric n x n matrix by cyclic Jacobi rotations.
class Jacobi {
 public:
  Jacobi(std::vector<double> a, int64_t n) : a_(std::move(a)), n_(n) {}

  std::vector<double> Eigenvalues() {
    for (int sweep = 0; sweep < kMaxSweeps && OffDiagonal() > kTolerance; ++sweep) {
      for (int64_t p = 0; p + 1 < n_; ++p) {
        for (int64_t q = p + 1; q < n_; ++q) Rotate(p, q);
      }
    }
    std::vector<double> values(n_);
    for (int64_t i = 0; i < n_; ++i) values[i] = std::max(0.0, at(i, i));
    std::sort(values.begin(), values.end(), std::greater<>());
    return values;
  }

 private:
  double& at(int64_t i, int64_t j) { return a_[i * n_ + j]; }

  double OffDiagonal() {
    double off = 0, all = 0;
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        const double square = at(i, j) * at(i, j);
        all += square;
        if (i != j) off += square;
      }
    }
    return all > 0 ? std::sqrt(off / all) : 0;
  }

  void Rotate(int64_t p, int64_t q) {
    const double apq = at(p, q);
    if (apq == 0) return;
    const double theta = (at(q, q) - at(p, p)) / (2 * apq);
    const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
    const double c = 1 / std::sqrt(t * t + 1), s = t * c;
    for (int64_t k = 0; k < n_; ++k) {
      const double akp = at(k, p), akq = at(k, q);
      at(k, p) = c * akp - s * akq;
      at(k, q) = s * akp + c * akq;
    }
    for (int64_t k = 0; k < n_; ++k) {
      const double apk = at(p, k), aqk = at(q, k);
      at(p, k) = c * apk - s * aqk;
      at(q, k) = s * apk + c * aqk;
    }
  }

  std::vector<double> a_;
  const int64_t n_;
};

}  // namespace

std::vector<double> SquaredSingularValues(absl::Span<const float> matrix, int64_t rows,
                                          int64_t columns) {
  const int64_t n = std::min(rows, columns);
  std::vector<double> gram(n * n);
  const auto value = [&](int64_t i, int64_t k) -> double {  // element k of vector i of the shorter
    return columns <= rows ? matrix[k * columns + i] : matrix[i * columns + k];
  };
  const int64_t length = std::max(rows, columns);
  for (int64_t k = 0; k < length; ++k) {
    for (int64_t i = 0; i < n; ++i) {
      const double x = value(i, k);
      for (int64_t j = i; j < n; ++j) gram[i * n + j] += x * value(j, k);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) gram[i * n + j] = gram[j * n + i];
  }
  return Jacobi(std::move(gram), n).Eigenvalues();
}

double TopEnergyShare(absl::Span<const float> matrix, int64_t rows, int64_t columns, double part) {
  const std::vector<double> squares = SquaredSingularValues(matrix, rows, columns);
  const double all = std::accumulate(squares.begin(), squares.end(), 0.0);
  if (all <= 0) return 0;
  const auto top = static_cast<size_t>(std::ceil(part * static_cast<double>(squares.size())));
  return std::accumulate(squares.begin(), squares.begin() + std::min(top, squares.size()), 0.0) /
         all;
}

}  // namespace isthmus::study
