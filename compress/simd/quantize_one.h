// One element of the quantiser's arithmetic, as quantize.h defines it: the tails of the loops over
// vectors, and what these must equal.
//
// Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_SIMD_QUANTIZE_ONE_H_
#define ISTHMUS_COMPRESS_SIMD_QUANTIZE_ONE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "compress/simd/quantize.h"

namespace isthmus::compress {

inline uint8_t QuantizeOne(const Levels& l, float x, float inverse) {
  const float y = std::min(std::max(x * inverse + l.bias, l.low), l.high);
  return static_cast<uint8_t>(static_cast<int32_t>(std::nearbyintf(y)) + l.offset);
}

inline float DequantizeOne(const Levels& l, uint8_t code, float step) {
  return (static_cast<float>(code) * l.code_factor - l.code_shift) * step;
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SIMD_QUANTIZE_ONE_H_
