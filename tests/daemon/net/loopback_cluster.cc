#include "tests/daemon/net/loopback_cluster.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/rng.h"
#include "daemon/net/frame_chunks.h"

namespace isthmus::daemon {

worker::Frame MakeFrame(int64_t step, size_t bytes) {
  worker::Frame frame;
  frame.header.set_step(step);
  frame.header.set_payload_bytes(bytes);
  frame.payload.resize(bytes);
  for (size_t i = 0; i < bytes; i += 97) frame.payload[i] = static_cast<char>(Mix64(step + i));
  return frame;
}

LoopbackCluster::LoopbackCluster(int stages, int64_t server_window_bytes,
                                 int64_t uplink_bits_per_s) {
  for (int stage = 0; stage < stages; ++stage) {
    auto node = std::make_unique<Node>(uplink_bits_per_s);
    PeerServerOptions options;
    options.window_bytes = server_window_bytes;
    options.board = &node->board;
    options.watchdog = &watchdog_;
    options.hello_timeout = absl::Milliseconds(300);
    auto server = PeerServer::Start(options);
    ISTHMUS_CHECK(server.ok());
    node->server = std::move(server).value();
    node->opener = std::make_unique<GrpcLinkOpener>(LinkOpenerOptions{
        absl::StrCat("id-", stage), &node->board, &watchdog_, {}, nullptr, &node->uplink});
    nodes_.push_back(std::move(node));
  }
}

LoopbackCluster::~LoopbackCluster() {
  for (auto& node : nodes_) node->server->Shutdown();
}

void LoopbackCluster::Prepare(Plan* plan) {
  for (int stage = 0; stage < plan->ranks_size(); ++stage) {
    plan->mutable_ranks(stage)->set_address(
        absl::StrCat("127.0.0.1:", nodes_[stage]->server->port()));
    nodes_[stage]->board.SetSession(plan->job_id(), plan->generation());
  }
}

Plan TwoStagePlan() {
  Plan plan;
  plan.set_job_id("job-1");
  plan.set_generation(7);
  for (int stage = 0; stage < 2; ++stage) {
    RankPlan* each = plan.add_ranks();
    each->set_stage(stage);
    each->set_node_name(stage == 0 ? "node-a" : "node-b");
    each->set_node_id(absl::StrCat("id-", stage));
  }
  LinkPlan* link = plan.add_links();
  link->set_id("b0");
  link->set_upper(1);
  link->set_chunk_bytes(kMinChunkBytes);
  link->set_window_bytes(1 << 20);
  return plan;
}

}  // namespace isthmus::daemon
