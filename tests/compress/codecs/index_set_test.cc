#include "compress/codecs/index_set.h"

#include <cmath>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress {
namespace {

std::vector<uint32_t> RandomSet(int64_t n, double share, uint64_t seed) {
  std::vector<uint32_t> set;
  for (int64_t i = 0; i < n; ++i) {
    if (RandomUniform(seed, 1, static_cast<uint64_t>(i)) < share)
      set.push_back(static_cast<uint32_t>(i));
  }
  return set;
}

TEST(IndexSet, RoundTripsSetsOfEverySizeInTheBytesAnnounced) {
  for (int64_t n : {1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
    for (double share : {0.0, 0.001, 0.01, 0.05, 0.2, 0.26, 0.5, 0.9, 1.0}) {
      const std::vector<uint32_t> set = RandomSet(n, share, static_cast<uint64_t>(n));
      std::string bytes = "x";
      WriteIndexSet(set, n, &bytes);
      ASSERT_EQ(static_cast<int64_t>(bytes.size()),
                1 + IndexSetBytes(n, static_cast<int64_t>(set.size())));
      std::vector<uint32_t> back;
      ASSERT_TRUE(ReadIndexSet(absl::string_view(bytes).substr(1), n,
                               static_cast<int64_t>(set.size()), &back)
                      .ok())
          << n << " " << share;
      ASSERT_EQ(back, set);
    }
  }
}

TEST(IndexSet, ExtremeSets) {
  for (const std::vector<uint32_t>& set : {std::vector<uint32_t>{0},
                                           {99999},
                                           {0, 1, 2, 3},
                                           {99996, 99997, 99998, 99999},
                                           {0, 99999}}) {
    std::string bytes;
    WriteIndexSet(set, 100000, &bytes);
    std::vector<uint32_t> back;
    ASSERT_TRUE(ReadIndexSet(bytes, 100000, static_cast<int64_t>(set.size()), &back).ok());
    EXPECT_EQ(back, set);
  }
}

TEST(IndexSet, CloseToTheEntropy) {
  const int64_t n = 1 << 20;
  for (double share : {0.001, 0.01, 0.05}) {
    const int64_t kept = static_cast<int64_t>(share * n);
    const double entropy =
        n * -(share * std::log2(share) + (1 - share) * std::log2(1 - share)) / kept;
    EXPECT_LT(8.0 * static_cast<double>(IndexSetBytes(n, kept)) / static_cast<double>(kept),
              entropy + 0.7)
        << share;
  }
}

// Of all byte strings of the right size, those that are read are exactly those that are written.
TEST(IndexSet, ReadsOnlyWhatItWrites) {
  for (auto [n, kept] : {std::pair<int64_t, int64_t>{10, 2}, {16, 1}, {12, 3}, {5, 5}, {9, 4}}) {
    const size_t size = static_cast<size_t>(IndexSetBytes(n, kept));
    ASSERT_LE(size, 2u);
    int64_t accepted = 0;
    for (uint32_t value = 0; value < (1u << (8 * size)); ++value) {
      std::string bytes(size, '\0'), again;
      for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
      std::vector<uint32_t> set;
      if (!ReadIndexSet(bytes, n, kept, &set).ok()) continue;
      ++accepted;
      WriteIndexSet(set, n, &again);
      ASSERT_EQ(again, bytes);
    }
    int64_t choose = 1;
    for (int64_t i = 0; i < kept; ++i) choose = choose * (n - i) / (i + 1);
    EXPECT_EQ(accepted, choose) << n << " " << kept;
  }
}

}  // namespace
}  // namespace isthmus::compress
