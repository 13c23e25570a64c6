// Element types of tensors and where they lie. Of its own, so that kernels need neither Protocol
// Buffers nor Abseil. Thread: pure values.
#ifndef ISTHMUS_COMPRESS_DTYPE_H_
#define ISTHMUS_COMPRESS_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace isthmus::compress {

enum class DType : uint8_t { kF32, kF16, kBf16 };
enum class Device : uint8_t { kCpu, kCuda };

inline size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_DTYPE_H_
