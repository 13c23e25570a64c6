#include "worker/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace isthmus::worker {
namespace {

std::vector<uint64_t> All(uint64_t seed, uint64_t stream, uint64_t count) {
  std::vector<uint64_t> out;
  for (uint64_t place = 0; place < count; ++place)
    out.push_back(PermutedAt(seed, stream, count, place));
  return out;
}

TEST(Permutation, HoldsEveryNumberOnce) {
  for (uint64_t count = 1; count < 300; ++count) {
    for (uint64_t stream = 0; stream < 3; ++stream) {
      const std::vector<uint64_t> all = All(7, stream, count);
      const std::set<uint64_t> distinct(all.begin(), all.end());
      ASSERT_EQ(distinct.size(), count) << "stream " << stream;
      ASSERT_EQ(*distinct.rbegin(), count - 1);
    }
  }
  for (uint64_t count : {65535, 65536, 65537, 100003}) {
    const std::vector<uint64_t> all = All(7, 0, count);
    EXPECT_EQ(std::set<uint64_t>(all.begin(), all.end()).size(), count);
  }
}

TEST(Permutation, DiffersBySeedAndStream) {
  EXPECT_EQ(All(7, 3, 1000), All(7, 3, 1000));
  EXPECT_NE(All(7, 3, 1000), All(8, 3, 1000));
  EXPECT_NE(All(7, 3, 1000), All(7, 4, 1000));
}

// Each number of 0..9 comes to each place equally often: 10,000 streams, so 1000 are expected, with
// a deviation of 30. Five of them are allowed to the 100 counts.
TEST(Permutation, EveryPlaceIsAsLikely) {
  int counts[10][10] = {};
  for (uint64_t stream = 0; stream < 10'000; ++stream) {
    for (uint64_t place = 0; place < 10; ++place) ++counts[place][PermutedAt(1, stream, 10, place)];
  }
  for (const auto& place : counts) {
    for (int count : place) EXPECT_NEAR(count, 1000, 150);
  }
}

// Of neighbours in a large range the mean distance is a third of it, as that of two random numbers;
// its deviation with 4000 pairs is 0.0037 of the range.
TEST(Permutation, NeighboursAreNotNear) {
  constexpr uint64_t kCount = 335'000'000, kPairs = 4000;
  double sum = 0;
  for (uint64_t place = 0; place < kPairs; ++place) {
    const auto a = static_cast<double>(PermutedAt(1, 0, kCount, place));
    const auto b = static_cast<double>(PermutedAt(1, 0, kCount, place + 1));
    sum += std::abs(a - b) / static_cast<double>(kCount);
  }
  EXPECT_NEAR(sum / kPairs, 1.0 / 3, 0.02);
}

// Runs go on in this order after an update of the program.
TEST(Permutation, IsWhatItAlwaysWas) {
  EXPECT_EQ(All(7, 1, 10), (std::vector<uint64_t>{2, 4, 8, 5, 3, 7, 6, 1, 0, 9}));
  EXPECT_EQ(PermutedAt(7, 0, (uint64_t{1} << 32) - 1, 12345), 3462159579u);
}

}  // namespace
}  // namespace isthmus::worker
