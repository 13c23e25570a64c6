#include "proto/codec_size.h"

#include <algorithm>

namespace isthmus {
namespace {

constexpr int64_t kDeltaSampleHeaderBytes = 5;  // kind (1) and version (4); see compress/README.md
constexpr int64_t kZstdHeaderBytes = 5;         // flag (1) and raw size (4)

int64_t SampleBytes(const CodecSpec& spec, int64_t positions, int64_t hidden, bool warm) {
  const int64_t n = positions * hidden;
  switch (spec.kind()) {
    case CodecSpec::BF16:
    case CodecSpec::FP16:
      return 2 * n;
    case CodecSpec::QUANT: {
      int64_t scales = hidden;
      if (spec.scale() == CodecSpec::PER_TOKEN) scales = positions;
      if (spec.scale() == CodecSpec::PER_GROUP) {
        scales = positions * ((hidden + spec.group() - 1) / std::max(1, spec.group()));
      }
      return 2 * scales + (n * spec.bits() + 7) / 8;
    }
    case CodecSpec::DELTA:
      return kDeltaSampleHeaderBytes +
             SampleBytes(warm ? spec.inner() : spec.cold(), positions, hidden, warm);
    default:
      return 4 * n;
  }
}

}  // namespace

int64_t EncodedBytes(const CodecSpec& spec, const TensorDims& d, bool warm) {
  return d.samples * SampleBytes(spec, d.positions, d.hidden, warm);
}

int64_t MaxEncodedBytes(const CodecSpec& spec, const TensorDims& d) {
  int64_t bytes = std::max(EncodedBytes(spec, d, true), EncodedBytes(spec, d, false));
  if (spec.kind() == CodecSpec::DELTA) {  // a non-finite sample falls back to fp32 whatever `cold` says
    bytes = std::max(bytes, d.samples * (kDeltaSampleHeaderBytes + 4 * d.positions * d.hidden));
  }
  return bytes + (spec.zstd() ? kZstdHeaderBytes : 0);
}

int64_t BufferBytes(const CodecSpec& spec, int64_t samples, int64_t positions, int64_t hidden) {
  return spec.kind() == CodecSpec::DELTA ? 2 * samples * positions * hidden : 0;
}

}  // namespace isthmus
