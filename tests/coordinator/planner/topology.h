// Builders of topologies and jobs for the planner's tests. Thread: pure functions.
#ifndef ISTHMUS_TESTS_COORDINATOR_PLANNER_TOPOLOGY_H_
#define ISTHMUS_TESTS_COORDINATOR_PLANNER_TOPOLOGY_H_

#include <string>

#include "proto/job.pb.h"
#include "proto/job/job_defaults.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// A daemon that computes `gflops` billion operations a second in both passes, and lists text.txt of
// `text_bytes`.
inline NodeInfo MakeNode(const std::string& name, double gflops,
                         int64_t memory_bytes = int64_t{8} << 30,
                         int64_t disk_bytes = int64_t{50} << 30, int64_t text_bytes = 4 << 20) {
  NodeInfo n;
  n.set_id("id-" + name);
  n.set_name(name);
  n.set_address(name + ":7071");
  n.set_threads(1);
  n.set_memory_bytes(memory_bytes);
  n.set_disk_bytes(disk_bytes);
  n.set_block_flops(1e9);
  n.set_block_forward_s(1 / gflops);
  n.set_block_backward_s(2 / gflops);
  n.set_data_listed(true);
  DataFile* f = n.add_data_files();
  f->set_path("text.txt");
  f->set_bytes(text_bytes);
  f->set_format("bytes");
  f->set_contents(static_cast<uint64_t>(text_bytes));
  return n;
}

inline void Join(Topology* t, const std::string& a, const std::string& b, double mbit,
                 double round_trip_ms) {
  for (bool up : {true, false}) {
    LinkMeasurement* m = t->add_links();
    m->set_from_id("id-" + (up ? a : b));
    m->set_to_id("id-" + (up ? b : a));
    m->set_rate_bits_per_s(mbit * 1e6);
    m->set_round_trip_s(round_trip_ms / 1e3);
  }
}

// Every pair at the same rate and round trip.
inline void JoinAll(Topology* t, double mbit, double round_trip_ms) {
  for (int i = 0; i < t->nodes_size(); ++i) {
    for (int j = i + 1; j < t->nodes_size(); ++j)
      Join(t, t->nodes(i).name(), t->nodes(j).name(), mbit, round_trip_ms);
  }
}

inline JobSpec MakeJob(int layers = 6, int hidden = 256, int context = 128) {
  JobSpec job;
  job.set_name("bible");
  job.mutable_model()->set_layers(layers);
  job.mutable_model()->set_hidden(hidden);
  job.mutable_model()->set_heads(4);
  job.mutable_model()->set_context(context);
  job.mutable_data()->set_path("text.txt");
  job.mutable_recipe()->set_steps(300);
  job.mutable_recipe()->set_global_batch(32);
  job.mutable_recipe()->set_micro_batch(4);
  job.mutable_recipe()->set_learning_rate(1e-3);
  job.mutable_recovery()->set_automatic(false);  // those who test them turn them on
  job.mutable_recovery()->set_follow(false);
  job.mutable_checkpoint()->set_local(0);
  FillDefaults(&job);
  return job;
}

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_PLANNER_TOPOLOGY_H_
