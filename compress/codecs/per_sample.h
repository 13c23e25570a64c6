// Frame codec of everything but delta coding: the bodies of the samples one after the other.
//
// A decoder that keeps state (predict) requires each frame's version to be the next one; for the
// others a lost frame leaves nothing behind, and the version is only noted. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_PER_SAMPLE_H_
#define ISTHMUS_COMPRESS_CODECS_PER_SAMPLE_H_

#include <memory>
#include <utility>
#include <vector>

#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

class PerSampleEncoder : public Encoder {
 public:
  PerSampleEncoder(std::unique_ptr<SampleCodec> codec, const CodecOptions& options)
      : codec_(std::move(codec)), options_(options) {}
  absl::Status Encode(const TensorView& in, const FrameContext& context,
                      std::string* payload) override;
  uint64_t version() const override { return version_; }
  absl::StatusOr<uint64_t> StateHash() const override { return codec_->StateHash(); }
  CodecStats stats() const override { return stats_; }
  absl::Span<const uint32_t> indices() const override { return indices_; }
  absl::Span<const float> residual(int64_t sample) const override {
    return codec_->residual(sample);
  }
  absl::Status SaveState(StateWriter* to) override;
  absl::Status LoadState(StateReader* from) override;

 private:
  const std::unique_ptr<SampleCodec> codec_;
  const CodecOptions options_;
  uint64_t version_ = 0;
  CodecStats stats_;
  std::vector<uint32_t> indices_;
};

class PerSampleDecoder : public Decoder {
 public:
  PerSampleDecoder(std::unique_ptr<SampleCodec> codec, const CodecOptions& options,
                   bool check_version)
      : codec_(std::move(codec)), options_(options), check_version_(check_version) {}
  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override;
  uint64_t version() const override { return version_; }
  absl::StatusOr<uint64_t> StateHash() const override { return codec_->StateHash(); }
  CodecStats stats() const override { return stats_; }
  absl::Span<const uint32_t> token_ids() const override { return tokens_; }
  absl::Span<const uint32_t> indices() const override { return indices_; }
  absl::Status SaveState(StateWriter* to) override;
  absl::Status LoadState(StateReader* from) override;

 private:
  const std::unique_ptr<SampleCodec> codec_;
  const CodecOptions options_;
  const bool check_version_;
  uint64_t version_ = 0;
  CodecStats stats_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> indices_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_PER_SAMPLE_H_
