// The emulated network itself: the nodes' namespaces and devices, and the loop that carries packets
// between them through the Shaper. Everything it made vanishes with it.
//
// Thread: owned by one thread, which calls RunOnce again and again.
// Limits: kMaxNodes nodes; kReadsPerTurn packets from a device before the others and the timers
// have their turn.
#ifndef ISTHMUS_DEPLOY_TESTNET_EMULATOR_H_
#define ISTHMUS_DEPLOY_TESTNET_EMULATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/testnet/control.h"
#include "deploy/testnet/link_table.h"
#include "deploy/testnet/netns.h"
#include "deploy/testnet/run_dir.h"
#include "deploy/testnet/shaper.h"

namespace isthmus::testnet {

struct EmulatorOptions {
  int mtu = 1500;
  ShaperOptions shaper;
};

class Emulator {
 public:
  // FailedPrecondition where the kernel refuses (not root, no TUN).
  static absl::StatusOr<std::unique_ptr<Emulator>> Create(const LinkTable& table,
                                                          const EmulatorOptions& options);

  // `on_readable` runs in RunOnce when `fd` has something to read. The fd must outlive the
  // emulator.
  absl::Status Watch(int fd, std::function<void()> on_readable);
  // Carries what is due and waits for the next packet, timer or watched descriptor, at most
  // max_wait.
  absl::Status RunOnce(absl::Duration max_wait);

  // The number of links, or of uplinks or downlinks, changed.
  absl::StatusOr<int> Change(const LinkChange& change);
  std::string StatsJson() const;
  WanInfo Info() const;  // scheduling is left to the caller
  std::vector<int> ProcessesInside() const;

 private:
  struct Lateness {  // of deliveries: how exact this machine let us be
    uint64_t count = 0;
    int64_t sum_ns = 0;
    int64_t max_ns = 0;
  };

  Emulator(const LinkTable& table, const EmulatorOptions& options);
  absl::Status Start();
  void PaceTurns();
  void DeliverDue();
  void ReadDevice(int node);
  void Route(int node, absl::Span<const uint8_t> packet, int64_t now_ns);
  void Write(int node, absl::Span<const uint8_t> packet);
  void ArmTimer(int64_t deadline_ns);

  const std::vector<std::string> names_;
  const EmulatorOptions options_;
  Shaper shaper_;
  std::vector<NodeNet> nodes_;
  std::map<int, std::function<void()>> watched_;
  UniqueFd epoll_;
  UniqueFd timer_;
  int64_t started_ns_ = 0;
  int64_t turn_began_ns_ = 0;
  bool carried_ = false;  // whether this turn carried packets
  int64_t armed_ns_ = 0;  // 0: not armed
  std::vector<uint8_t> buffer_;
  uint64_t refused_ =
      0;  // to places outside the network, or from an address that is not the node's
  uint64_t not_ipv4_ = 0;
  uint64_t write_errors_ = 0;  // the receiving device had no room
  Lateness lateness_;
};

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_EMULATOR_H_
