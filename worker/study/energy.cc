#include "worker/study/energy.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "worker/study/dense.h"

namespace isthmus::study {

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
  std::vector<double> values = SymmetricEigen(Matrix(n, std::move(gram))).values;
  for (double& value : values) value = std::max(0.0, value);
  return values;
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
