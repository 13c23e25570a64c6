// worker::Link over one bidirectional gRPC stream (Peer.Link). Frames go in chunks; gRPC's flow
// control is the back-pressure.
//
// In flight at most: what the HTTP/2 window of the receiving end lets through (the plan's
// window_bytes at the dialling end, the server's own at the serving end, see PeerServerOptions)
// plus one chunk and the socket buffers. Each direction is: hello, frames, then `end` (Finish) or
// `error` (Cancel). A stream that stops without either counts as broken. wire_bytes_sent counts
// serialized messages, gRPC's 5-byte prefix of each and HTTP/2's 9-byte frame headers; TLS, TCP and
// IP are not counted. Thread: as worker::Link says. The threads are the caller's; Cancel at the
// dialling end starts one more, once, to tell the peer why.
#ifndef ISTHMUS_DAEMON_NET_GRPC_LINK_H_
#define ISTHMUS_DAEMON_NET_GRPC_LINK_H_

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "daemon/net/frame_chunks.h"
#include "daemon/net/link_stream.h"
#include "daemon/net/uplink_gate.h"
#include "daemon/net/watchdog.h"
#include "worker/link/link.h"

namespace isthmus::daemon {

struct GrpcLinkOptions {
  int64_t send_chunk_bytes = kDefaultChunkBytes;
  int64_t receive_chunk_bytes = kMaxChunkBytes;  // what the peer's hello announced
  absl::Duration goodbye =
      absl::Seconds(1);  // Cancel at the dialling end: so long may telling the peer why take
  Watchdog* watchdog = nullptr;             // outlives the link
  UplinkGate* uplink = nullptr;             // too; null: frames wait for nothing but the window
  bool peer_exchanges_codec_state = false;  // from its hello
};

class GrpcLink : public worker::Link {
 public:
  // Frames that came while Finish waited and that nobody has asked for yet.
  static constexpr size_t kMaxStash = 8;

  // Hellos have been exchanged.
  GrpcLink(const GrpcLinkOptions& options, std::unique_ptr<LinkStream> stream);
  ~GrpcLink() override;

  absl::Status Send(worker::Frame frame, absl::Duration timeout) override;
  absl::StatusOr<worker::Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) override;
  void Cancel(absl::Status why) override;
  absl::Status Finish(absl::Duration timeout) override;
  bool peer_exchanges_codec_state() const override { return options_.peer_exchanges_codec_state; }
  int64_t wire_bytes_sent() const override { return wire_bytes_.load(std::memory_order_relaxed); }

 private:
  absl::Status BeginWrite();
  void EndWrite();
  // A frame that Finish read, or an error, or nothing: then the caller may read.
  absl::StatusOr<absl::optional<worker::Frame>> BeginRead(absl::Duration timeout);
  absl::Status EndRead(const absl::Status& result);  // the link's error, if it has one
  absl::StatusOr<worker::Frame> ReadFrame(int64_t max_payload_bytes, Watchdog::Watch* watch);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool WriteChunk(const LinkChunk& chunk);
  bool WriteInTurn(Lane lane, const LinkChunk& chunk);
  absl::Status Fail(const absl::Status& why);  // keeps the first error and returns it
  absl::Status WriteFailed();
  absl::Status Expired(absl::string_view what, absl::Duration timeout) const;
  absl::Status DrainPeer();
  void SayGoodbye();

  const GrpcLinkOptions options_;
  const std::unique_ptr<LinkStream> stream_;
  std::atomic<int64_t> wire_bytes_{0};
  std::atomic<bool> failed_{false};

  FrameAssembler assembler_;  // of whoever set reading_

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // the first; final
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<worker::Frame> stash_
      ABSL_GUARDED_BY(mutex_);  // read by Finish while it waited for the peer's end
  int64_t max_payload_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the largest that Receive was given
  bool end_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_received_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // stream_->End was called: no Kill any more
  std::thread goodbye_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_GRPC_LINK_H_
