#include "worker/study/energy.h"

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"

namespace isthmus::study {
namespace {

TEST(Energy, SingularValuesOfAKnownMatrix) {
  // [[3, 0], [4, 5]]: singular values sqrt(45) and sqrt(5).
  const std::vector<float> a = {3, 0, 4, 5};
  const std::vector<double> s = SquaredSingularValues(a, 2, 2);
  ASSERT_EQ(s.size(), 2u);
  EXPECT_NEAR(s[0], 45, 1e-10);
  EXPECT_NEAR(s[1], 5, 1e-10);
}

TEST(Energy, ATransposedMatrixHasTheSame) {
  std::vector<float> a(7 * 40), t(a.size());
  for (int i = 0; i < 7; ++i) {
    for (int j = 0; j < 40; ++j)
      a[i * 40 + j] = t[j * 7 + i] = static_cast<float>(RandomBelow(1, i, j, 1000)) / 500 - 1;
  }
  const std::vector<double> x = SquaredSingularValues(a, 7, 40),
                            y = SquaredSingularValues(t, 40, 7);
  double sum = 0, squares = 0;
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(x[i], y[i], 1e-9 * x[0]);
    sum += x[i];
  }
  for (float v : a) squares += static_cast<double>(v) * v;
  EXPECT_NEAR(sum, squares, 1e-9 * squares);
}

TEST(Energy, SharesOfMatricesOfKnownRank) {
  std::vector<float> one(60 * 40), identity(40 * 40), zero(40);
  for (int i = 0; i < 60; ++i) {
    for (int j = 0; j < 40; ++j) one[i * 40 + j] = static_cast<float>((i + 1) * (j - 7));
  }
  for (int i = 0; i < 40; ++i) identity[i * 41] = 2;
  EXPECT_NEAR(TopEnergyShare(one, 60, 40), 1, 1e-9);
  EXPECT_NEAR(TopEnergyShare(identity, 40, 40), 0.05, 1e-9);  // 2 of 40
  EXPECT_NEAR(TopEnergyShare(identity, 40, 40, 0.5), 0.5, 1e-9);
  EXPECT_EQ(TopEnergyShare(zero, 4, 10), 0);
}

}  // namespace
}  // namespace isthmus::study
