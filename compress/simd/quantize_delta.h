// The quantiser's arithmetic (quantize.h) on rows of a delta buffer in bf16 (delta.h), and on rows
// of a buffer that is itself stored quantised (buffer_format.h).
//
// Everything is finite here but what MaxBitsOfDifference looks for. Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_SIMD_QUANTIZE_DELTA_H_
#define ISTHMUS_COMPRESS_SIMD_QUANTIZE_DELTA_H_

#include <cstddef>
#include <cstdint>

#include "compress/simd/quantize.h"

namespace isthmus::compress {

// max_bits[i] = max(max_bits[i], bits of |a[i] - m[i]|).
void MaxBitsOfDifferenceInto(const float* a, const uint16_t* m, size_t n, uint32_t* max_bits);
// max_bits[g] = the largest of the g-th `group`; the last group may be shorter.
void MaxBitsOfDifferenceGroups(const float* a, const uint16_t* m, size_t n, size_t group,
                               uint32_t* max_bits);

// Codes of a - m, then m := bf16(m + value), in one pass. a, m and step are finite, and so is m
// afterwards: a value is at most 2^100, half a unit in the last place of the largest bf16 is 2^119.
// `inverse` and `step` have the same group.
void QuantizeDeltaRow(const Levels& levels, const float* a, RowScales inverse, RowScales step,
                      size_t n, uint16_t* m, uint8_t* codes);
// The receiver's half: sum := m + value; m := bf16(sum).
void DequantizeDeltaRow(const Levels& levels, const uint8_t* codes, RowScales step, size_t n,
                        uint16_t* m, float* sum);

// Rows of stored buffers, one scale a channel. m := bf16(value); of a scale that no encoder makes,
// what FloatToBf16 gives.
void DequantizeToBf16(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                      uint16_t* m);
// The same, and MaxBitsOfDifferenceInto.
void DequantizeToBf16Against(const Levels& levels, const uint8_t* codes, const float* step,
                             const float* a, size_t n, uint16_t* m, uint32_t* max_bits);
// Codes of m.
void QuantizeBf16(const Levels& levels, const uint16_t* m, const float* inverse, size_t n,
                  uint8_t* codes);
// max[i] = max(max[i], |m[i]|), in bf16.
void MaxOfBf16Into(const uint16_t* m, size_t n, uint16_t* max);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SIMD_QUANTIZE_DELTA_H_
