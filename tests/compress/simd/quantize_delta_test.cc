#include "compress/simd/quantize_delta.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "compress/simd/convert.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"
#include "tests/compress/targets.h"

namespace isthmus::compress {
namespace {

// Every length around the widths of vectors, alone and unrolled, and an odd long one.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t n = 0; n <= 80; ++n) lengths.push_back(n);
  lengths.insert(lengths.end(), {127, 128, 129, 191, 257, 1601});
  return lengths;
}

// quantize.h's definitions, an operation at a time (volatile: never fused).
uint8_t Code(const Levels& l, float x, float inverse) {
  const volatile float product = x * inverse;
  const float y = std::min(std::max(product + l.bias, l.low), l.high);
  return static_cast<uint8_t>(static_cast<int>(std::nearbyint(y)) + l.offset);
}
float Value(const Levels& l, uint8_t code, float step) {
  const volatile float level = static_cast<float>(code) * l.code_factor - l.code_shift;
  return level * step;
}

struct Row {
  Row(size_t n, const Levels& levels, uint64_t seed) : a(Gaussian(n, seed)), m(n), codes(n) {
    FloatsToBf16(Gaussian(n, seed, 1).data(), n, m.data());
    for (size_t i = 0; i < n; ++i) {
      if (i % 7 == 3) a[i] = 0;
      if (i % 11 == 5) m[i] = 0x8000;
      if (i % 13 == 6) a[i] *= 1e-38f;
      const uint16_t scale = i % 5 == 4 ? 0 : FloatToBf16(0.5f + static_cast<float>(i % 9));
      inverse.push_back(levels.Inverse(scale));
      step.push_back(levels.Step(scale));
      codes[i] = static_cast<uint8_t>(RandomBelow(seed, 2, i, uint64_t{1} << levels.bits));
    }
  }
  std::vector<float> a, inverse, step;
  std::vector<uint16_t> m;
  std::vector<uint8_t> codes;
};

// The scale of element i: its own, or that of its group.
float At(const std::vector<float>& scales, size_t i, size_t group) { return scales[i / group]; }

TEST(QuantizeDelta, BothEndsFollowTheDefinition) {
  ForEachTarget([] {
    for (const Levels& levels : {Levels(2, false), Levels(4, false), Levels(8, false),
                                 Levels(1, true), Levels(5, true), Levels(8, true)}) {
      for (size_t n : Lengths()) {
        for (size_t group : {1, 16, 37, 64, 2000}) {
          const Row row(n, levels, n + group);
          std::vector<uint8_t> codes(n + 1, 0x5a), codes_defined(n + 1, 0x5a);
          std::vector<uint16_t> m = row.m, m_defined = row.m;
          std::vector<float> sum(n), sum_defined(n);
          for (size_t i = 0; i < n; ++i) {
            const float before = Bf16ToFloat(row.m[i]);
            codes_defined[i] = Code(levels, row.a[i] - before, At(row.inverse, i, group));
            sum_defined[i] = before + Value(levels, codes_defined[i], At(row.step, i, group));
            m_defined[i] = FloatToBf16(sum_defined[i]);
          }
          QuantizeDeltaRow(levels, row.a.data(), {row.inverse.data(), group},
                           {row.step.data(), group}, n, m.data(), codes.data());
          ASSERT_EQ(codes, codes_defined) << n << " in " << group;
          ASSERT_EQ(m, m_defined) << n << " in " << group;
          m = row.m;
          DequantizeDeltaRow(levels, codes.data(), {row.step.data(), group}, n, m.data(),
                             sum.data());
          ASSERT_EQ(sum, sum_defined) << n << " in " << group;
          ASSERT_EQ(m, m_defined) << n << " in " << group;
        }
      }
    }
  });
}

TEST(QuantizeDelta, StoredRowsFollowTheDefinition) {
  ForEachTarget([] {
    for (int bits : {2, 4, 8}) {
      const Levels levels(bits, false);
      for (size_t n : Lengths()) {
        const Row row(n, levels, n);
        std::vector<uint16_t> opened(n), opened_against(n), defined(n), largest(n, 0x3f80);
        std::vector<uint32_t> max_bits(n, FloatBits(0.25f)), max_bits_defined = max_bits;
        std::vector<uint16_t> largest_defined = largest;
        std::vector<uint8_t> codes(n), codes_defined(n);
        for (size_t i = 0; i < n; ++i) {
          defined[i] = FloatToBf16(Value(levels, row.codes[i], row.step[i]));
          max_bits_defined[i] =
              std::max(max_bits[i], FloatBits(std::fabs(row.a[i] - Bf16ToFloat(defined[i]))));
          codes_defined[i] = Code(levels, Bf16ToFloat(row.m[i]), row.inverse[i]);
          largest_defined[i] = std::max(largest[i], static_cast<uint16_t>(row.m[i] & 0x7fffu));
        }
        DequantizeToBf16(levels, row.codes.data(), row.step.data(), n, opened.data());
        ASSERT_EQ(opened, defined) << n;
        DequantizeToBf16Against(levels, row.codes.data(), row.step.data(), row.a.data(), n,
                                opened_against.data(), max_bits.data());
        ASSERT_EQ(opened_against, defined) << n;
        ASSERT_EQ(max_bits, max_bits_defined) << n;
        QuantizeBf16(levels, row.m.data(), row.inverse.data(), n, codes.data());
        ASSERT_EQ(codes, codes_defined) << n;
        MaxOfBf16Into(row.m.data(), n, largest.data());
        ASSERT_EQ(largest, largest_defined) << n;
      }
    }
  });
}

TEST(QuantizeDelta, NothingNonFiniteHidesInADifference) {
  const float inf = std::numeric_limits<float>::infinity();
  ForEachTarget([inf] {
    for (size_t n : {1, 16, 33, 130}) {
      for (float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> a = Gaussian(n, 1);
        std::vector<uint16_t> m(n, FloatToBf16(3.0f));
        a[n - 1] = bad;
        std::vector<uint32_t> each(n, 0), groups((n + 31) / 32, 1);
        MaxBitsOfDifferenceInto(a.data(), m.data(), n, each.data());
        MaxBitsOfDifferenceGroups(a.data(), m.data(), n, 32, groups.data());
        EXPECT_GE(each[n - 1], 0x7f800000u);
        EXPECT_GE(groups.back(), 0x7f800000u);
        for (size_t g = 0; g < groups.size(); ++g) {
          const size_t end = std::min(n, 32 * (g + 1));
          EXPECT_EQ(groups[g], *std::max_element(each.data() + 32 * g, each.data() + end));
        }
      }
    }
  });
}

// A state file may hold any scale: each is opened as FloatToBf16 would.
TEST(QuantizeDelta, ScalesThatNoEncoderMakes) {
  const Levels levels(4, false);
  ForEachTarget([&levels] {
    for (uint16_t scale : {0x7f80, 0xff80, 0x7fc0, 0x7fff, 0xffff, 0x7f7f, 0xbf80, 0x0001}) {
      std::vector<float> step(100, levels.Step(scale));
      std::vector<uint8_t> codes(100);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = i % 16;
      std::vector<uint16_t> m(100);
      DequantizeToBf16(levels, codes.data(), step.data(), 100, m.data());
      for (size_t i = 0; i < m.size(); ++i) {
        const float value = Value(levels, codes[i], step[i]);
        if (std::isnan(value)) {
          EXPECT_TRUE(std::isnan(Bf16ToFloat(m[i]))) << scale << " " << i;
        } else {
          EXPECT_EQ(m[i], FloatToBf16(value)) << scale << " " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace isthmus::compress
