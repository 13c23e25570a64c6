// The body of every decoder's fuzz target. Input: one byte that picks the codec within the target's
// list, one byte for the number of samples and the boundary's shape, then the payload of a frame. A
// warm decoder (one good frame decoded before) and a cold one both get it. Any result is right but
// a crash, a read or write out of bounds, or a state that a refused frame changed.
#ifndef ISTHMUS_TESTS_FUZZ_DECODER_FUZZ_H_
#define ISTHMUS_TESTS_FUZZ_DECODER_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress {

struct FuzzCase {
  FuzzCase(const CodecSpec& codec, uint8_t shape) : spec(codec) {
    options.positions = 1 + (shape >> 2) % 3;
    options.hidden = 1 + (shape >> 4) % 11;
    if (spec.kind() == CodecSpec::AUTOENCODER) options.hidden = spec.channels();
    dims = {shape % 4, options.positions, options.hidden};
    options.max_samples = 3;
    options.buffer_memory_bytes =
        2 * 2 * options.positions *
        options.hidden;  // two samples: the third of a frame finds no room
    context.sample_ids = absl::MakeSpan(ids).subspan(0, static_cast<size_t>(dims.samples));
    tokens.assign(static_cast<size_t>(dims.samples * dims.positions), 5);
    context.token_ids = tokens;
    tensor.resize(static_cast<size_t>(dims.elements()) + 1);
    for (size_t i = 0; i < tensor.size(); ++i)
      tensor[i] = static_cast<float>((i * 37) % 23) * 0.125f - 1.25f;
    if (NeedsIndices(spec)) Bind(*ParseCodec("topk(0.3)"));
  }
  // A kept: of the indices of the tensor's largest.
  void Bind(const CodecSpec& forward) {
    spec = *BindBackward(forward, spec);
    std::unique_ptr<Encoder> encoder = *MakeEncoder(forward, options);
    std::string payload;
    if (!encoder->Encode(in(), context, &payload).ok()) abort();
    indices.assign(encoder->indices().begin(), encoder->indices().end());
    context.indices = indices;
  }
  TensorView in() const { return {tensor.data(), DType::kF32, Device::kCpu, dims}; }
  MutableTensorView out() { return {tensor.data(), DType::kF32, Device::kCpu, dims}; }

  CodecSpec spec;
  CodecOptions options;
  TensorDims dims;
  std::vector<uint32_t> ids = {7, 8, 9};
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> indices;
  FrameContext context;
  std::vector<float> tensor;
};

inline void FuzzDecoder(const char* const* texts, size_t count, const uint8_t* data, size_t size) {
  if (size < 2) return;
  const absl::StatusOr<CodecSpec> spec = ParseCodec(texts[data[0] % count]);
  if (!spec.ok()) abort();
  FuzzCase c(*spec, data[1]);
  const absl::string_view payload(reinterpret_cast<const char*>(data) + 2, size - 2);
  for (bool warm : {false, true}) {
    std::unique_ptr<Encoder> encoder = *MakeEncoder(c.spec, c.options);
    std::unique_ptr<Decoder> decoder = *MakeDecoder(c.spec, c.options);
    if (warm) {
      std::string good;
      if (!encoder->Encode(c.in(), c.context, &good).ok()) abort();
      if (!decoder->Decode(good, 1, c.context, c.out()).ok()) abort();
      if (decoder->StateHash().value() != encoder->StateHash().value()) abort();
    }
    const uint64_t hash = decoder->StateHash().value();
    const absl::Status status =
        decoder->Decode(payload, decoder->version() + 1, c.context, c.out());
    if (status.code() == absl::StatusCode::kDataLoss && decoder->StateHash().value() != hash)
      abort();
  }
}

// Good frames, a cold and a warm one of each codec, as the seeds of the corpus.
inline void WriteDecoderSeeds(const char* const* texts, size_t count,
                              const std::string& directory) {
  for (size_t t = 0; t < count; ++t) {
    const uint8_t shape = 0xa6;  // 2 samples of 2 x 11
    FuzzCase c(*ParseCodec(texts[t]), shape);
    std::unique_ptr<Encoder> encoder = *MakeEncoder(c.spec, c.options);
    for (const char* visit : {"cold", "warm"}) {
      std::string payload;
      if (!encoder->Encode(c.in(), c.context, &payload).ok()) abort();
      std::ofstream file(directory + "/" + std::to_string(t) + "-" + visit, std::ios::binary);
      file << static_cast<char>(t) << static_cast<char>(shape) << payload;
    }
  }
}

}  // namespace isthmus::compress

#define ISTHMUS_FUZZ_DECODERS(...)                                          \
  static const char* const kTexts[] = {__VA_ARGS__};                        \
  constexpr size_t kCount = sizeof(kTexts) / sizeof(kTexts[0]);             \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    isthmus::compress::FuzzDecoder(kTexts, kCount, data, size);             \
    return 0;                                                               \
  }                                                                         \
  extern "C" void WriteSeeds(const char* directory) {                       \
    isthmus::compress::WriteDecoderSeeds(kTexts, kCount, directory);        \
  }

#endif  // ISTHMUS_TESTS_FUZZ_DECODER_FUZZ_H_
