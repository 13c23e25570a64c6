// Measures an emulated network from its nodes: starts isthmus-wan, opens sockets inside nodes,
// sends and counts. Used by wan_test (does it hold?) and wan_measure (how well?).
//
// Thread: the functions start their own threads and join them. They raise those threads' priority
// where they may, so that a busy machine is not measured instead of the emulator.
#ifndef ISTHMUS_TESTS_DEPLOY_WAN_PROBE_H_
#define ISTHMUS_TESTS_DEPLOY_WAN_PROBE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/testnet/netns.h"
#include "deploy/testnet/run_dir.h"

namespace isthmus::testnet {

// Whether namespaces and TUN devices can be made here; the status says why not.
absl::Status CanEmulate();

// A child process whose stdout and stderr are read together.
class Child {
 public:
  // `before_exec` runs in the child. The arguments follow the program's path.
  static absl::StatusOr<Child> Start(const std::string& program,
                                     const std::vector<std::string>& arguments,
                                     const std::function<void()>& before_exec = nullptr);
  Child(Child&&) = default;
  Child& operator=(Child&&) = default;
  ~Child();  // ends it if it still runs: SIGTERM, and SIGKILL after a while

  pid_t pid() const { return *pid_; }
  void Signal(int signal) const;
  // Its output up to the first newline that is not consumed yet.
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);
  // Its exit code (128 + signal), once it has ended; DeadlineExceeded where it has not.
  absl::StatusOr<int> Wait(absl::Duration timeout);
  const std::string& output() const { return output_; }  // read so far and not taken by ReadLine

 private:
  Child() = default;
  struct PidDeleter {
    void operator()(pid_t* pid) const;
  };
  absl::Status Fill(absl::Time deadline);  // reads some output; OutOfRange at its end
  std::unique_ptr<pid_t, PidDeleter> pid_;
  UniqueFd pipe_;
  std::string output_;
};

// isthmus-wan, ready.
struct Wan {
  Child child;
  std::string run_dir;
  WanInfo info;

  const WanNode& node(int i) const { return info.nodes[i]; }
};
absl::StatusOr<Wan> StartWan(const std::vector<std::string>& arguments);
const std::string& WanProgram();  // the path of isthmus-wan

// A socket that lives inside the node.
absl::StatusOr<UniqueFd> SocketOn(const WanNode& node, int type);

struct RoundTrips {
  int sent = 0;
  std::vector<double> ms;  // sorted
  double median_ms() const { return ms.empty() ? -1 : ms[ms.size() / 2]; }
};
// UDP ping-pong, one at a time; one without an answer in `timeout` counts as sent only.
absl::StatusOr<RoundTrips> PingPong(const WanNode& a, const WanNode& b, int count,
                                    absl::Duration timeout);

struct UdpResult {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t out_of_order = 0;
  double bits_per_s = 0;  // IP bytes between first and last arrival
};
// Numbered packets of `packet_bytes` (with IP and UDP headers) at `offered_bits_per_s`, `count` of
// them; then waits until nothing came for `quiet`.
absl::StatusOr<UdpResult> UdpSend(const WanNode& from, const WanNode& to, int packet_bytes,
                                  double offered_bits_per_s, int64_t count, absl::Duration quiet);

// The goodput of one TCP stream over `measured`, after `warm_up`.
absl::StatusOr<double> TcpGoodput(const WanNode& from, const WanNode& to, absl::Duration warm_up,
                                  absl::Duration measured);

// CPU seconds that the emulator has used.
absl::StatusOr<double> EmulatorCpuSeconds(const Wan& wan);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_TESTS_DEPLOY_WAN_PROBE_H_
