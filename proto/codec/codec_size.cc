#include "proto/codec/codec_size.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace isthmus {
namespace {

constexpr int64_t kDeltaSampleHeaderBytes = 5;  // kind (1) and version (4); see compress/FORMATS.md
constexpr int64_t kDrawBytes = 4;               // random-k: number of the draw
constexpr int64_t kZstdHeaderBytes = 5;         // flag (1) and raw size (4)

int64_t ScaleCount(const CodecSpec& spec, int64_t positions, int64_t hidden) {
  if (spec.scale() == CodecSpec::PER_TOKEN) return positions;
  if (spec.scale() == CodecSpec::PER_GROUP)
    return positions * ((hidden + spec.group() - 1) / std::max(1, spec.group()));
  return hidden;
}

// `most`: the largest that the codec may make, instead of the usual.
int64_t SampleBytes(const CodecSpec& spec, int64_t positions, int64_t hidden, bool warm,
                    bool most) {
  const int64_t n = positions * hidden;
  switch (spec.kind()) {
    case CodecSpec::BF16:
    case CodecSpec::FP16:
      return 2 * n;
    case CodecSpec::QUANT:
      return 2 * ScaleCount(spec, positions, hidden) + (n * spec.bits() + 7) / 8;
    case CodecSpec::SIGN:
      return 2 * ScaleCount(spec, positions, hidden) + (n + 7) / 8;
    case CodecSpec::TOP_K: {
      const int64_t kept = TopKKept(spec, positions, hidden);
      const CodecSpec values = ValuesOf(spec);
      return IndexSetBytes(n, kept) +
             (spec.global() || positions == 0
                  ? SampleBytes(values, 1, kept, warm, most)
                  : SampleBytes(values, positions, kept / positions, warm, most));
    }
    case CodecSpec::RANDOM_K:
      return kDrawBytes + SampleBytes(ValuesOf(spec), 1, KeptOf(spec.ratio(), n), warm, most);
    case CodecSpec::KEPT: {
      const int64_t kept = spec.ratio() > 0 ? TopKKept(spec, positions, hidden) : n;
      const CodecSpec values = ValuesOf(spec);
      return spec.global() || positions == 0
                 ? SampleBytes(values, 1, kept, warm, most)
                 : SampleBytes(values, positions, kept / positions, warm, most);
    }
    case CodecSpec::COCKTAIL:
      return SampleBytes(ExpandCocktail(spec), positions, hidden, warm, most);
    case CodecSpec::LOW_RANK: {
      const int64_t rank = std::min<int64_t>({spec.rank(), positions, hidden});
      const CodecSpec values = ValuesOf(spec);
      return SampleBytes(values, positions, rank, warm, most) +
             SampleBytes(values, rank, hidden, warm, most);
    }
    case CodecSpec::AUTOENCODER:
      return SampleBytes(ValuesOf(spec), positions, spec.channels(), warm, most);
    case CodecSpec::FEEDBACK:
    case CodecSpec::LAZY:
      return SampleBytes(spec.inner(), positions, hidden, warm, most);
    case CodecSpec::PREDICT:
      return 1 + (most ? 5 : 3) * positions +
             SampleBytes(spec.inner(), positions, hidden, warm, most);
    case CodecSpec::DELTA:
      return kDeltaSampleHeaderBytes +
             SampleBytes(warm ? spec.inner() : spec.cold(), positions, hidden, warm, most);
    default:
      return 4 * n;
  }
}

}  // namespace

int64_t KeptOf(double ratio, int64_t n) {
  if (n <= 0) return 0;
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(ratio * static_cast<double>(n))), 1, n);
}

int64_t TopKKept(const CodecSpec& spec, int64_t positions, int64_t hidden) {
  return spec.global() ? KeptOf(spec.ratio(), positions * hidden)
                       : positions * KeptOf(spec.ratio(), hidden);
}

int64_t IndexSetBytes(int64_t n, int64_t kept) {
  if (kept == 0) return 0;
  int low_bits = 0;
  while (((kept << low_bits) << 1) <= n) ++low_bits;
  const int64_t elias_fano = (kept * low_bits + 7) / 8 + (kept + (n >> low_bits) + 1 + 7) / 8;
  return std::min(elias_fano, (n + 7) / 8);
}

TensorDims WireDims(const CodecSpec& forward, TensorDims dims) {
  if (forward.kind() == CodecSpec::AUTOENCODER) dims.hidden = forward.channels();
  return dims;
}

CodecSpec ValuesOf(const CodecSpec& spec) {
  if (spec.has_inner()) return spec.inner();
  CodecSpec values;
  const bool exact = spec.kind() == CodecSpec::LOW_RANK || spec.kind() == CodecSpec::AUTOENCODER ||
                     spec.kind() == CodecSpec::KEPT;
  if (!exact) values.set_kind(CodecSpec::BF16);
  return values;
}

CodecSpec ExpandCocktail(const CodecSpec& spec) {
  CodecSpec random;
  random.set_kind(CodecSpec::RANDOM_K);
  random.set_ratio(spec.subset());
  CodecSpec* top = random.mutable_inner();
  top->set_kind(CodecSpec::TOP_K);
  top->set_ratio(spec.ratio());
  top->set_global(true);
  CodecSpec* quant = top->mutable_inner();
  quant->set_kind(CodecSpec::QUANT);
  quant->set_bits(spec.bits());
  quant->set_scale(CodecSpec::PER_GROUP);
  quant->set_group(128);
  return random;
}

int64_t EncodedBytes(const CodecSpec& spec, const TensorDims& d, bool warm) {
  return d.samples * SampleBytes(spec, d.positions, d.hidden, warm, false);
}

double MeanEncodedBytes(const CodecSpec& spec, const TensorDims& d, double first_visits) {
  return first_visits * static_cast<double>(EncodedBytes(spec, d, false)) +
         (1 - first_visits) * static_cast<double>(EncodedBytes(spec, d, true));
}

int64_t MaxEncodedBytes(const CodecSpec& spec, const TensorDims& d) {
  int64_t bytes = d.samples * std::max(SampleBytes(spec, d.positions, d.hidden, true, true),
                                       SampleBytes(spec, d.positions, d.hidden, false, true));
  if (spec.kind() ==
      CodecSpec::DELTA) {  // a non-finite sample falls back to fp32 whatever `cold` says
    bytes = std::max(bytes, d.samples * (kDeltaSampleHeaderBytes + 4 * d.positions * d.hidden));
  }
  return bytes + (spec.zstd() ? kZstdHeaderBytes : 0);
}

PredictorRows PredictorRowsOf(const CodecSpec& predict, int64_t bytes, int64_t positions,
                              int64_t hidden) {
  constexpr int64_t kMostSlots = 1 << 16;
  PredictorRows rows;
  int64_t left = bytes / std::max<int64_t>(4 * hidden, 1);
  if (left > positions) {
    rows.positions = positions;
    left -= positions;
  }
  const int64_t levels = std::max(predict.context(), 1) - 1;
  if (levels > 0 && left / 2 >= levels) {
    rows.slots = 1;
    while (2 * rows.slots <= std::min(kMostSlots, left / 2 / levels)) rows.slots *= 2;
    left -= levels * rows.slots;
  }
  rows.tokens = std::max<int64_t>(left, 1);
  return rows;
}

int64_t PredictorBytes(const CodecSpec& spec, const TensorDims& d, int64_t vocabulary) {
  if (spec.kind() == CodecSpec::DELTA) return PredictorBytes(spec.cold(), d, vocabulary);
  if (spec.kind() != CodecSpec::PREDICT) return 0;
  const PredictorRows rows = PredictorRowsOf(spec, kPredictorBytes, d.positions, d.hidden);
  const int64_t context = std::max(spec.context(), 1);
  const int64_t frame = d.samples * d.positions;  // most keys of one table that it may bring
  return 4 * d.hidden *
         (2 * rows.positions + std::min(rows.tokens, vocabulary + 1) + (context - 1) * rows.slots +
          std::min(frame, vocabulary) + (context - 1) * frame);
}

int64_t SpareEntries(int64_t memory_entries) {
  constexpr int64_t kMostSpare = 64;
  return std::clamp<int64_t>(memory_entries / 4, 1, kMostSpare);
}

BufferLayout LayOutBuffers(int64_t entry_bytes, int64_t memory_bytes, int64_t disk_bytes,
                           int64_t samples) {
  const int64_t bytes = std::max<int64_t>(entry_bytes, 1);
  const int64_t most = samples > 0 ? samples : std::numeric_limits<int64_t>::max() / 4;
  const int64_t slots = std::max<int64_t>(disk_bytes, 0) / bytes;
  BufferLayout layout;
  layout.memory_entries = std::min(std::max<int64_t>(memory_bytes, 0) / bytes, most);
  layout.file_entries = std::min(slots, most - layout.memory_entries);
  if (layout.file_entries > 0) {
    layout.spare_entries =
        std::min(slots - layout.file_entries, SpareEntries(layout.memory_entries));
  }
  return layout;
}

int64_t IndicesBytes(const CodecSpec& backward, const TensorDims& d) {
  if (backward.kind() != CodecSpec::KEPT) return 0;
  constexpr int64_t kPlaceBytes = 4;
  return kPlaceBytes * d.samples * TopKKept(backward, d.positions, d.hidden);
}

int64_t ResidualBytes(const CodecSpec& spec, const TensorDims& d, int64_t samples_a_step) {
  const bool lazy = spec.kind() == CodecSpec::LAZY;
  if (!lazy && spec.kind() != CodecSpec::FEEDBACK) return 0;
  return 4 * (lazy ? d.samples : samples_a_step) * d.positions * d.hidden;
}

int64_t BufferBytes(const CodecSpec& spec, int64_t samples, int64_t positions, int64_t hidden) {
  if (spec.kind() != CodecSpec::DELTA) return 0;
  const int64_t n = positions * hidden;
  if (spec.buffer_bits() == 0) return samples * 2 * n;
  CodecSpec stored;
  stored.set_kind(CodecSpec::QUANT);
  stored.set_bits(spec.buffer_bits());
  return samples * ((SampleBytes(stored, positions, hidden, true, false) + 1) / 2 * 2);
}

}  // namespace isthmus
