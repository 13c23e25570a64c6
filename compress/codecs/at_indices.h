// kept: of a gradient, the elements at the indices that the forward pass sent for the same
// micro-batch, the rest is zero at the receiver (Top-K backward of arXiv 2301.02654, section 3).
//
// No indices travel: both ends have them (Encoder::indices, Decoder::indices of the forward codec)
// and hand them over in FrameContext::indices. Body of a sample: the values by their own codec, as
// tokens x kept of each, or 1 x kept where the forward codec is global or a randomk.
//
// What comes out is the gradient of the forward codec's input: dy / dx is 1 at an index of topk or
// randomk, and the length of the run (what y was multiplied by) at one of randomk(..., scaled);
// there the receiver multiplies by it again. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_AT_INDICES_H_
#define ISTHMUS_COMPRESS_CODECS_AT_INDICES_H_

#include <memory>
#include <vector>

#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

// What encoder and decoder have in common.
class AtIndices {
 public:
  // InvalidArgument: `spec` is not bound to a forward codec (proto/codec/codec_pair.h).
  static absl::StatusOr<AtIndices> Make(const CodecSpec& spec, const CodecOptions& options);

  // `kept` indices for each sample, in order, none twice, all within the sample.
  absl::Status CheckIndices(absl::Span<const uint32_t> indices, int64_t samples) const;
  absl::Span<const uint32_t> IndicesOf(const FrameContext& context, int64_t sample) const {
    return context.indices.subspan(static_cast<size_t>(sample) * kept(), kept());
  }

  const CodecOptions& options() const { return options_; }
  const SampleShape& shape() const { return shape_; }
  const SampleShape& values_shape() const { return values_shape_; }
  size_t kept() const { return static_cast<size_t>(values_shape_.elements()); }  // of a sample
  bool scaled() const { return scaled_; }
  SampleCodec* values() const { return values_.get(); }

 private:
  AtIndices(const CodecSpec& spec, const CodecOptions& options);

  CodecOptions options_;
  SampleShape shape_;
  SampleShape values_shape_;
  bool scaled_ = false;
  std::unique_ptr<SampleCodec> values_;
};

class AtIndicesEncoder : public Encoder {
 public:
  explicit AtIndicesEncoder(AtIndices s) : s_(std::move(s)) {}
  absl::Status Encode(const TensorView& in, const FrameContext& context,
                      std::string* payload) override;
  uint64_t version() const override { return version_; }
  CodecStats stats() const override { return stats_; }
  absl::Status SaveState(StateWriter* to) override;
  absl::Status LoadState(StateReader* from) override;

 private:
  const AtIndices s_;
  uint64_t version_ = 0;
  CodecStats stats_;
  std::vector<float> list_;
};

class AtIndicesDecoder : public Decoder {
 public:
  explicit AtIndicesDecoder(AtIndices s) : s_(std::move(s)) {}
  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override;
  uint64_t version() const override { return version_; }
  CodecStats stats() const override { return stats_; }
  absl::Status SaveState(StateWriter* to) override;
  absl::Status LoadState(StateReader* from) override;

 private:
  const AtIndices s_;
  uint64_t version_ = 0;
  CodecStats stats_;
  std::vector<float> list_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_AT_INDICES_H_
