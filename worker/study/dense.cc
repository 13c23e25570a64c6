#include "worker/study/dense.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/log.h"

namespace isthmus::study {
namespace {

constexpr int kMaxSweeps = 60;
constexpr double kTolerance = 1e-13;  // of the off-diagonal part, beside the whole

double OffDiagonal(const Matrix& a) {
  double off = 0, all = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    for (int64_t j = 0; j < a.n; ++j) {
      const double square = a.at(i, j) * a.at(i, j);
      all += square;
      if (i != j) off += square;
    }
  }
  return all > 0 ? std::sqrt(off / all) : 0;
}

// Makes (p, q) zero.
void Rotate(Matrix* a, Matrix* vectors, int64_t p, int64_t q) {
  const double apq = a->at(p, q);
  if (apq == 0) return;
  const double theta = (a->at(q, q) - a->at(p, p)) / (2 * apq);
  const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  const auto columns = [&](Matrix* m) {
    for (int64_t k = 0; k < m->n; ++k) {
      const double kp = m->at(k, p), kq = m->at(k, q);
      m->at(k, p) = c * kp - s * kq;
      m->at(k, q) = s * kp + c * kq;
    }
  };
  columns(a);
  columns(vectors);
  for (int64_t k = 0; k < a->n; ++k) {
    const double pk = a->at(p, k), qk = a->at(q, k);
    a->at(p, k) = c * pk - s * qk;
    a->at(q, k) = s * pk + c * qk;
  }
}

// Lower G with a = G G^T.
Matrix Cholesky(const Matrix& a) {
  Matrix g(a.n);
  for (int64_t i = 0; i < a.n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = a.at(i, j);
      for (int64_t k = 0; k < j; ++k) sum -= g.at(i, k) * g.at(j, k);
      ISTHMUS_CHECK(i != j || sum > 0);
      g.at(i, j) = i == j ? std::sqrt(sum) : sum / g.at(j, j);
    }
  }
  return g;
}

// G^-1 x for a lower triangular G.
Vector Forward(const Matrix& g, Vector x) {
  for (int64_t i = 0; i < g.n; ++i) {
    for (int64_t k = 0; k < i; ++k) x[i] -= g.at(i, k) * x[k];
    x[i] /= g.at(i, i);
  }
  return x;
}

}  // namespace

Matrix Diagonal(const Vector& values) {
  Matrix out(static_cast<int64_t>(values.size()));
  for (int64_t i = 0; i < out.n; ++i) out.at(i, i) = values[i];
  return out;
}

Vector DiagonalOf(const Matrix& a) {
  Vector out;
  for (int64_t i = 0; i < a.n; ++i) out.push_back(a.at(i, i));
  return out;
}

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix out(a.n);
  for (int64_t i = 0; i < a.n; ++i) {
    for (int64_t k = 0; k < a.n; ++k) {
      for (int64_t j = 0; j < a.n; ++j) out.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return out;
}

Matrix Sum(const Matrix& a, double factor, const Matrix& b) {
  Matrix out = a;
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] += factor * b.values[i];
  return out;
}

Vector Apply(const Matrix& a, const Vector& x) {
  Vector out(a.n);
  for (int64_t i = 0; i < a.n; ++i) {
    for (int64_t j = 0; j < a.n; ++j) out[i] += a.at(i, j) * x[j];
  }
  return out;
}

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Norm(const Vector& a) { return std::sqrt(Dot(a, a)); }

Vector Difference(const Vector& a, const Vector& b) {
  Vector out = a;
  for (size_t i = 0; i < out.size(); ++i) out[i] -= b[i];
  return out;
}

double SquareNorm(const Matrix& a, const Vector& x) { return Dot(x, Apply(a, x)); }

Vector Solve(const Matrix& a, const Vector& b) {
  const Matrix g = Cholesky(a);
  Vector x = Forward(g, b);
  for (int64_t i = g.n - 1; i >= 0; --i) {
    for (int64_t k = i + 1; k < g.n; ++k) x[i] -= g.at(k, i) * x[k];
    x[i] /= g.at(i, i);
  }
  return x;
}

Eigen SymmetricEigen(Matrix a) {
  Matrix vectors = Diagonal(Vector(a.n, 1.0));
  for (int sweep = 0; sweep < kMaxSweeps && OffDiagonal(a) > kTolerance; ++sweep) {
    for (int64_t p = 0; p + 1 < a.n; ++p) {
      for (int64_t q = p + 1; q < a.n; ++q) Rotate(&a, &vectors, p, q);
    }
  }
  std::vector<int64_t> order(a.n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t i, int64_t j) { return a.at(i, i) > a.at(j, j); });
  Eigen out{{}, Matrix(a.n)};
  for (int64_t i = 0; i < a.n; ++i) {
    out.values.push_back(a.at(order[i], order[i]));
    for (int64_t k = 0; k < a.n; ++k) out.vectors.at(k, i) = vectors.at(k, order[i]);
  }
  return out;
}

Vector RelativeEigenvalues(const Matrix& a, const Matrix& b) {
  const Matrix g = Cholesky(b);
  Matrix half(a.n), whole(a.n);  // rows of G^-1 a, then of G^-1 (G^-1 a)^T
  for (int64_t j = 0; j < a.n; ++j) {
    Vector column(a.n);
    for (int64_t i = 0; i < a.n; ++i) column[i] = a.at(i, j);
    column = Forward(g, std::move(column));
    for (int64_t i = 0; i < a.n; ++i) half.at(i, j) = column[i];
  }
  for (int64_t i = 0; i < a.n; ++i) {
    Vector row(a.n);
    for (int64_t j = 0; j < a.n; ++j) row[j] = half.at(i, j);
    row = Forward(g, std::move(row));
    for (int64_t j = 0; j < a.n; ++j) whole.at(i, j) = row[j];
  }
  return SymmetricEigen(std::move(whole)).values;
}

}  // namespace isthmus::study
