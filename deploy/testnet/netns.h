// Network namespaces with a TUN device each, made by system calls alone: no `ip`, no `tc`, no files
// left behind.
//
// A namespace lives as long as a file descriptor of it is open or a process is inside; the device
// as long as its descriptor is open. So all of it vanishes with the process that owns a NodeNet,
// however that process ends.
//
// Thread: MakeNodeNet uses a thread of its own and leaves the caller's namespace alone; EnterNetns
// moves the calling thread only.
#ifndef ISTHMUS_DEPLOY_TESTNET_NETNS_H_
#define ISTHMUS_DEPLOY_TESTNET_NETNS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus::testnet {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

inline constexpr char kDeviceName[] = "wan0";
inline constexpr int kMinMtu = 576;
inline constexpr int kMaxMtu = 9000;

struct NodeNetOptions {
  uint32_t address = 0;  // host byte order
  int prefix_length = 16;
  int mtu = 1500;
};

struct NodeNet {
  UniqueFd netns;  // of the namespace; close-on-exec
  UniqueFd tun;    // reads and writes whole IP packets; non-blocking, close-on-exec
};

// A fresh namespace: lo and wan0 up, wan0 with the address, and the default route through wan0.
// Errors name the call that the kernel refused and what to do; their code is FailedPrecondition.
absl::StatusOr<NodeNet> MakeNodeNet(const NodeNetOptions& options);

// Moves the calling thread into the namespace that `path` (/proc/PID/fd/N) names.
absl::Status EnterNetns(const std::string& path);

// The processes, other than the caller, that are inside one of these namespaces.
std::vector<int> ProcessesInside(const std::vector<int>& netns_fds);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_NETNS_H_
