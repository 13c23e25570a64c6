// Small square matrices in double. Thread: values, pure functions. Cost: n^3; for n of a few
// hundred at most.
#ifndef ISTHMUS_WORKER_STUDY_DENSE_H_
#define ISTHMUS_WORKER_STUDY_DENSE_H_

#include <cstdint>
#include <vector>

namespace isthmus::study {

using Vector = std::vector<double>;

struct Matrix {
  explicit Matrix(int64_t size) : n(size), values(size * size) {}
  Matrix(int64_t size, std::vector<double> row_major) : n(size), values(std::move(row_major)) {}
  double& at(int64_t i, int64_t j) { return values[i * n + j]; }
  double at(int64_t i, int64_t j) const { return values[i * n + j]; }

  int64_t n;
  std::vector<double> values;  // row-major
};

Matrix Diagonal(const Vector& values);
Vector DiagonalOf(const Matrix& a);
Matrix Product(const Matrix& a, const Matrix& b);
Matrix Sum(const Matrix& a, double factor, const Matrix& b);  // a + factor b
Vector Apply(const Matrix& a, const Vector& x);
double Dot(const Vector& a, const Vector& b);
double Norm(const Vector& a);
Vector Difference(const Vector& a, const Vector& b);
// x^T a x
double SquareNorm(const Matrix& a, const Vector& x);

// For symmetric positive definite `a`.
Vector Solve(const Matrix& a, const Vector& b);

// Of a symmetric matrix, largest first; by cyclic Jacobi rotations. Column i of `vectors` belongs
// to values[i].
struct Eigen {
  Vector values;
  Matrix vectors;
};
Eigen SymmetricEigen(Matrix a);
// Of b^-1/2 a b^-1/2, both symmetric, b positive definite; largest first.
Vector RelativeEigenvalues(const Matrix& a, const Matrix& b);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_DENSE_H_
