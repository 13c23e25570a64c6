#include "worker/study/dense.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::study {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

const Matrix kA(3, {4, 1, 0.5, 1, 3, -1, 0.5, -1, 2});

TEST(Dense, SolvesWhatItMultiplies) {
  const Vector x = {1, -2, 3};
  EXPECT_LT(Norm(Difference(Solve(kA, Apply(kA, x)), x)), 1e-12);
  EXPECT_EQ(SquareNorm(kA, {1, 0, 0}), 4);
  EXPECT_EQ(SquareNorm(Diagonal({1, 2, 3}), {1, 1, 1}), 6);
  EXPECT_EQ(DiagonalOf(kA), (Vector{4, 3, 2}));
}

TEST(Dense, EigenvectorsAreThoseOfTheirValues) {
  const Eigen eigen = SymmetricEigen(kA);
  EXPECT_GT(eigen.values[0], eigen.values[2]);
  EXPECT_NEAR(eigen.values[0] + eigen.values[1] + eigen.values[2], 9, 1e-12);
  for (int64_t i = 0; i < 3; ++i) {
    const Vector v = {eigen.vectors.at(0, i), eigen.vectors.at(1, i), eigen.vectors.at(2, i)};
    Vector scaled = v;
    for (double& value : scaled) value *= eigen.values[i];
    EXPECT_LT(Norm(Difference(Apply(kA, v), scaled)), 1e-11);
    EXPECT_NEAR(Norm(v), 1, 1e-12);
  }
}

TEST(Dense, RelativeEigenvaluesOfAProductWithItself) {
  const Matrix twice = Sum(kA, 1, kA);
  EXPECT_THAT(RelativeEigenvalues(twice, kA),
              ElementsAre(DoubleNear(2, 1e-12), DoubleNear(2, 1e-12), DoubleNear(2, 1e-12)));
  EXPECT_THAT(RelativeEigenvalues(Diagonal({1, 8}), Diagonal({4, 2})),
              ElementsAre(DoubleNear(4, 1e-12), DoubleNear(0.25, 1e-12)));
  EXPECT_LT(RelativeEigenvalues(Diagonal({1, -8}), Diagonal({4, 2})).back(), 0);  // indefinite
}

}  // namespace
}  // namespace isthmus::study
