// Real gRPC links between the stages of a plan, all in one process on loopback: for tests.
//
//   LoopbackCluster cluster(plan.ranks_size());
//   cluster.Prepare(&plan);                       // addresses, and the generation that each stage
//   accepts options.links = cluster.opener(stage);        // a worker::LinkOpener
//
// Thread: the openers from any thread.
#ifndef ISTHMUS_TESTS_DAEMON_NET_LOOPBACK_CLUSTER_H_
#define ISTHMUS_TESTS_DAEMON_NET_LOOPBACK_CLUSTER_H_

#include <memory>
#include <vector>

#include "daemon/net/dial_board.h"
#include "daemon/net/link_opener.h"
#include "daemon/net/peer_service.h"
#include "daemon/net/uplink_gate.h"
#include "daemon/net/watchdog.h"
#include "proto/plan.pb.h"

namespace isthmus::daemon {

// With a payload of so many bytes that no codec made.
worker::Frame MakeFrame(int64_t step, size_t bytes);

class LoopbackCluster : public worker::LinkOpener {
 public:
  // `uplink_bits_per_s`: of each, what its links share; 0: no gate.
  explicit LoopbackCluster(int stages, int64_t server_window_bytes = 16 << 20,
                           int64_t uplink_bits_per_s = 0);
  ~LoopbackCluster() override;

  void Prepare(Plan* plan);
  absl::StatusOr<std::unique_ptr<worker::Link>> Open(const Plan& plan, const LinkPlan& link,
                                                     int my_stage,
                                                     absl::Duration timeout) override {
    return opener(my_stage)->Open(plan, link, my_stage, timeout);
  }
  GrpcLinkOpener* opener(int stage) { return nodes_[stage]->opener.get(); }
  DialBoard* board(int stage) { return &nodes_[stage]->board; }
  PeerServer* server(int stage) { return nodes_[stage]->server.get(); }
  Watchdog* watchdog() { return &watchdog_; }

 private:
  struct Node {
    explicit Node(int64_t uplink_bits_per_s) : uplink(uplink_bits_per_s) {}
    UplinkGate uplink;
    DialBoard board;
    std::unique_ptr<PeerServer> server;
    std::unique_ptr<GrpcLinkOpener> opener;
  };
  Watchdog watchdog_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

// Two stages and one boundary "b0".
Plan TwoStagePlan();

}  // namespace isthmus::daemon

#endif  // ISTHMUS_TESTS_DAEMON_NET_LOOPBACK_CLUSTER_H_
