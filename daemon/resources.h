// What this host lets the daemon use: threads, memory (control groups included), disk. And
// the addresses it tells others. Thread: pure functions of files and system calls.
#ifndef ISTHMUS_DAEMON_RESOURCES_H_
#define ISTHMUS_DAEMON_RESOURCES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace isthmus::daemon {

// `key` of /proc/meminfo in bytes, 0 if absent.
int64_t MeminfoBytes(absl::string_view meminfo, absl::string_view key);

// memory.max or memory.limit_in_bytes of a control group; 0: no limit.
int64_t CgroupBytes(absl::string_view text);

// cpu.max of a control group ("quota period"), rounded up; 0: no limit.
int CgroupCpus(absl::string_view text);

// Processors this process may run on, within its affinity and its control group; at least 1.
int UsableThreads();

// What a daemon may plan with: 80 % of the host's or the control group's memory, and not more than
// 90 % of what is available now.
int64_t UsableMemoryBytes();

// Free under `path`; 0 if unknown.
int64_t FreeDiskBytes(const std::string& path);

int64_t ResidentBytes();

// Raises the soft limit of open files to the hard one. Returns it; never fails.
int64_t RaiseFileLimit();

// The address others reach this daemon at, for a server that listens on `listen_host`:`port` and a
// coordinator at `coordinator`: a listening address that is one interface's is that; else the local
// address of the route to the coordinator; if that is loopback, the local address of the default
// route, since daemons of other hosts can't use loopback. `loopback`: it is one nonetheless.
std::string AdvertisedHost(const std::string& listen_host, const std::string& coordinator,
                           bool* loopback);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_RESOURCES_H_
