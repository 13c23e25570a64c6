// How much of a matrix a few directions hold: the share of its energy (sum of squares) in its
// largest singular values. By the eigenvalues of the Gram matrix of the shorter side, in double,
// with Jacobi rotations. Thread: pure functions.
#ifndef ISTHMUS_WORKER_STUDY_ENERGY_H_
#define ISTHMUS_WORKER_STUDY_ENERGY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace isthmus::study {

// Squares of the singular values of a row-major rows x columns matrix, largest first.
std::vector<double> SquaredSingularValues(absl::Span<const float> matrix, int64_t rows,
                                          int64_t columns);

// The share of the largest `part` (5 % by default, rounded up) of the singular values, 0 to 1; of a
// zero matrix 0.
double TopEnergyShare(absl::Span<const float> matrix, int64_t rows, int64_t columns,
                      double part = 0.05);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_ENERGY_H_
