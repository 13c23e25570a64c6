// Hosts and links that nobody measured, for plans without a daemon. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_OFFLINE_TOPOLOGY_FILE_H_
#define ISTHMUS_COORDINATOR_CLI_OFFLINE_TOPOLOGY_FILE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/plan.pb.h"

namespace isthmus::cli {

constexpr double kMostGflops = 1e9;

struct HostFigures {
  double gflops = 0;         // as `isthmus nodes` shows it: of a forward pass
  int64_t memory_bytes = 0;  // a daemon may use
};

// `links`: a table as `isthmus-wan show` prints it in full; no link is faster than the uplink of
// the one end and the downlink of the other. `hosts`: CSV with the header
// `host,gflops,memory` and a row a host of the table ("lab,120,32GiB"; # starts a comment line); a
// host without a row, or an empty cell, has `others`. Every host has room on disk, and lists no
// data. InvalidArgument names the line, the value and what it may be.
absl::StatusOr<Topology> MakeTopology(absl::string_view links, absl::string_view hosts,
                                      const HostFigures& others);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_OFFLINE_TOPOLOGY_FILE_H_
