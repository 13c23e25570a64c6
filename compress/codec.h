// The interface of every codec: an Encoder and a Decoder built from one CodecSpec, working on plain
// memory.
//
// One pair serves one direction of one link. State (delta buffers, residuals) belongs to that pair,
// has one owner thread at each end (the outlet thread owns the encoder, the inlet thread the
// decoder), and stays bit-identical at both ends: both update it from what was sent. A decoder
// takes hostile bytes: any payload gives a tensor of the declared shape or a Status, never a crash
// or an allocation beyond that shape. Formats: compress/FORMATS.md.
#ifndef ISTHMUS_COMPRESS_CODEC_H_
#define ISTHMUS_COMPRESS_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compress/dtype.h"
#include "proto/codec.pb.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress {

class StateReader;
class StateWriter;

// Row-major samples x positions x hidden, contiguous.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Device device = Device::kCpu;
  TensorDims dims;
};

struct MutableTensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device = Device::kCpu;
  TensorDims dims;
};

inline constexpr uint32_t kNoToken = 0xffffffff;  // a token id that is not known

// What a codec may know of the frame beside its tensor.
struct FrameContext {
  absl::Span<const uint32_t> sample_ids;  // one a sample; no id twice in one step
  int64_t step = 0;
  int32_t micro = 0;
  absl::Span<const uint32_t>
      token_ids;  // samples x positions; encoders of `predict` need them and send them along
  // Of `kept`, at both ends: the indices() of the forward codec after the same micro-batch.
  absl::Span<const uint32_t> indices;
};

// Since the pair was made. All of it is also a metric.
struct CodecStats {
  int64_t frames = 0;
  int64_t raw_bytes = 0;  // elements x 4
  int64_t payload_bytes = 0;
  int64_t key_frame_samples = 0;  // delta: samples sent in full
  int64_t delta_samples = 0;      // delta: samples sent as a difference
  int64_t evicted_samples = 0;
  int64_t buffer_device_bytes = 0;
  int64_t buffer_memory_bytes = 0;  // of the host
  int64_t buffer_disk_bytes = 0;
  int64_t late_buffer_reads = 0;  // delta: from the file, not read ahead: the codec waited
};

struct CodecOptions {
  uint64_t seed = 0;             // stochastic rounding
  Device device = Device::kCpu;  // where the tensors are; kCuda: compress/cuda/device_codec.h
  // A cudaStream_t that the tensors are computed and used on; null: a stream of the codec's own, in
  // turn with the default one.
  void* stream = nullptr;
  int64_t positions = 0;  // of the boundary; a frame with other dims is refused
  int64_t hidden = 0;
  int64_t max_samples = 0;  // a frame may hold; a bound for hostile headers
  // Delta buffers. Both ends must be given the same caps: they evict in the same order.
  int64_t buffer_memory_bytes = int64_t{1} << 30;
  int64_t buffer_disk_bytes = int64_t{8} << 30;
  // Of buffer_memory_bytes, in the memory of `device`; what is left of it is pinned memory of the
  // host. 0: an eighth of what the device has free when the codec is made: a stage in
  // the middle has four codecs that may keep some. Each end's own affair.
  int64_t device_buffer_bytes = 0;
  std::string spill_directory;  // of the spill file, which has no name there and is gone with the
                                // process; empty: no disk tier (at both ends)
  // Cap of the tables of `predict`. The same at both ends.
  int64_t predictor_bytes = kPredictorBytes;
  // Where a frame is no boundary's but a run of tensors (codecs/by_matrix.h): their shapes, each of
  // {1, rows, columns}, a vector with one row. positions x hidden are then all their elements. The
  // same at both ends.
  std::vector<TensorDims> shapes;
  int64_t distinct_samples = 0;  // that the job has, if known: no more space than these need is
                                 // reserved. The same at both ends
};

class Encoder {
 public:
  virtual ~Encoder() = default;

  // Replaces *payload. At most MaxEncodedBytes(spec, dims). InvalidArgument: dims are not the
  // boundary's, ids, token ids or indices are missing.
  virtual absl::Status Encode(const TensorView& in, const FrameContext& context,
                              std::string* payload) = 0;

  // Frames encoded so far. Asked after Encode, it is that frame's number (the first is 1): it goes
  // into FrameHeader.state_version.
  virtual uint64_t version() const = 0;
  // Hash of all state (delta buffers): equal to the decoder's after the same frames. An error where
  // a buffer can't be read: then nothing is known of the other end's.
  virtual absl::StatusOr<uint64_t> StateHash() const { return 0; }
  virtual CodecStats stats() const = 0;
  // Of topk and randomk: which elements of each sample the last frame holds, in order, samples x
  // kept; the decoder has the same. Empty: another codec.
  virtual absl::Span<const uint32_t> indices() const { return {}; }
  // Of lep on a host: the error that waits at this place of a frame for the next one, positions x
  // hidden; valid until the next Encode. Empty: none yet, or another codec.
  virtual absl::Span<const float> residual(int64_t sample) const { return {}; }
  // The samples of the coming frames, in their order: reads their buffers ahead from disk, as far
  // as memory goes; changes nothing but the speed. Optional.
  virtual void Prefetch(absl::Span<const uint32_t> sample_ids) {}

  // The parts of codec_state.h: everything that later frames depend on, and taking it up on a new
  // encoder of the same spec and options, whatever its device. After an error an encoder is not to
  // be used any more.
  virtual absl::Status SaveState(StateWriter* to) = 0;
  virtual absl::Status LoadState(StateReader* from) = 0;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  // Fills `out` (all of it) from the payload. `version` is the header's: with a stateful codec, a
  // frame lost, repeated or out of order gives DataLoss and leaves the state as it was.
  // InvalidArgument: bytes that no encoder makes. After an error `out` is undefined.
  virtual absl::Status Decode(absl::string_view payload, uint64_t version,
                              const FrameContext& context, const MutableTensorView& out) = 0;

  virtual uint64_t version() const = 0;
  virtual absl::StatusOr<uint64_t> StateHash() const { return 0; }
  virtual CodecStats stats() const = 0;
  virtual void Prefetch(absl::Span<const uint32_t> sample_ids) {}
  // Token ids that the last frame brought (`predict`), samples x positions: what the next
  // boundary's encoder needs. Empty if it brought none.
  virtual absl::Span<const uint32_t> token_ids() const { return {}; }
  virtual absl::Span<const uint32_t> indices() const { return {}; }  // as the encoder's

  virtual absl::Status SaveState(StateWriter* to) = 0;  // as an encoder's
  virtual absl::Status LoadState(StateReader* from) = 0;
};

// InvalidArgument from ValidateCodec; Unimplemented names a codec this build lacks;
// ResourceExhausted: spill file.
absl::StatusOr<std::unique_ptr<Encoder>> MakeEncoder(const CodecSpec& spec,
                                                     const CodecOptions& options);
absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const CodecSpec& spec,
                                                     const CodecOptions& options);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODEC_H_
