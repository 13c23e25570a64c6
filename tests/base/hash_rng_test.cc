#include "base/hash.h"
#include "base/rng.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(Hash, StreamingEqualsOneShot) {
  const std::string text = "an isthmus joins two larger lands";
  Hasher hasher;
  hasher.Update(text.data(), 10);
  hasher.Update(text.data() + 10, text.size() - 10);
  EXPECT_EQ(hasher.Digest(), Hash64(text));
  EXPECT_NE(Hash64(text), Hash64(text.substr(1)));
}

TEST(Rng, IsAFunctionOfItsArguments) {
  EXPECT_EQ(RandomBits(1, 2, 3), RandomBits(1, 2, 3));
  EXPECT_NE(RandomBits(1, 2, 3), RandomBits(1, 3, 2));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double u = RandomUniform(7, 0, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    ASSERT_LT(RandomBelow(7, 1, i, 10), 10u);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // 5 standard errors
}

}  // namespace
}  // namespace isthmus
