#include "compress/simd/pack.h"

#include <string>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "tests/compress/reference.h"
#include "tests/compress/targets.h"

namespace isthmus::compress {
namespace {

TEST(Pack, MostSignificantBitFirst) {
  const uint8_t codes[4] = {7, 0, 6, 5};
  uint8_t out[2];
  PackCodes(codes, 4, 3, out);
  EXPECT_EQ(out[0], 0b11100011);
  EXPECT_EQ(out[1], 0b01010000);
}

// T1.2. Beyond 130 codes in odd steps, up to several of the longest of the loops.
void RoundTripEveryWidthAndLength() {
  for (int bits = 1; bits <= 8; ++bits) {
    for (size_t n = 0; n <= 1100; n += n < 130 ? 1 : 31) {
      std::vector<uint8_t> codes(n);
      for (size_t i = 0; i < n; ++i)
        codes[i] = static_cast<uint8_t>(RandomBelow(3, n, i, uint64_t{1} << bits));
      const size_t bytes = (n * static_cast<size_t>(bits) + 7) / 8;
      ASSERT_EQ(PackedBytes(n, bits), bytes);
      std::vector<uint8_t> packed(bytes + 1, 0xa5), back(n + 1, 0x5a);
      PackCodes(codes.data(), n, bits, packed.data());
      std::string reference;
      int64_t used = 0;
      for (uint8_t c : codes) ReferenceAppendBits(c, bits, &used, &reference);
      ASSERT_EQ(reference, std::string(packed.begin(), packed.end() - 1)) << bits << " bits, " << n;
      ASSERT_EQ(packed[bytes], 0xa5) << "wrote past the end: " << bits << " bits, " << n;
      std::vector<uint8_t> exact(packed.begin(),
                                 packed.end() - 1);  // so that a sanitizer sees a read past the end
      UnpackCodes(exact.data(), n, bits, back.data());
      ASSERT_EQ(back[n], 0x5a) << "wrote past the end";
      back.pop_back();
      ASSERT_EQ(back, codes) << bits << " bits, " << n;
    }
  }
}

TEST(Pack, RoundTripsEveryWidthAndLength) { ForEachTarget(RoundTripEveryWidthAndLength); }

}  // namespace
}  // namespace isthmus::compress
