// The two ends of a Peer.Link call behind one face, so that GrpcLink is written once: the dialling
// end owns its channel (a connection of its own), the serving end borrows the call of a handler
// thread and gives it back. Thread: one reader, one writer; Kill from any thread until End.
#ifndef ISTHMUS_DAEMON_NET_LINK_STREAM_H_
#define ISTHMUS_DAEMON_NET_LINK_STREAM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/net/link_header.h"
#include "proto/peer.pb.h"

namespace grpc {
class Channel;
class ServerContext;
template <class W, class R>
class ServerReaderWriter;
}  // namespace grpc

namespace isthmus::rpc {
class TlsIdentity;
}  // namespace isthmus::rpc

namespace isthmus::daemon {

class LinkStream {
 public:
  virtual ~LinkStream() = default;
  // False: nothing more will come or go; WhyBroken() says why.
  virtual bool Read(LinkChunk* chunk) = 0;
  virtual bool Write(const LinkChunk& chunk) = 0;
  // Ends the call at once: reads and writes that wait return false.
  virtual void Kill(const absl::Status& why) = 0;
  // True: the peer of a killed call gets `why` (a server's status). False: it only sees that the
  // call broke.
  virtual bool kill_tells_why() const = 0;
  // As Kill, but for the peer as if the connection had broken: it may dial again.
  virtual void Drop() { Kill(absl::UnavailableError("the connection was given up")); }
  // After a failed Read or Write, as far as this end knows. Any thread, also both at once.
  virtual absl::Status WhyBroken() = 0;
  // After WhyBroken: the connection broke, or may have, and nobody has ended the call.
  virtual bool may_resume() { return false; }
  // How often a connection that broke was replaced, of all that it uses. Any thread.
  virtual int64_t mended() const { return 0; }
  // What the peer said beside its hello, once that was read.
  virtual LinkHeader peer_header() const { return {}; }
  // The orderly end, when nobody reads or writes any more: closes this end with `mine`; the
  // dialling end waits for the serving one's answer.
  virtual absl::Status End(const absl::Status& mine) = 0;
};

// The dialling end. Its channel has the window of the link for what it receives. With `tls` it
// breaks where the certificate of the other end is revoked, at its first message or later.
std::unique_ptr<LinkStream> DialLinkStream(std::shared_ptr<grpc::Channel> channel,
                                           std::shared_ptr<const rpc::TlsIdentity> tls = nullptr,
                                           const LinkHeader& header = {});

// What a handler thread and the link that uses its call share.
struct ServerCall {
  grpc::ServerContext* context = nullptr;
  grpc::ServerReaderWriter<LinkChunk, LinkChunk>* stream = nullptr;
  LinkHeader header;   // of the dial
  bool taken = false;  // of a redial, by its link; guarded by the board of redials
  Mutex mutex;
  CondVar changed;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  absl::Status result ABSL_GUARDED_BY(mutex);
};

// The serving end. The handler waits until `call->ended`, then returns `call->result`.
// `header` goes with its first message.
std::unique_ptr<LinkStream> ServeLinkStream(std::shared_ptr<ServerCall> call,
                                            const LinkHeader& header = {});

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_LINK_STREAM_H_
