// What `isthmus testnet` runs where: the link table with the coordinator's node, and the command
// line of each program. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_PLAN_H_
#define ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cli/job/job_yaml.h"

namespace isthmus::cli {

constexpr char kHub[] =
    "hub";  // the coordinator's node; its links are unlimited unless the table names it
constexpr int kCoordinatorPort = 7070;
constexpr int kCoordinatorHttpPort = 7080;
constexpr char kWanName[] = "wan";  // of commands
constexpr char kCoordinatorName[] = "coordinator";
constexpr int kDaemonPort = 7071;
constexpr int kDaemonHttpPort = 7081;

struct TestnetOptions {
  int nodes = 0;                          // daemons; 0: as many as the link table names
  std::string links;                      // a preset or a file, or:
  std::string rate, delay, jitter, loss;  // the same for every pair of daemons
  std::string uplink, downlink;           // of every daemon, with all of its links
  int mtu = 1500;
  uint64_t seed = 1;  // of losses and jitter
  JobSource job_file;
  std::string data_dir = "data";  // of every daemon
  std::string run_dir;            // empty: a temporary one, deleted after a success
  std::string summary_file;
  int threads = 1;             // compute threads a daemon
  double ready_timeout_s = 0;  // until all have joined and measured; 0: by their number
  bool http = false;           // metrics pages of coordinator and daemons
  bool keep = false;           // leave everything running after the job, until Ctrl-C
  bool json = false;
};

struct TestnetPrograms {  // paths
  std::string wan, coordinator, daemon, cli;
};

struct TestnetNode {
  std::string name;
  std::string address;  // without port
  std::string uplink;   // its daemon is told, too; empty: it has none of its own
};

struct TestnetLinks {
  std::string csv;                   // what isthmus-wan reads
  std::vector<std::string> daemons;  // node names, without the hub
};

// What the links of `node` share, as a row "NODE,@up,RATE,,," of the table says, for isthmusd
// --uplink: "20000kbit". Empty: they share nothing, or isthmusd takes no such rate (it takes 500
// kbit/s to 100 Gbit/s), so that its daemon is told nothing.
std::string UplinkOf(const TestnetLinks& links, absl::string_view node);

// InvalidArgument: options that exclude each other or are missing.
absl::Status CheckTestnetOptions(const TestnetOptions& options);

// --rate, --delay, --jitter, --loss, --uplink, --downlink.
TestnetLinks UniformLinks(const TestnetOptions& options);

// From a full table as `isthmus-wan show` prints it: the first `nodes` of it (0: all), and the hub.
// InvalidArgument: fewer there.
absl::StatusOr<TestnetLinks> LinksOfTable(absl::string_view csv, int nodes);

// A row of "NODE,@up,RATE,,," or "NODE,@down,RATE,,,": what all links of a node share.
bool IsEnd(absl::string_view to);

bool TableNamesHub(absl::string_view csv);

// The nodes in RUN_DIR/wan/wan.json. DataLoss: not such a file.
absl::StatusOr<std::vector<TestnetNode>> ParseWanNodes(absl::string_view json);

struct TestnetCommand {
  std::string name;  // its log is RUN_DIR/NAME.log
  std::vector<std::string> argv;
};

TestnetCommand WanCommand(const TestnetOptions& options, const TestnetPrograms& programs,
                          const std::string& run_dir);
TestnetCommand CoordinatorCommand(const TestnetOptions& options, const TestnetPrograms& programs,
                                  const std::string& run_dir, const TestnetNode& hub);
TestnetCommand DaemonCommand(const TestnetOptions& options, const TestnetPrograms& programs,
                             const std::string& run_dir, const TestnetNode& hub,
                             const TestnetNode& node);
// `isthmus ARGUMENTS` on the hub.
TestnetCommand CliCommand(const TestnetPrograms& programs, const std::string& run_dir,
                          const TestnetNode& hub, const std::vector<std::string>& arguments);
// `isthmus nodes --wait`: the daemons measure one link after the other, each in a few seconds.
std::vector<std::string> WaitArguments(const TestnetOptions& options, int daemons);
std::vector<std::string> SubmitArguments(const TestnetOptions& options);

// In the environment of the watching command: the job ends with the watching.
constexpr char kInTestnet[] = "ISTHMUS_IN_TESTNET";

// Of a coordinator's state directory, the step of the newest checkpoint; -1: there is none.
int64_t NewestCheckpoint(const std::string& state_dir);
// What is kept of a job whose network went away, and how to go on.
std::string CutOffWords(const std::string& state_dir, int64_t checkpoint_step);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_PLAN_H_
