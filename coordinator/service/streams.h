// The streams of daemons that are open: what is to be said goes into the queue of a stream, and a
// stream can be ended. Knows nothing of daemons but whether one has said who it is. Thread: any.
// Its mutex is taken last, inside that of Cores. Bounds: kMaxDaemonStreams, kDaemonStreamQueue.
#ifndef ISTHMUS_COORDINATOR_SERVICE_STREAMS_H_
#define ISTHMUS_COORDINATOR_SERVICE_STREAMS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "base/tls/certificate.h"
#include "proto/control.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxDaemonStreams = 400;
// Messages to a daemon that does not read; one more ends its stream.
constexpr size_t kDaemonStreamQueue = 64;

// A daemon's stream, as its two threads see it. Owned by the handler, which has it in Streams from
// Open to Close.
struct DaemonStream {
  explicit DaemonStream(std::function<void()> cancel_stream)
      : cancel(std::move(cancel_stream)), outgoing(kDaemonStreamQueue) {}
  const std::function<void()> cancel;         // ends the stream; any thread, any number of times
  BoundedQueue<CoordinatorMessage> outgoing;  // the handler's writer drains it
  std::string peer;  // where it comes from, as gRPC has it: "ipv4:10.0.0.1:53412"; set before use
  uint64_t number = 0;                                  // by Open: never 0, never used twice
  std::string node_id;                                  // empty until registered; the handler's
  std::shared_ptr<const tls::Certificate> certificate;  // null: over plain text; set before use
};

class Streams {
 public:
  // ResourceExhausted: kMaxDaemonStreams are open. Unavailable: after EndAll.
  absl::Status Open(DaemonStream* daemon, absl::Time now);
  void Close(const DaemonStream& daemon);
  void SetRegistered(uint64_t stream);

  // Those of a stream that is not open do nothing. `name` of its daemon is for the log.
  void Send(uint64_t stream, const std::string& name, CoordinatorMessage message);
  void End(uint64_t stream);
  void EndAll();
  void EndUnregistered(absl::Time opened_before);

  bool IsOpen(uint64_t stream) const;
  std::string Peer(uint64_t stream) const;
  std::shared_ptr<const tls::Certificate> CertificateOf(uint64_t stream) const;

 private:
  struct Line {
    DaemonStream* daemon = nullptr;
    absl::Time opened;
    bool registered = false;
  };

  mutable Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Line> open_ ABSL_GUARDED_BY(mutex_);  // by number
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_STREAMS_H_
