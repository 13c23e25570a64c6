// Frame codec of the stateless kinds: the bodies of the samples one after the other.
// The version is counted but not required: losing a frame of these leaves nothing behind. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_STATELESS_H_
#define ISTHMUS_COMPRESS_STATELESS_H_

#include <memory>
#include <utility>

#include "compress/sample_codec.h"

namespace isthmus::compress {

class StatelessEncoder : public Encoder {
 public:
  StatelessEncoder(std::unique_ptr<SampleCodec> codec, const CodecOptions& options) : codec_(std::move(codec)), options_(options) {}
  absl::Status Encode(const TensorView& in, const FrameContext& context, std::string* payload) override;
  uint64_t version() const override { return static_cast<uint64_t>(stats_.frames); }
  CodecStats stats() const override { return stats_; }

 private:
  const std::unique_ptr<SampleCodec> codec_;
  const CodecOptions options_;
  CodecStats stats_;
};

class StatelessDecoder : public Decoder {
 public:
  StatelessDecoder(std::unique_ptr<SampleCodec> codec, const CodecOptions& options) : codec_(std::move(codec)), options_(options) {}
  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context, const MutableTensorView& out) override;
  uint64_t version() const override { return version_; }
  CodecStats stats() const override { return stats_; }

 private:
  const std::unique_ptr<SampleCodec> codec_;
  const CodecOptions options_;
  uint64_t version_ = 0;
  CodecStats stats_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_STATELESS_H_
