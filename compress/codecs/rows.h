// Samples as rows of fp32: what the sample codecs read and write, whatever the tensor's dtype or
// the meaning of a row (an activation, a difference).
//
// A row is one position: `hidden` elements. Rows live in a cache-sized scratch, so that a sample is
// never copied whole. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_ROWS_H_
#define ISTHMUS_COMPRESS_CODECS_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compress/codec.h"
#include "compress/simd/convert.h"

namespace isthmus::compress {

class RowSource {
 public:
  virtual ~RowSource() = default;
  // Row p; valid until the next call. Rows may be asked for in any order and repeatedly.
  virtual const float* Row(int64_t p) = 0;
};

// Each row is written once: fill what Begin returns, then End. A codec that reads from a source and
// writes to a sink does not read a row again after its End: the two may share memory (delta
// buffers).
class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual float* Begin(int64_t p) = 0;
  virtual void End(int64_t p) = 0;
};

// A delta buffer: rows of bf16, to be changed.
class BufferRows {
 public:
  virtual ~BufferRows() = default;
  // Row p, until the buffer is put back.
  virtual uint16_t* Row(int64_t p) = 0;
  // max_bits[i] = max(max_bits[i], bits of |a[i] - row p [i]|): at once with what Row does.
  virtual void MaxDifferenceInto(int64_t p, const float* a, uint32_t* max_bits) = 0;
  // Row p has its new content; once each.
  virtual void Changed(int64_t p) = 0;
};

// One sample of a tensor.
class TensorRows : public RowSource {
 public:
  TensorRows(const TensorView& tensor, int64_t sample)
      : base_(static_cast<const char*>(tensor.data) +
              sample * tensor.dims.positions * tensor.dims.hidden *
                  static_cast<int64_t>(DTypeBytes(tensor.dtype))),
        dtype_(tensor.dtype),
        hidden_(static_cast<size_t>(tensor.dims.hidden)) {
    if (dtype_ != DType::kF32) scratch_.resize(hidden_);
  }

  const float* Row(int64_t p) override {
    const char* from = base_ + static_cast<size_t>(p) * hidden_ * DTypeBytes(dtype_);
    if (dtype_ == DType::kF32) return reinterpret_cast<const float*>(from);
    ToFloats(from, dtype_, hidden_, scratch_.data());
    return scratch_.data();
  }

 private:
  const char* base_;
  DType dtype_;
  size_t hidden_;
  std::vector<float> scratch_;
};

class TensorSink : public RowSink {
 public:
  TensorSink(const MutableTensorView& tensor, int64_t sample)
      : base_(static_cast<char*>(tensor.data) + sample * tensor.dims.positions *
                                                    tensor.dims.hidden *
                                                    static_cast<int64_t>(DTypeBytes(tensor.dtype))),
        dtype_(tensor.dtype),
        hidden_(static_cast<size_t>(tensor.dims.hidden)) {
    if (dtype_ != DType::kF32) scratch_.resize(hidden_);
  }

  float* Begin(int64_t p) override {
    return dtype_ == DType::kF32 ? reinterpret_cast<float*>(At(p)) : scratch_.data();
  }
  void End(int64_t p) override {
    if (dtype_ != DType::kF32) FromFloats(scratch_.data(), hidden_, dtype_, At(p));
  }

 private:
  char* At(int64_t p) { return base_ + static_cast<size_t>(p) * hidden_ * DTypeBytes(dtype_); }

  char* base_;
  DType dtype_;
  size_t hidden_;
  std::vector<float> scratch_;
};

// Rows of a plain fp32 array; a source and a sink.
class ArrayRows : public RowSource, public RowSink {
 public:
  ArrayRows(float* data, int64_t hidden) : data_(data), hidden_(hidden) {}
  const float* Row(int64_t p) override { return data_ + p * hidden_; }
  float* Begin(int64_t p) override { return data_ + p * hidden_; }
  void End(int64_t) override {}

 private:
  float* data_;
  int64_t hidden_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_ROWS_H_
