// A codec of one sample (positions x hidden): the building block that the frame codecs
// (per_sample.h, delta.h) repeat over a frame.
//
// Samples are coded one by one so that the code of a sample never depends on its neighbours in the
// micro-batch. Most are stateless; some keep state at the sender alone (low rank, error feedback),
// and `predict` keeps the same state at both ends, which changes only at the end of a frame.
// Thread: one owner (scratch inside).
#ifndef ISTHMUS_COMPRESS_CODECS_SAMPLE_CODEC_H_
#define ISTHMUS_COMPRESS_CODECS_SAMPLE_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compress/codec.h"
#include "compress/codecs/rows.h"
#include "compress/state/state_io.h"
#include "proto/codec.pb.h"

namespace isthmus::compress {

struct SampleShape {
  int64_t positions = 0;
  int64_t hidden = 0;
  int64_t elements() const { return positions * hidden; }
};

// What a codec may know of the sample it encodes.
struct SampleInfo {
  uint64_t draw =
      0;  // numbers the samples coded on this link and direction: a stream for random numbers
  int64_t index = 0;  // in the frame
  int32_t micro = 0;
  absl::Span<const uint32_t> tokens;  // one a position, or none
};

class SampleCodec {
 public:
  virtual ~SampleCodec() = default;

  // Appends the body of one sample to *out. Every input has a defined result: non-finite elements
  // never stop an encoder. `rebuilt`, if not null, gets the rows as the decoder will have them, bit
  // for bit.
  virtual void Encode(RowSource& in, const SampleInfo& info, std::string* out,
                      RowSink* rebuilt) = 0;

  // How many bytes at the front of `bytes` are one body. InvalidArgument: no encoder makes such
  // bytes.
  virtual absl::StatusOr<size_t> Check(absl::string_view bytes) const = 0;

  // `body` has passed Check, whole.
  virtual void Decode(absl::string_view body, RowSink& out) = 0;

  // For codecs with state. After each Encode or Decode: did both ends use the result? After the
  // last sample of a frame: EndFrame.
  virtual void Settle(bool used) {}
  virtual void EndFrame() {}
  virtual uint64_t StateHash() const { return 0; }  // of the state that both ends share

  // Between frames: what later frames depend on (codec_state.h). Errors are kept by the reader and
  // the writer; after one a codec is not to be used any more.
  virtual void SaveState(StateWriter* to) {}
  virtual void LoadState(StateReader* from) {}

  // For codecs that send token ids: an encoder's info must have them; a decoder has those of the
  // last sample decoded.
  virtual bool NeedsTokens() const { return false; }
  virtual absl::Span<const uint32_t> tokens() const { return {}; }

  // Which elements of the sample last coded are sent, in order; the others are zero. Empty: no such
  // codec.
  virtual absl::Span<const uint32_t> indices() const { return {}; }

  // Of lep: what waits for the next frame at this place (Encoder::residual).
  virtual absl::Span<const float> residual(int64_t index) const { return {}; }
};

// Of a sample of those codecs: a place has 32 bits.
inline constexpr int64_t kMaxSparseElements = (int64_t{1} << 32) - 1;

// `spec` is valid, and neither a delta nor a kept.
absl::StatusOr<std::unique_ptr<SampleCodec>> MakeSampleCodec(const CodecSpec& spec,
                                                             const SampleShape& shape,
                                                             const CodecOptions& options);

inline SampleInfo InfoOf(uint64_t frame, int64_t sample, const TensorDims& dims,
                         const FrameContext& context) {
  SampleInfo info;
  info.draw = (frame << 20) + static_cast<uint64_t>(sample);
  info.index = sample;
  info.micro = context.micro;
  if (!context.token_ids.empty()) {
    info.tokens = context.token_ids.subspan(static_cast<size_t>(sample * dims.positions),
                                            static_cast<size_t>(dims.positions));
  }
  return info;
}

inline char* Extend(std::string* out, size_t bytes) {
  const size_t at = out->size();
  out->resize(at + bytes);
  return out->data() + at;
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_SAMPLE_CODEC_H_
