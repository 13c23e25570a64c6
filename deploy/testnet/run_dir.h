// The run directory: what a running emulator tells the world, and how to tell whether it still
// runs.
//
//   wan.json       who and where (below); written whole in one rename once the network is up: its
//   existence means ready lock           held (flock) by the emulator for as long as it lives,
//   however it ends control.sock   see control.h wan-stats.json counters; written at the end, on
//   SIGUSR1 and by `isthmus-wan stats`
//
// Thread: not for sharing.
#ifndef ISTHMUS_DEPLOY_TESTNET_RUN_DIR_H_
#define ISTHMUS_DEPLOY_TESTNET_RUN_DIR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "deploy/testnet/netns.h"

namespace isthmus::testnet {

struct WanNode {
  std::string name;
  std::string address;  // "10.77.0.1"
  std::string ns_path;  // "/proc/PID/fd/N": open it and setns()
};

struct WanInfo {
  int pid = 0;
  int mtu = 0;
  uint64_t seed = 0;
  std::string scheduling;  // "rr", "nice" or "normal"
  std::vector<WanNode> nodes;
};

std::string FormatWanInfo(const WanInfo& info);
absl::StatusOr<WanInfo> ParseWanInfo(absl::string_view json, absl::string_view path);

class RunDir {
 public:
  // Takes the directory for an emulator, making it where needed. "" makes one under $TMPDIR or
  // /tmp, which Remove() deletes. AlreadyExists where a running emulator has it.
  static absl::StatusOr<RunDir> Take(const std::string& path);

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;
  absl::Status WriteFile(absl::string_view name, absl::string_view text) const;  // atomic
  // Deletes wan.json and control.sock, and with a directory of our own making everything.
  void Remove();

 private:
  std::string path_;
  bool ours_ = false;
  UniqueFd lock_;
};

// What the emulator of this directory ("": $ISTHMUS_WAN_DIR) wrote. NotFound where none was
// started, Unavailable where it has ended.
absl::StatusOr<WanInfo> ReadWanInfo(const std::string& run_dir);
// The directory itself, by the same rule; InvalidArgument where neither says.
absl::StatusOr<std::string> ResolveRunDir(const std::string& run_dir);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_RUN_DIR_H_
