// Kernels of the quantiser, of delta coding and of plain codecs on device memory: plain C++, no
// CUDA headers, no Protocol Buffers, no Abseil.
//
// Bits equal those of the CPU (compress/simd/quantize.h has the list of operations): a sender on
// one device and a receiver on another understand each other, and delta buffers stay identical.
//
// A sample's body in device memory is the scales, then at a multiple of 16 bytes the codes
// (BodyLayout); on the wire the two follow one another without a gap. All pointers are device
// memory unless said otherwise. Everything is queued on the caller's stream and returns at once.
// An Error is null or a static text. Thread: any, one at a time for a stream.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_KERNELS_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_KERNELS_H_

#include <cstdint>

#include "compress/dtype.h"

namespace isthmus::compress::cuda {

using Stream = void*;  // a cudaStream_t
using Error = const char*;

enum class ScaleBy : uint8_t { kChannel, kToken, kGroup };
enum class ScaleRule : uint8_t { kMax, kRms, kMean };  // largest, 2 x root mean square, mean

// A QUANT or SIGN codec.
struct QuantFormat {
  int bits = 4;
  bool symmetric = false;
  bool stochastic = false;
  ScaleBy scale_by = ScaleBy::kChannel;
  ScaleRule rule = ScaleRule::kMax;
  int64_t group = 0;  // of kGroup
  uint64_t seed = 0;  // of stochastic
};

struct Matrix {
  int64_t positions = 0;
  int64_t hidden = 0;
  int64_t elements() const { return positions * hidden; }
};

struct BodyLayout {
  int64_t scales = 0;      // count
  int64_t codes_at = 0;    // byte offset of the codes
  int64_t code_bytes = 0;  // of the codes
  int64_t bytes = 0;       // in device memory: a multiple of 16
  int64_t wire_bytes() const { return 2 * scales + code_bytes; }
};
BodyLayout LayoutOf(const QuantFormat& format, const Matrix& matrix);

// One sample. `m`: its delta buffer (bf16), updated; null for all samples of a call or for none.
struct EncodeJob {
  const void* a = nullptr;
  uint16_t* m = nullptr;
  uint8_t* body = nullptr;
  uint32_t* not_finite = nullptr;  // set to 1 if a scale is NaN; m is undefined then
  uint64_t draw = 0;               // stochastic
};
struct DecodeJob {
  const uint8_t* body = nullptr;  // scales that IsValidScale accepts; with m, none is NaN
  uint16_t* m = nullptr;
  void* out = nullptr;
};

// Which kernels a call takes: those that hold a sample in registers and read it once need hidden to
// be a multiple of 64, pointers at multiples of 16, scales by maximum, nearest rounding, and
// positions (per channel) or hidden (per token) that the registers hold. The others take anything.
bool EncodesInOnePass(const QuantFormat& format, const Matrix& matrix, DType dtype);

// Bytes of scratch that QuantEncode needs for `count` samples; 0 where it encodes in one pass and
// all pointers are aligned.
int64_t EncodeScratchBytes(const QuantFormat& format, const Matrix& matrix, int64_t count);

Error QuantEncode(const QuantFormat& format, const Matrix& matrix, DType dtype,
                  const EncodeJob* jobs, int64_t count, void* scratch, Stream stream);
// Without m: out := value. With m: out := m + value, m := bf16(m + value).
Error QuantDecode(const QuantFormat& format, const Matrix& matrix, DType dtype,
                  const DecodeJob* jobs, int64_t count, Stream stream);

// wire := a as `wire_type`; back := wire as bf16; not_finite := 1 where that is inf or NaN. Each of
// the three may be null.
Error PlainEncode(const void* a, DType a_type, int64_t n, DType wire_type, void* wire,
                  uint16_t* back, uint32_t* not_finite, Stream stream);

// Fewest bytes of device memory that a call must touch: each input once, each output once.
int64_t EncodeBytesMoved(const QuantFormat& format, const Matrix& matrix, DType dtype, bool delta);
int64_t DecodeBytesMoved(const QuantFormat& format, const Matrix& matrix, DType dtype, bool delta);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_KERNELS_H_
