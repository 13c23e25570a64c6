// Independent subnetwork training of quadratics, as the theory of Shulgin and Richtarik (ICML 2024,
// arXiv 2306.16484) has it: f_i(x) = x^T L_i x / 2 - b_i^T x, f their mean. In each round worker i
// gets the part C_i x of the model, C_i a random diagonal matrix with few entries, and the step is
// x - gamma g, g = mean of C_i grad f_i(C_i x). The control takes the gradient at the whole x and
// sketches that. Beside them their closed forms. Thread: values, pure functions.
#ifndef ISTHMUS_WORKER_STUDY_IST_QUADRATICS_H_
#define ISTHMUS_WORKER_STUDY_IST_QUADRATICS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/study/dense.h"

namespace isthmus::study::ist {

struct Quadratics {
  std::vector<Matrix> l;  // of each worker, symmetric positive definite
  std::vector<Vector> b;
  int64_t workers() const { return static_cast<int64_t>(l.size()); }
  int64_t dimension() const { return l.front().n; }
  Matrix MeanL() const;
  Vector MeanB() const;
  double Value(const Vector& x) const;
  Vector Minimum() const;  // x* = MeanL^-1 MeanB
};

// L_i = A A^T / d + I / 2, A and b_i - 1 normal; all workers alike where `homogeneous`.
Quadratics RandomQuadratics(int64_t workers, int64_t dimension, bool homogeneous, uint64_t seed);
// b_i = 0: all f_i have one minimum.
Quadratics WithoutB(Quadratics q);
// In x -> D^1/2 x with D = Diag(L), for equal L_i: the diagonal of L becomes 1.
Quadratics Preconditioned(const Quadratics& q);

// One round: the coordinates that each worker holds.
using Parts = std::vector<std::vector<int64_t>>;
// Perm-q: a random permutation cut in equal parts, so that each coordinate is held once.
// Rand-q: `q` coordinates for each worker, drawn by itself.
enum class Deal { kPermutation, kIndependent };
Parts DealParts(Deal deal, int64_t workers, int64_t dimension, int64_t q, uint64_t seed,
                int64_t round);
// All permutations of `dimension` coordinates (8 at most), each cut in equal parts.
std::vector<Parts> AllPermutations(int64_t workers, int64_t dimension);
// All sets of `q` coordinates, each held by all workers: enough for expectations that are sums over
// the workers.
std::vector<Parts> AllSubsets(int64_t workers, int64_t dimension, int64_t q);

// The entry (j, j) of C_i, where worker i holds coordinate j.
using Scale = std::function<double(int64_t worker, int64_t coordinate)>;
Scale Constant(double c);
// sqrt(n) (L_i)_jj^-1/2, with which E mean(C_i L_i C_i) = I.
Scale ByDiagonal(const Quadratics& q);

enum class Method { kSubnetwork, kCompressedGradient };
Vector Gradient(const Quadratics& q, const Parts& parts, const Scale& scale, Method method,
                const Vector& x);

// Bk = mean of C_i L_i C_i, and the mean of C_i b_i.
Matrix RoundMatrix(const Quadratics& q, const Parts& parts, const Scale& scale);
Vector RoundShift(const Quadratics& q, const Parts& parts, const Scale& scale);

// E Bk for C = c P_S with q of d coordinates: c^2 (q/d) [(1 - rho) Diag(L) + rho L], L the mean,
// rho = (q - 1) / (d - 1).
Matrix ExpectedMatrix(const Quadratics& q, double c, int64_t held);
// Where the expected step is zero: [(1 - rho) Diag(L) + rho L]^-1 b / c.
Vector FixedPoint(const Quadratics& q, double c, int64_t held);
// The same for ByDiagonal and parts of one coordinate: mean of Diag(L_i)^-1/2 b_i, by sqrt(n).
Vector ScaledFixedPoint(const Quadratics& q);

struct Run {
  int64_t rounds = 0;
  double gamma = 0;
  Deal deal = Deal::kPermutation;
  int64_t held = 1;  // q
  Method method = Method::kSubnetwork;
  uint64_t seed = 1;
};
// Calls `see` with the model before each step and after the last.
void Train(const Quadratics& q, const Run& run, const Scale& scale, Vector x,
           const std::function<void(int64_t round, const Vector& x)>& see);
// The mean of the models after the first tenth of the rounds.
Vector TimeAverage(const Quadratics& q, const Run& run, const Scale& scale);

}  // namespace isthmus::study::ist

#endif  // ISTHMUS_WORKER_STUDY_IST_QUADRATICS_H_
