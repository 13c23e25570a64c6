#include "base/machine_check.h"

#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace isthmus {
namespace {

constexpr int64_t kFewFiles = 1024;
constexpr int64_t kGoodFiles = 4096;
constexpr int64_t kFewThreads = 256;  // a daemon with gRPC, links and a computation has 40 to 120
constexpr int64_t kLittleDisk = int64_t{1} << 30;
constexpr double kGiB = 1 << 30;
constexpr double kSkew = 2;  // seconds: more makes logs of two hosts hard to read together

const char* LevelName(Finding::Level level) {
  return level == Finding::kOk ? "ok" : level == Finding::kWarn ? "warn" : "fail";
}

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The least pids.max of this process's control groups; negative: none.
int64_t CgroupTasks() {
  std::string group = FirstLine("/proc/self/cgroup");
  const size_t colon = group.rfind(':');
  group = colon == std::string::npos ? "/" : group.substr(colon + 1);
  int64_t least = -1;
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + (group == "/" ? "" : group);
    int64_t most = 0, now = 0;
    if (absl::SimpleAtoi(FirstLine(folder + "/pids.max"), &most)) {
      if (!absl::SimpleAtoi(FirstLine(folder + "/pids.current"), &now)) now = 0;
      const int64_t left = std::max<int64_t>(0, most - now);
      least = least < 0 ? left : std::min(least, left);
    }
    if (group == "/" || group.empty()) return least;
    group.resize(group.rfind('/'));
    if (group.empty()) group = "/";
  }
}

}  // namespace

std::string RenderFindings(const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& f : findings) width = std::max(width, f.what.size());
  std::string out;
  for (const Finding& f : findings) {
    const std::string level = LevelName(f.level);
    absl::StrAppend(&out, level, std::string(6 - level.size(), ' '), f.what,
                    std::string(width - f.what.size() + 2, ' '), f.text, "\n");
    if (!f.cure.empty()) absl::StrAppend(&out, std::string(width + 8, ' '), "-> ", f.cure, "\n");
  }
  return out;
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  std::vector<std::string> lines;
  for (const Finding& f : findings) {
    lines.push_back(absl::StrCat("    {\"what\": ", Quoted(f.what), ", \"level\": \"",
                                 LevelName(f.level), "\", \"text\": ", Quoted(f.text),
                                 ", \"cure\": ", Quoted(f.cure), "}"));
  }
  return absl::StrCat("{\n  \"checks\": [\n", absl::StrJoin(lines, ",\n"),
                      "\n  ],\n  \"worst\": \"", LevelName(Worst(findings)), "\"\n}\n");
}

Finding::Level Worst(const std::vector<Finding>& findings) {
  Finding::Level worst = Finding::kOk;
  for (const Finding& f : findings) worst = std::max(worst, f.level);
  return worst;
}

Finding JudgeFiles(int64_t soft, int64_t hard) {
  Finding f{Finding::kOk, "open files", "", ""};
  const bool unlimited = hard < 0;
  f.text = unlimited ? "unlimited" : absl::StrCat(hard, " allowed (", soft, " without asking)");
  if (unlimited || hard >= kGoodFiles) return f;
  f.level = hard < kFewFiles ? Finding::kFail : Finding::kWarn;
  f.cure = absl::StrCat("allow ", kGoodFiles,
                        " or more: `ulimit -n`, nofile in "
                        "/etc/security/limits.conf, or LimitNOFILE= of the unit");
  return f;
}

Finding JudgeThreads(int64_t most, int64_t running) {
  Finding f{Finding::kOk, "threads", "", ""};
  f.text = most < 0 ? absl::StrCat("no limit, ", running, " run")
                    : absl::StrCat("so many more may be started: ", most);
  if (most < 0 || most >= kFewThreads) return f;
  f.level = most < kFewThreads / 4 ? Finding::kFail : Finding::kWarn;
  f.cure = absl::StrCat("leave room for ", kFewThreads,
                        ": `ulimit -u`, TasksMax= of the unit, or "
                        "--pids-limit of the container");
  return f;
}

Finding JudgeClock(bool synchronised, double error_s) {
  Finding f{Finding::kOk, "clock", "", ""};
  if (synchronised) {
    f.text = absl::StrCat("synchronised, to ", std::ceil(error_s * 1000), " ms");
    return f;
  }
  f.level = Finding::kWarn;
  f.text =
      "not synchronised: times in logs and metrics of several hosts will not agree (training "
      "does not depend on it)";
  f.cure = "run chrony or systemd-timesyncd; in a container or a virtual machine on its host";
  return f;
}

Finding JudgeDisk(absl::string_view path, int64_t free_bytes) {
  Finding f{Finding::kOk, "disk", "", ""};
  f.text = absl::StrCat(std::floor(10 * static_cast<double>(free_bytes) / kGiB) / 10,
                        " GiB free under ", path);
  if (free_bytes >= kLittleDisk) return f;
  f.level = free_bytes < kLittleDisk / 16 ? Finding::kFail : Finding::kWarn;
  f.cure =
      "make room, or name another folder: checkpoints and buffers need about three times the "
      "model, and samples x context x width x 2 bytes for delta codecs";
  return f;
}

Finding JudgeSkew(double ahead_s, double round_trip_s) {
  Finding f{Finding::kOk, "clock of the coordinator", "", ""};
  // The answer was written somewhere within the round trip.
  const double sure = std::max(0.0, std::abs(ahead_s) - round_trip_s);
  f.text = sure < kSkew ? "as ours"
                        : absl::StrCat(std::round(std::abs(ahead_s)), " s ",
                                       ahead_s > 0 ? "ahead of" : "behind", " ours");
  if (sure < kSkew) return f;
  f.level = Finding::kWarn;
  f.cure =
      "run chrony or systemd-timesyncd on both hosts; training does not depend on it, reading "
      "logs does";
  return f;
}

Finding LookAtFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return {Finding::kWarn, "open files", absl::StrCat("unknown: ", std::strerror(errno)), ""};
  const auto value = [](rlim_t v) { return v == RLIM_INFINITY ? -1 : static_cast<int64_t>(v); };
  return JudgeFiles(value(limit.rlim_cur), value(limit.rlim_max));
}

Finding LookAtThreads() {
  // The user's limit counts for nobody who is root; how many of the user's tasks run is not asked
  // for: /proc may be hidden.
  int64_t most = CgroupTasks();
  rlimit limit{};
  if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const auto user = static_cast<int64_t>(limit.rlim_cur);
    most = most < 0 ? user : std::min(most, user);
  }
  std::istringstream load(FirstLine("/proc/loadavg"));  // "0.1 0.2 0.3 2/345 6789"
  std::string one, five, fifteen, tasks;
  load >> one >> five >> fifteen >> tasks;
  int64_t running = 0;
  const size_t slash = tasks.find('/');
  if (slash == std::string::npos || !absl::SimpleAtoi(tasks.substr(slash + 1), &running))
    running = 0;
  return JudgeThreads(most, running);
}

Finding LookAtClock() {
  timex state{};
  const int result = adjtimex(&state);
  return JudgeClock(result >= 0 && result != TIME_ERROR && (state.status & STA_UNSYNC) == 0,
                    static_cast<double>(state.maxerror) / 1e6);
}

Finding LookAtDisk(const std::string& path) {
  std::string there = path.empty() ? "." : path;
  struct statvfs info {};
  while (statvfs(there.c_str(), &info) != 0) {
    const size_t slash = there.rfind('/');
    if (errno != ENOENT || there == "/" || there == ".")
      return {Finding::kFail, "disk", absl::StrCat(path, ": ", std::strerror(errno)),
              "name a folder that this user may use"};
    there = slash == std::string::npos ? "." : slash == 0 ? "/" : there.substr(0, slash);
  }
  return JudgeDisk(path.empty() ? "." : path,
                   static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize));
}

int Processors() {
  int processors = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) processors = CPU_COUNT(&set);
  return std::max(processors, 1);
}

Finding LookAtTun() {
  Finding f{Finding::kOk, "isthmus testnet", "root and /dev/net/tun are there", ""};
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (fd >= 0 && geteuid() == 0) return f;
  f.level = Finding::kWarn;
  f.text = geteuid() != 0 ? "needs root" : absl::StrCat("/dev/net/tun: ", std::strerror(error));
  f.cure = geteuid() != 0 ? "run it with sudo; nothing else of Isthmus needs root"
                          : "load the kernel module `tun`, or start the container with --device "
                            "/dev/net/tun --cap-add NET_ADMIN";
  return f;
}

Finding LookAtPort(const std::string& what, const std::string& address) {
  const size_t colon = address.rfind(':');
  Finding f{Finding::kFail, what, address, ""};
  if (colon == std::string::npos) {
    f.text = absl::StrCat(address, " is not HOST:PORT");
    f.cure = "give an address such as 0.0.0.0:7071";
    return f;
  }
  const std::string host = absl::StrReplaceAll(address.substr(0, colon), {{"[", ""}, {"]", ""}});
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() || host == "*" ? nullptr : host.c_str(),
                                address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    f.text = absl::StrCat(address, ": ", gai_strerror(error));
    f.cure = "name an address of this host; 0.0.0.0 is all of them";
    return f;
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool bound =
      fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int why = errno;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  if (bound) {
    f.level = Finding::kOk;
    f.text = absl::StrCat(address, " is free");
    return f;
  }
  f.text = absl::StrCat(address, ": ", std::strerror(why));
  f.cure = why == EADDRINUSE
               ? "another program listens there (`ss -ltnp`): end it, or take another port"
           : why == EACCES ? "ports below 1024 need root: take another port"
                           : "name an address of this host; 0.0.0.0 is all of them";
  return f;
}

}  // namespace isthmus
