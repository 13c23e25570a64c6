// The pieces of the theory of independent subnetwork training, at small dimension.
#include "worker/study/ist/quadratics.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::study::ist {
namespace {

using testing::Each;
using testing::UnorderedElementsAre;

TEST(IstQuadratics, AProblemIsItsSeed) {
  const Quadratics a = RandomQuadratics(3, 4, false, 7);
  EXPECT_EQ(a.l[1].values, RandomQuadratics(3, 4, false, 7).l[1].values);
  EXPECT_NE(a.l[1].values, a.l[2].values);
  EXPECT_NE(a.l[1].values, RandomQuadratics(3, 4, false, 8).l[1].values);
  for (const Matrix& l : a.l) EXPECT_GE(SymmetricEigen(l).values.back(), 0.5 - 1e-12);
  const Quadratics same = RandomQuadratics(3, 4, true, 7);
  EXPECT_EQ(same.l[0].values, same.l[2].values);
  EXPECT_EQ(same.b[0], same.b[2]);
}

TEST(IstQuadratics, TheMinimumHasNoGradientAndTheLeastValue) {
  const Quadratics q = RandomQuadratics(3, 4, false, 2);
  const Vector best = q.Minimum();
  EXPECT_LT(Norm(Difference(Apply(q.MeanL(), best), q.MeanB())), 1e-12);
  Vector away = best;
  away[2] += 0.1;
  EXPECT_GT(q.Value(away), q.Value(best));
  EXPECT_EQ(Norm(WithoutB(q).Minimum()), 0);
}

TEST(IstQuadratics, PreconditioningMakesTheDiagonalOne) {
  const Quadratics q = Preconditioned(RandomQuadratics(3, 4, true, 2));
  for (const double value : DiagonalOf(q.MeanL())) EXPECT_NEAR(value, 1, 1e-12);
}

TEST(IstQuadratics, APermutationDealsEachCoordinateOnce) {
  for (int64_t round = 0; round < 50; ++round) {
    std::vector<int64_t> all;
    for (const auto& part : DealParts(Deal::kPermutation, 3, 6, 2, 1, round)) {
      EXPECT_EQ(part.size(), 2U);
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_THAT(all, UnorderedElementsAre(0, 1, 2, 3, 4, 5)) << round;
  }
  EXPECT_NE(DealParts(Deal::kPermutation, 3, 6, 2, 1, 0),
            DealParts(Deal::kPermutation, 3, 6, 2, 1, 1));
}

TEST(IstQuadratics, EveryCoordinateIsDrawnAsOften) {
  Vector count(5);
  for (int64_t round = 0; round < 5000; ++round) {
    for (const auto& part : DealParts(Deal::kIndependent, 1, 5, 2, 3, round)) {
      EXPECT_NE(part[0], part[1]);
      for (const int64_t j : part) ++count[j];
    }
  }
  for (const double c : count) EXPECT_NEAR(c, 2000, 150);  // four standard deviations
}

TEST(IstQuadratics, EnumerationIsComplete) {
  EXPECT_EQ(AllPermutations(2, 4).size(), 24U);
  EXPECT_EQ(AllSubsets(3, 5, 2).size(), 10U);
  EXPECT_THAT(AllSubsets(3, 5, 2).front(), Each(std::vector<int64_t>{0, 1}));
}

// C x: whole of the model where one worker holds everything at scale 1: plain gradient descent.
TEST(IstQuadratics, OneWorkerWithEverythingIsGradientDescent) {
  const Quadratics q = RandomQuadratics(1, 3, true, 4);
  const Vector x = {1, -2, 0.5};
  for (const Method method : {Method::kSubnetwork, Method::kCompressedGradient}) {
    const Vector g = Gradient(q, {{2, 0, 1}}, Constant(1), method, x);
    EXPECT_LT(Norm(Difference(g, Difference(Apply(q.MeanL(), x), q.MeanB()))), 1e-12);
  }
  EXPECT_LT(Norm(Difference(FixedPoint(q, 1, 3), q.Minimum())), 1e-12);
}

TEST(IstQuadratics, AGradientIsTheMatrixOfTheRoundAndItsShift) {
  const Quadratics q = RandomQuadratics(2, 6, false, 4);
  const Parts parts = DealParts(Deal::kIndependent, 2, 6, 3, 1, 0);
  const Vector x = {1, 2, 3, -1, -2, 0.5};
  for (const Scale& scale : {Constant(2), ByDiagonal(q)}) {
    const Vector whole =
        Difference(Apply(RoundMatrix(q, parts, scale), x), RoundShift(q, parts, scale));
    EXPECT_LT(Norm(Difference(Gradient(q, parts, scale, Method::kSubnetwork, x), whole)), 1e-12);
  }
  EXPECT_GT(Norm(Difference(Gradient(q, parts, Constant(2), Method::kSubnetwork, x),
                            Gradient(q, parts, Constant(2), Method::kCompressedGradient, x))),
            0.1);
}

// With a diagonal L a plain mask has no bias: a coordinate does not see the others.
TEST(IstQuadratics, ADiagonalProblemHasNoBias) {
  Quadratics q = RandomQuadratics(2, 4, false, 4);
  for (Matrix& l : q.l) l = Diagonal(DiagonalOf(l));
  EXPECT_LT(Norm(Difference(FixedPoint(q, 1, 2), q.Minimum())), 1e-12);
  EXPECT_GT(Norm(Difference(FixedPoint(q, 2, 2), q.Minimum())), 0.1);  // shrunk by the scale
}

TEST(IstQuadratics, TheRunSeesEveryModel) {
  const Quadratics q = RandomQuadratics(2, 4, false, 4);
  std::vector<int64_t> rounds;
  Train(q, {3, 0.1, Deal::kPermutation, 2}, Constant(1), Vector(4),
        [&](int64_t round, const Vector&) { rounds.push_back(round); });
  EXPECT_THAT(rounds, testing::ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace isthmus::study::ist
