// none, bf16 and fp16: the elements themselves, 4 or 2 bytes each, little-endian. `none` is exact
// for every bit pattern. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_PLAIN_H_
#define ISTHMUS_COMPRESS_CODECS_PLAIN_H_

#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

class PlainCodec : public SampleCodec {
 public:
  PlainCodec(DType dtype, const SampleShape& shape) : dtype_(dtype), shape_(shape) {}

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;

 private:
  size_t row_bytes() const { return static_cast<size_t>(shape_.hidden) * DTypeBytes(dtype_); }

  const DType dtype_;
  const SampleShape shape_;
  std::vector<uint16_t> scratch_;  // an aligned row
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_PLAIN_H_
