#include "daemon/resources.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/machine_check.h"

namespace isthmus::daemon {
namespace {

constexpr int64_t kNoLimit =
    int64_t{1} << 60;  // control groups of version 1 write "no limit" as a number near 2^63

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// The directory of this process's control group (version 2), "" if there is none.
std::string CgroupDirectory() {
  for (absl::string_view line : absl::StrSplit(ReadAll("/proc/self/cgroup"), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return absl::StrCat("/sys/fs/cgroup", line);
  }
  return "";
}

// The smallest positive f(file) of this control group and those above it.
template <typename F>
int64_t TightestOfCgroups(const std::string& file, F f) {
  int64_t tightest = 0;
  std::filesystem::path at = CgroupDirectory();
  while (!at.empty() && absl::StartsWith(at.string(), "/sys/fs/cgroup")) {
    const int64_t limit = f(ReadAll((at / file).string()));
    if (limit > 0 && (tightest == 0 || limit < tightest)) tightest = limit;
    if (at == at.parent_path()) break;
    at = at.parent_path();
  }
  return tightest;
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

// The local address of the route to `host`:`port`; false if there is none. Connecting a datagram
// socket sends nothing.
bool LocalAddressTowards(const std::string& host, const std::string& port, std::string* text,
                         bool* loopback) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return false;
  bool ok = false;
  for (const addrinfo* each = found; each != nullptr && !ok; each = each->ai_next) {
    const int fd = socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    char name[INET6_ADDRSTRLEN + 32];
    if (connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), size, name, sizeof(name), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      *text = local.ss_family == AF_INET6 ? absl::StrCat("[", name, "]") : name;
      *loopback = IsLoopback(local);
      ok = true;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return ok;
}

bool IsWildcard(absl::string_view host) {
  return host == "0.0.0.0" || host == "[::]" || host == "*" || host.empty();
}

}  // namespace

int64_t MeminfoBytes(absl::string_view meminfo, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumePrefix(&line, ":")) continue;
    line = absl::StripAsciiWhitespace(line);
    absl::ConsumeSuffix(&line, " kB");
    int64_t kib = 0;
    return absl::SimpleAtoi(line, &kib) && kib >= 0 ? kib * 1024 : 0;
  }
  return 0;
}

int64_t CgroupBytes(absl::string_view text) {
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes))
    return 0;  // "max", or no such file
  return bytes > 0 && bytes < kNoLimit ? bytes : 0;
}

int CgroupCpus(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  double quota = 0;
  double period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
      !absl::SimpleAtod(words[1], &period))
    return 0;
  if (!(quota > 0) || !(period > 0) || quota / period > 1e6) return 0;
  return static_cast<int>(std::ceil(quota / period));
}

int UsableThreads() {
  int threads = Processors();
  const int64_t quota = TightestOfCgroups(
      "cpu.max", [](const std::string& text) { return int64_t{CgroupCpus(text)}; });
  if (quota > 0) threads = std::min<int>(threads, static_cast<int>(quota));
  return std::max(threads, 1);
}

int64_t UsableMemoryBytes() {
  const std::string meminfo = ReadAll("/proc/meminfo");
  int64_t limit = MeminfoBytes(meminfo, "MemTotal");
  int64_t group =
      TightestOfCgroups("memory.max", [](const std::string& text) { return CgroupBytes(text); });
  if (group == 0) group = CgroupBytes(ReadAll("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  if (group > 0 && (limit == 0 || group < limit)) limit = group;
  const int64_t available = MeminfoBytes(meminfo, "MemAvailable");
  int64_t usable = limit / 10 * 8;
  if (available > 0) usable = std::min(usable, available / 10 * 9);
  return usable;
}

int64_t FreeDiskBytes(const std::string& path) {
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

int64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  in >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string AdvertisedHost(const std::string& listen_host, const std::string& coordinator,
                           bool* loopback) {
  std::string text;
  *loopback = false;
  if (!IsWildcard(listen_host)) {
    std::string bare = listen_host;
    if (bare.size() > 2 && bare.front() == '[') bare = bare.substr(1, bare.size() - 2);
    // The route to an address of this host ends at that address: this tells whether it is loopback.
    if (!LocalAddressTowards(bare, "9", &text, loopback)) *loopback = false;
    return listen_host;
  }
  const size_t colon = coordinator.rfind(':');
  std::string host = coordinator.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "7070" : coordinator.substr(colon + 1);
  if (LocalAddressTowards(host, port, &text, loopback) && !*loopback) return text;
  // Addresses of documentation: nothing is sent, the default route is asked.
  for (const char* outside : {"192.0.2.1", "2001:db8::1"}) {
    if (LocalAddressTowards(outside, "9", &text, loopback) && !*loopback) return text;
  }
  *loopback = true;
  return "127.0.0.1";
}

}  // namespace isthmus::daemon
