// A frame on the wire: a header chunk, which may hold the first bytes of the payload, then data
// chunks. Cutting and putting together, with bounds on what a peer may make us hold. Thread:
// values, one owner each.
#ifndef ISTHMUS_DAEMON_NET_FRAME_CHUNKS_H_
#define ISTHMUS_DAEMON_NET_FRAME_CHUNKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/peer.pb.h"
#include "worker/link/link.h"

namespace isthmus::daemon {

constexpr int64_t kMinChunkBytes = 64 << 10;
constexpr int64_t kMaxChunkBytes = 512 << 10;
constexpr int64_t kDefaultChunkBytes = 256 << 10;
// Of a frame longer than twice that the first chunk has no more, so that what follows it shows the
// link's rate (worker::Frame).
constexpr size_t kLeadingBytes = 16 << 10;
constexpr size_t kMaxHeaderBytes = 1 << 20;  // serialized FrameHeader: 260,000 sample ids

// What a plan asks for, within the limits; 0 is the default.
int64_t ChunkBytesOf(const LinkPlan& link);

// Gives the chunks of one frame in order.
class FrameCutter {
 public:
  FrameCutter(worker::Frame frame, int64_t chunk_bytes);
  // False: the frame is out. `chunk` is overwritten.
  bool Next(LinkChunk* chunk);

 private:
  worker::Frame frame_;
  const size_t chunk_bytes_;
  size_t offset_ = 0;
  bool header_out_ = false;
};

// Puts frames together again. After an error it is of no more use.
class FrameAssembler {
 public:
  // `chunk_bytes`: what the peer said it sends at most.
  explicit FrameAssembler(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // True: a frame is whole, Take() it before the next Add. InvalidArgument: sizes or order the
  // sender must not use. `chunk` is a header or data chunk.
  absl::StatusOr<bool> Add(LinkChunk chunk, int64_t max_payload_bytes);
  worker::Frame Take();
  bool in_frame() const { return in_frame_; }

 private:
  absl::Status Start(LinkChunk* chunk, int64_t max_payload_bytes);

  const int64_t chunk_bytes_;
  worker::Frame frame_;
  bool in_frame_ = false;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_FRAME_CHUNKS_H_
