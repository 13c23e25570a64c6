// Measures what lies between this daemon and another one: round trip and rate, this one -> that
// one, and the other way where that one can't dial; where it could pay, how many TCP connections
// side by side reach that rate.
//
// Round trip: the smallest of several Echos. Rate: base/link_rate.h. Every call names the daemon
// that is meant: another one at its address refuses. A path that drops large packets is found by a
// message of kLargeBytes that does not come through where small ones do. Thread: any.
#ifndef ISTHMUS_DAEMON_NET_PROBE_H_
#define ISTHMUS_DAEMON_NET_PROBE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/link_rate.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace isthmus::daemon {

struct ProbeOptions {
  absl::Duration budget = absl::Seconds(10);  // all of one peer
  absl::Duration connect = absl::Seconds(5);
  int echos = 5;
  rpc::Dialling dialling;
  bool both_ways = false;                     // the rate peer -> this daemon too
  bool several = true;                        // tries several connections where that could pay
  int64_t max_bytes = RateSearch::kMaxBytes;  // of one round, see RateSearch
};

class Prober {
 public:
  static constexpr int64_t kLargeBytes = 4 << 10;  // more than any packet that must pass
  static constexpr absl::Duration kSideBySide = absl::Seconds(10);

  // links(0) is this daemon -> peer; a peer that can't be measured gives `error` in it, within the
  // budget, kDiagnosis, and the first round of each direction. Several connections take up to
  // kSideBySide more. With both_ways, links(1) is peer -> this daemon where that
  // was measured.
  ProbeResult Measure(const std::string& my_id, const NodeInfo& peer, const ProbeOptions& options);

  // Does a message of kLargeBytes come through, there and back, to the daemon that is meant?
  // FailedPrecondition: another daemon answers. Unavailable: the path drops large packets, with the
  // cure. OK where it does, where nothing passes, and for a daemon that knows no such question.
  absl::Status CheckPath(const NodeInfo& peer, grpc::Channel* channel, absl::Duration patience,
                         const rpc::Dialling& dialling);

  // The way of checkpoints to and from the coordinator at HOST:PORT, each direction within the
  // budget. ResourceExhausted: too many daemons measure theirs, try again. Unimplemented: an older
  // coordinator.
  absl::StatusOr<CoordinatorPath> MeasurePath(const std::string& coordinator,
                                              const ProbeOptions& options);

  // A measurement that runs ends with an error, and every later one.
  void Cancel();

 private:
  class Call;  // makes a running call known to Cancel
  using Channels = std::vector<std::shared_ptr<grpc::Channel>>;
  bool cancelled() const;
  absl::Status Connect(grpc::Channel* channel, absl::Duration timeout);
  absl::Status Echo(grpc::Channel* channel, const std::string& peer_id, int64_t bytes,
                    int64_t reply_bytes, absl::Duration timeout);
  absl::StatusOr<double> RoundTrip(grpc::Channel* channel, const NodeInfo& peer, int echos,
                                   absl::Time deadline);
  absl::StatusOr<double> Rate(grpc::Channel* channel, const NodeInfo& peer, double round_trip_s,
                              bool download, absl::Time deadline, int64_t max_bytes,
                              int64_t* taken);
  // Where that could pay, tries several connections, and puts rate and number into `link`.
  void SearchConnections(const NodeInfo& peer, const ProbeOptions& options, bool download,
                         Channels* channels, LinkMeasurement* link, int64_t* taken);
  struct SideBySideRound {
    int connections = 0;
    bool download = false;
    int64_t bytes = 0;  // of all of them at most
    double round_trip_s = 0;
    absl::Time until;     // nothing is begun later
    absl::Time deadline;  // what has not ended then tells nothing
  };
  // What the connections carry together; `channels` grows to as many. 0: no figure.
  double SideBySide(const NodeInfo& peer, const ProbeOptions& options, const SideBySideRound& round,
                    Channels* channels, int64_t* taken);
  std::string LargeMessageFault(const NodeInfo& peer, const rpc::Dialling& dialling);

  mutable Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_PROBE_H_
