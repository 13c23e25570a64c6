#include "deploy/testnet/netns.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::testnet {
namespace {

constexpr int kTransmitQueuePackets = 4000;

absl::Status Refused(absl::string_view call, absl::string_view fix) {
  const int error = errno;
  return absl::FailedPreconditionError(absl::StrCat(call, ": ", std::strerror(error), ". ", fix));
}

constexpr char kRootFix[] =
    "The emulator needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): run it as root or through sudo; in "
    "a container, "
    "start that with --privileged";
constexpr char kTunFix[] =
    "The kernel's TUN driver is missing: `modprobe tun` on the host; in a container, start that "
    "with "
    "--device /dev/net/tun --cap-add NET_ADMIN --cap-add SYS_ADMIN";

sockaddr MakeSockaddr(uint32_t address) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address);
  sockaddr out;
  static_assert(sizeof(out) == sizeof(in));
  std::memcpy(&out, &in, sizeof(out));
  return out;
}

ifreq MakeRequest(const char* device) {
  ifreq request{};
  std::strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  return request;
}

absl::Status BringUp(int control, const char* device) {
  ifreq request = MakeRequest(device);
  if (ioctl(control, SIOCGIFFLAGS, &request) != 0) {
    return Refused(absl::StrCat("ioctl SIOCGIFFLAGS ", device), kRootFix);
  }
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP | IFF_RUNNING);
  if (ioctl(control, SIOCSIFFLAGS, &request) != 0) {
    return Refused(absl::StrCat("ioctl SIOCSIFFLAGS ", device), kRootFix);
  }
  return absl::OkStatus();
}

absl::Status ConfigureDevice(int control, const NodeNetOptions& options) {
  ifreq request = MakeRequest(kDeviceName);
  request.ifr_addr = MakeSockaddr(options.address);
  if (ioctl(control, SIOCSIFADDR, &request) != 0) return Refused("ioctl SIOCSIFADDR", kRootFix);
  request = MakeRequest(kDeviceName);
  request.ifr_netmask = MakeSockaddr(~uint32_t{0} << (32 - options.prefix_length));
  if (ioctl(control, SIOCSIFNETMASK, &request) != 0)
    return Refused("ioctl SIOCSIFNETMASK", kRootFix);
  request = MakeRequest(kDeviceName);
  request.ifr_mtu = options.mtu;
  if (ioctl(control, SIOCSIFMTU, &request) != 0) return Refused("ioctl SIOCSIFMTU", kRootFix);
  request = MakeRequest(kDeviceName);
  request.ifr_qlen = kTransmitQueuePackets;
  if (ioctl(control, SIOCSIFTXQLEN, &request) != 0) return Refused("ioctl SIOCSIFTXQLEN", kRootFix);
  RETURN_IF_ERROR(BringUp(control, kDeviceName));
  char device[] = "wan0";
  rtentry route{};
  route.rt_dst = MakeSockaddr(0);
  route.rt_genmask = MakeSockaddr(0);
  route.rt_flags = RTF_UP;
  route.rt_dev = device;
  if (ioctl(control, SIOCADDRT, &route) != 0) return Refused("ioctl SIOCADDRT", kRootFix);
  return BringUp(control, "lo");
}

// Spares the emulator the router solicitations of IPv6, which it would only drop. Fails where
// /proc/sys is read-only.
void TryDisableIpv6() {
  UniqueFd file(open("/proc/sys/net/ipv6/conf/wan0/disable_ipv6", O_WRONLY | O_CLOEXEC));
  if (file.ok() && write(file.get(), "1", 1) < 0) return;
}

absl::StatusOr<NodeNet> MakeHere(const NodeNetOptions& options) {
  // Before leaving, so that a missing device is told apart from a refused namespace.
  NodeNet node;
  node.tun = UniqueFd(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!node.tun.ok()) {
    return Refused("open /dev/net/tun", errno == EACCES || errno == EPERM ? kRootFix : kTunFix);
  }
  if (unshare(CLONE_NEWNET) != 0) return Refused("unshare(CLONE_NEWNET)", kRootFix);
  // A TUN descriptor belongs to the namespace it was opened in: open it again on this side.
  node.tun = UniqueFd(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!node.tun.ok()) return Refused("open /dev/net/tun", kTunFix);
  node.netns = UniqueFd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!node.netns.ok()) return Refused("open /proc/thread-self/ns/net", "Is /proc mounted?");
  ifreq request = MakeRequest(kDeviceName);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(node.tun.get(), TUNSETIFF, &request) != 0) return Refused("ioctl TUNSETIFF", kRootFix);
  UniqueFd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!control.ok()) return Refused("socket(AF_INET)", "The kernel must have IPv4");
  RETURN_IF_ERROR(ConfigureDevice(control.get(), options));
  TryDisableIpv6();
  return node;
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<NodeNet> MakeNodeNet(const NodeNetOptions& options) {
  absl::StatusOr<NodeNet> result = absl::UnknownError("not run");
  std::thread maker([&] { result = MakeHere(options); });
  maker.join();
  return result;
}

absl::Status EnterNetns(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) {
    return Refused(absl::StrCat("open ", path),
                   "Entering a node needs root, and the emulator must be running");
  }
  if (setns(fd.get(), CLONE_NEWNET) != 0) return Refused(absl::StrCat("setns ", path), kRootFix);
  return absl::OkStatus();
}

std::vector<int> ProcessesInside(const std::vector<int>& netns_fds) {
  std::set<std::pair<dev_t, ino_t>> ours;
  struct stat info;
  for (int fd : netns_fds) {
    if (fstat(fd, &info) == 0) ours.emplace(info.st_dev, info.st_ino);
  }
  std::vector<int> inside;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return inside;
  const int self = getpid();
  while (const dirent* entry = readdir(proc)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == self) continue;
    const std::string path = absl::StrCat("/proc/", pid, "/ns/net");
    if (stat(path.c_str(), &info) == 0 && ours.count({info.st_dev, info.st_ino}) != 0) {
      inside.push_back(pid);
    }
  }
  closedir(proc);
  return inside;
}

}  // namespace isthmus::testnet
