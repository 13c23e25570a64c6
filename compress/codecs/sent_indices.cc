#include "compress/codecs/sent_indices.h"

#include <cstring>

#include "compress/codecs/index_set.h"
#include "compress/codecs/sparse.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress {
namespace {

// Of one sample, appended. False: its body is not one.
bool AppendOfSample(const CodecSpec& spec, const CodecOptions& options, absl::string_view body,
                    std::vector<uint32_t>* indices) {
  const int64_t elements = options.positions * options.hidden;
  if (spec.kind() == CodecSpec::RANDOM_K) {
    uint32_t draw;
    if (body.size() < sizeof(draw)) return false;
    std::memcpy(&draw, body.data(), sizeof(draw));
    DrawIndices(elements, KeptOf(spec.ratio(), elements), options.seed, draw, indices);
    return true;
  }
  const int64_t kept = TopKKept(spec, options.positions, options.hidden);
  const size_t bytes = static_cast<size_t>(IndexSetBytes(elements, kept));
  std::vector<uint32_t> of_sample;
  if (body.size() < bytes || !ReadIndexSet(body.substr(0, bytes), elements, kept, &of_sample).ok())
    return false;
  indices->insert(indices->end(), of_sample.begin(), of_sample.end());
  return true;
}

}  // namespace

std::vector<uint32_t> SentIndices(const CodecSpec& spec, const CodecOptions& options,
                                  absl::string_view payload, int64_t samples) {
  if (!KeepsIndices(spec) || samples == 0) return {};
  // All bodies have one length.
  const size_t bytes = payload.size() / static_cast<size_t>(samples);
  std::vector<uint32_t> indices;
  for (int64_t s = 0; s < samples; ++s) {
    if (!AppendOfSample(spec, options, payload.substr(static_cast<size_t>(s) * bytes, bytes),
                        &indices))
      return {};
  }
  return indices;
}

}  // namespace isthmus::compress
