// Link: what a session needs of the network. Declared here, implemented by daemon/ over gRPC and by
// worker/link/memory_link.h in memory (plain, shaped, faulty).
//
// Ordered, at most once, bounded. The first error is final: every later call returns it, and the
// session ends; nothing inside a link retries. Errors don't say which link: the session puts that
// in front of them, once. Thread: one sending thread, one receiving thread; Cancel from any thread.
#ifndef ISTHMUS_WORKER_LINK_LINK_H_
#define ISTHMUS_WORKER_LINK_LINK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::worker {

// A header and its payload; header.payload_bytes and checksum are filled by the session, and
// checked by it at the other end.
struct Frame {
  FrameHeader header;
  std::string payload;
  std::chrono::steady_clock::time_point begun{};  // by Receive: when its first byte came
  // By Receive, of a frame of several chunks that it waited for: bytes after the first chunk and
  // how long they took to come. What lay here already when it was asked for shows no rate: 0.
  int64_t train_bytes = 0;
  std::chrono::nanoseconds train_time{};
};

// Of header and payload, without the transport's framing.
inline int64_t FrameBytes(const Frame& frame) {
  return static_cast<int64_t>(frame.header.ByteSizeLong() + frame.payload.size());
}

class Link {
 public:
  virtual ~Link() = default;

  // Blocks while the window is full: that is the back-pressure. DeadlineExceeded: no progress for
  // `timeout`.
  virtual absl::Status Send(Frame frame, absl::Duration timeout) = 0;

  // Blocks until a frame is whole. DeadlineExceeded: nothing arrived for `timeout`.
  // OutOfRange: the peer called Finish and everything it sent was received; nothing more will come
  // (the orderly end). A header whose payload_bytes exceeds `max_payload_bytes` is an error: memory
  // is bounded by the plan, not by the peer.
  virtual absl::StatusOr<Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) = 0;

  // Ends both directions with `why`; the peer's calls fail with a status that contains why's
  // message. Returns at once. After a clean end of the session `why` is Cancelled("done").
  virtual void Cancel(absl::Status why) = 0;

  // Waits until what was sent has been handed to the peer, then closes the sending direction. The
  // orderly end of a session.
  virtual absl::Status Finish(absl::Duration timeout) = 0;

  // The peer knows CODEC_STATE frames, as this end does. An older one does not: it said so when the
  // link opened.
  virtual bool peer_exchanges_codec_state() const = 0;

  // Bytes this end has put on the wire so far, framing of the transport included where it is known
  // (>= header + payload).
  virtual int64_t wire_bytes_sent() const = 0;
};

// Ends the session with its first error. Thread: any.
using FailSession = std::function<void(absl::Status)>;

// Opens the links of a plan: the lower rank dials, the upper one waits for the dial.
class LinkOpener {
 public:
  virtual ~LinkOpener() = default;
  // Unavailable: nobody is there, or does not take the link; FailedPrecondition: the peer is at
  // another generation (it says which).
  virtual absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link,
                                                     int my_rank, absl::Duration timeout) = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_LINK_H_
