// Codecs of one sample on device memory: the counterpart of sample_codec.h. A body lies there in
// segments at comfortable addresses, which follow one another without a gap on the wire.
//
// Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_BODY_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_BODY_H_

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compress/codec.h"
#include "compress/codecs/sample_codec.h"
#include "compress/cuda/device_memory.h"
#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// Sample s of a tensor.
template <typename View>
auto SampleAt(const View& view, int64_t s) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, const char, char>;
  return static_cast<decltype(view.data)>(static_cast<Byte*>(view.data) +
                                          s * view.dims.positions * view.dims.hidden *
                                              static_cast<int64_t>(DTypeBytes(view.dtype)));
}

struct Segment {
  int64_t at = 0;  // in the body in device memory
  int64_t bytes = 0;
};

class DeviceSampleCodec {
 public:
  virtual ~DeviceSampleCodec() = default;

  // Of a body: in wire order; together, on the wire; room in device memory, a multiple of 16.
  const std::vector<Segment>& segments() const { return segments_; }
  int64_t wire_bytes() const;
  int64_t device_bytes() const { return device_bytes_; }

  // Can it be told on the host that a body decodes to a NaN? What it cannot tell, Decode finds.
  virtual bool HasNan(absl::string_view body) const { return false; }
  virtual bool FindsNotFinite() const { return true; }

  // Before the only Encode or Decode of a frame: takes what the codec needs of the context beside
  // what `infos` have (kept: its indices). InvalidArgument: that is missing or wrong.
  virtual absl::Status BeginFrame(const FrameContext& context, int64_t samples, Queue* queue) {
    return absl::OkStatus();
  }

  // Queues the encoding of samples, m as the role says. `infos` belong to the jobs.
  virtual absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                              absl::Span<const SampleInfo> infos, Queue* queue) = 0;
  // The bodies have passed Check of the CPU's codec. `infos`: with the tokens that the bodies had.
  // `not_finite`, if not null, is set to 1 where FindsNotFinite and a buffer would not be finite.
  virtual absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                              absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                              Queue* queue) = 0;

  // What stands before the segments on the wire is the host's affair: token ids (predict).
  virtual bool NeedsTokens() const { return false; }
  virtual int64_t MaxPrefixBytes() const { return 0; }
  virtual void AppendPrefix(const SampleInfo& info, std::string* out) const {}
  // The bytes of the prefix of a body; its token ids are appended.
  virtual int64_t ReadPrefix(absl::string_view body, std::vector<uint32_t>* tokens) const {
    return 0;
  }

  // For codecs with state that both ends share. After the only Encode or Decode of a frame, and
  // after the queue was waited for: which of its samples both ends use.
  virtual bool KeepsState() const { return false; }
  virtual absl::Status EndFrame(absl::Span<const uint8_t> used, Queue* queue) {
    return absl::OkStatus();
  }
  virtual absl::StatusOr<uint64_t> StateHash(Queue* queue) { return 0; }

  // As SampleCodec's, in the same bytes, after all that was queued. Errors of the device.
  virtual absl::Status SaveState(StateWriter* to, Queue* queue) { return absl::OkStatus(); }
  virtual absl::Status LoadState(StateReader* from, Queue* queue) { return absl::OkStatus(); }

 protected:
  void Append(int64_t bytes);                  // a segment
  void Embed(const DeviceSampleCodec& inner);  // all segments of another codec's body
  std::vector<Segment> segments_;
  int64_t device_bytes_ = 0;
};

// A body from the device to `*to` in pinned memory, which moves on; queued but for the prefix.
absl::Status BodyToHost(const DeviceSampleCodec& codec, const uint8_t* body, const SampleInfo& info,
                        Queue* queue, char** to);
// A body, which was checked and lies in pinned memory, to the device; its tokens are appended.
absl::Status BodyToDevice(const DeviceSampleCodec& codec, absl::string_view from, uint8_t* body,
                          std::vector<uint32_t>* tokens, Queue* queue);

// The CPU's codec, to Check bytes from outside; of `kept`, that of its values.
absl::StatusOr<std::unique_ptr<SampleCodec>> MakeChecker(const CodecSpec& spec,
                                                         const CodecOptions& options);

enum class Role {
  kDirect,  // no buffers
  kDelta,   // m: read, added to, written
  kKey,     // m: written
};

// Unimplemented: what no kernel here does, with what to use instead. `spec` is valid.
absl::StatusOr<std::unique_ptr<DeviceSampleCodec>> MakeDeviceSampleCodec(
    const CodecSpec& spec, const SampleShape& shape, const CodecOptions& options, Role role);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_BODY_H_
