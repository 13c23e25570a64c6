// An encoder and a decoder of one codec, and tensors to try them on. Thread: one owner.
#ifndef ISTHMUS_TESTS_COMPRESS_PAIR_H_
#define ISTHMUS_TESTS_COMPRESS_PAIR_H_

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/simd/convert.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress {

// Standard normal numbers, the same everywhere.
inline std::vector<float> Gaussian(size_t n, uint64_t seed, uint64_t stream = 0) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const double u = 1.0 - RandomUniform(seed, stream, 2 * i);
    const double v = RandomUniform(seed, stream, 2 * i + 1);
    x[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v));
  }
  return x;
}

inline double RelativeError(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    norm += double{x[i]} * x[i];
  }
  return std::sqrt(error / norm);
}

inline TensorView View(const std::vector<float>& x, const TensorDims& dims) {
  return {x.data(), DType::kF32, Device::kCpu, dims};
}
inline MutableTensorView View(std::vector<float>* x, const TensorDims& dims) {
  return {x->data(), DType::kF32, Device::kCpu, dims};
}

inline CodecSpec Spec(const std::string& text) {
  absl::StatusOr<CodecSpec> spec = ParseCodec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : CodecSpec();
}

// A kept as the backward codec of `forward`; another one as it is.
inline CodecSpec Bound(const CodecSpec& spec, const char* forward = "topk(0.25)") {
  return BindBackward(Spec(forward), spec).value();
}

struct Pair {
  Pair(const std::string& text, CodecOptions o) : spec(Bound(Spec(text))), options(std::move(o)) {
    absl::StatusOr<std::unique_ptr<Encoder>> e = MakeEncoder(spec, options);
    absl::StatusOr<std::unique_ptr<Decoder>> d = MakeDecoder(spec, options);
    EXPECT_TRUE(e.ok()) << e.status();
    EXPECT_TRUE(d.ok()) << d.status();
    if (e.ok()) encoder = *std::move(e);
    if (d.ok()) decoder = *std::move(d);
  }
  Pair(const std::string& text, int64_t positions, int64_t hidden)
      : Pair(text, Options(positions, hidden)) {}

  static CodecOptions Options(int64_t positions, int64_t hidden) {
    CodecOptions options;
    options.seed = 7;
    options.positions = positions;
    options.hidden = hidden;
    return options;
  }

  TensorDims Dims(size_t samples) const {
    return {static_cast<int64_t>(samples), options.positions, options.hidden};
  }

  std::string Encode(const std::vector<float>& x, const std::vector<uint32_t>& ids) {
    std::string payload;
    FrameContext context;
    context.sample_ids = ids;
    std::vector<uint32_t> token_ids = tokens;
    token_ids.resize(ids.size() * static_cast<size_t>(options.positions), 3);
    context.token_ids = token_ids;
    absl::Status status = encoder->Encode(View(x, Dims(ids.size())), context, &payload);
    EXPECT_TRUE(status.ok()) << status;
    return payload;
  }

  absl::Status Decode(const std::string& payload, uint64_t version,
                      const std::vector<uint32_t>& ids, std::vector<float>* y) {
    y->assign(static_cast<size_t>(Dims(ids.size()).elements()), -12345.0f);
    FrameContext context;
    context.sample_ids = ids;
    return decoder->Decode(payload, version, context, View(y, Dims(ids.size())));
  }

  std::vector<float> RoundTrip(const std::vector<float>& x, const std::vector<uint32_t>& ids) {
    const std::string payload = Encode(x, ids);
    std::vector<float> y;
    absl::Status status = Decode(payload, encoder->version(), ids, &y);
    EXPECT_TRUE(status.ok()) << status;
    payload_bytes = static_cast<int64_t>(payload.size());
    return y;
  }

  CodecSpec spec;
  CodecOptions options;
  std::unique_ptr<Encoder> encoder;
  std::unique_ptr<Decoder> decoder;
  int64_t payload_bytes = 0;
  std::vector<uint32_t> tokens;  // of the next Encode; what is missing is token 3
};

inline std::vector<uint32_t> Ids(size_t n, uint32_t first = 0) {
  std::vector<uint32_t> ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_COMPRESS_PAIR_H_
