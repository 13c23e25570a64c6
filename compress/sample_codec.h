// A stateless codec of one sample (positions x hidden): the building block that the frame codecs (stateless.h, delta.h, ...) repeat over a frame.
//
// Samples are coded one by one so that the code of a sample never depends on its neighbours in the micro-batch.
// Thread: one owner (scratch inside).
#ifndef ISTHMUS_COMPRESS_SAMPLE_CODEC_H_
#define ISTHMUS_COMPRESS_SAMPLE_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compress/codec.h"
#include "compress/rows.h"
#include "proto/codec.pb.h"

namespace isthmus::compress {

struct SampleShape {
  int64_t positions = 0;
  int64_t hidden = 0;
  int64_t elements() const { return positions * hidden; }
};

class SampleCodec {
 public:
  virtual ~SampleCodec() = default;

  // Appends the body of one sample to *out. Every input has a defined result: non-finite elements never stop an encoder.
  // `draw` numbers the samples coded on this link and direction: a stream for random numbers.
  // `rebuilt`, if not null, gets the rows as the decoder will have them, bit for bit.
  virtual void Encode(RowSource& in, uint64_t draw, std::string* out, RowSink* rebuilt) = 0;

  // How many bytes at the front of `bytes` are one body. InvalidArgument: no encoder makes such bytes.
  virtual absl::StatusOr<size_t> Check(absl::string_view bytes) const = 0;

  // `body` has passed Check, whole.
  virtual void Decode(absl::string_view body, RowSink& out) = 0;
};

// `spec` is one of the stateless kinds and valid.
absl::StatusOr<std::unique_ptr<SampleCodec>> MakeSampleCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed);

// 64-bit stream number of a sample: frame number and place in the frame.
inline uint64_t DrawOf(uint64_t frame, int64_t sample) { return (frame << 20) + static_cast<uint64_t>(sample); }

inline char* Extend(std::string* out, size_t bytes) {
  const size_t at = out->size();
  out->resize(at + bytes);
  return out->data() + at;
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SAMPLE_CODEC_H_
