// worker::LinkOpener over gRPC: dials the upper stage of a link, or waits for the dial of the lower
// one (the other way round where the plan says upper_dials), and exchanges hellos. Before its hello
// the dialling end sees that the right daemon answers and that large messages come through. A link
// of several connections is dialled as one; where the peer answers that it is several, the others
// follow. An older daemon answers for one. Thread: any.
#ifndef ISTHMUS_DAEMON_NET_LINK_OPENER_H_
#define ISTHMUS_DAEMON_NET_LINK_OPENER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rpc/channel.h"
#include "daemon/net/dial_board.h"
#include "daemon/net/probe.h"
#include "daemon/net/uplink_gate.h"
#include "daemon/net/watchdog.h"
#include "worker/link/link.h"

namespace isthmus::daemon {

struct LinkOpenerOptions {
  std::string node_id;         // told to the peer
  DialBoard* board = nullptr;  // outlive the opener and its links
  Watchdog* watchdog = nullptr;
  rpc::Dialling dialling;
  // Told, by a thread of the link, of connections to `peer_node_id` that break and are mended
  // (ResumingOptions).
  std::function<void(const std::string& peer_node_id, const std::string& trouble)> on_trouble;
  UplinkGate* uplink = nullptr;  // outlives the links; null: none
};

// Of the links that `rank` serves.
DialBoard::Diallers DiallersOf(const Plan& plan, int rank);

class GrpcLinkOpener : public worker::LinkOpener {
 public:
  explicit GrpcLinkOpener(LinkOpenerOptions options) : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<worker::Link>> Open(const Plan& plan, const LinkPlan& link,
                                                     int my_rank, absl::Duration timeout) override;

  // Opens that wait end with `why` within half a second, later ones at once. Final: a new session
  // gets a new opener.
  void Cancel(const absl::Status& why);

 private:
  using Clock = std::chrono::steady_clock;
  using Channels = std::vector<std::shared_ptr<grpc::Channel>>;
  using Streams = std::vector<std::unique_ptr<LinkStream>>;  // of a link, by connection

  absl::StatusOr<std::unique_ptr<worker::Link>> Dial(const Plan& plan, const LinkPlan& link,
                                                     const RankPlan& peer, absl::Duration timeout);
  absl::Status Connect(grpc::Channel* channel, absl::Duration timeout,
                       Clock::time_point deadline) const;
  // A call on each channel, which joins `streams`, and hellos; the peer's to the first of them.
  absl::StatusOr<LinkHello> DialStreams(const Channels& channels, const LinkHello& hello,
                                        absl::Duration timeout, Clock::time_point deadline,
                                        Streams* streams);
  // The stream from `first` on that failed; -1: none did.
  int ExchangeHellos(const Streams& streams, int first, LinkHello hello,
                     std::vector<LinkChunk>* answers);
  absl::StatusOr<std::unique_ptr<worker::Link>> Serve(const Plan& plan, const LinkPlan& link,
                                                      const RankPlan& peer, absl::Duration timeout);
  // The dial of the next connection, answered with `hello`, joins `streams`; the peer's hello.
  absl::StatusOr<LinkHello> ServeStream(LinkHello hello, absl::Duration timeout,
                                        Clock::time_point deadline, Streams* streams);
  rpc::ChannelOptions ChannelTo(const LinkPlan& link, const RankPlan& peer) const;
  // Over a stream that outlives its connection, where the peer knows how.
  std::unique_ptr<LinkStream> Resuming(const LinkPlan& link, const RankPlan& peer,
                                       const LinkHello& hello,
                                       const std::shared_ptr<std::atomic<bool>>& reached,
                                       std::unique_ptr<LinkStream> stream) const;
  std::unique_ptr<worker::Link> MakeLink(const LinkPlan& link, const RankPlan& peer, LinkHello mine,
                                         const LinkHello& theirs, Streams streams) const;
  LinkHello Hello(const Plan& plan, const LinkPlan& link, const RankPlan& peer) const;
  absl::Status cancelled() const;

  const LinkOpenerOptions options_;
  Prober prober_;
  mutable Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  std::set<LinkStream*> dialling_ ABSL_GUARDED_BY(mutex_);  // hello sent, answer not yet there
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_LINK_OPENER_H_
