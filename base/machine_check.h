// What `isthmus doctor` and `isthmusd --doctor` look at on a machine: each look gives a finding,
// with the cure where something is wrong. The judgements are pure; the Look functions ask the
// system. Thread: any.
#ifndef ISTHMUS_BASE_MACHINE_CHECK_H_
#define ISTHMUS_BASE_MACHINE_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus {

struct Finding {
  enum Level { kOk, kWarn, kFail };
  Level level = kOk;
  std::string what;  // "open files"
  std::string text;  // what was seen
  std::string cure;  // what the user does; empty where all is well
};

// "ok    open files   1048576 allowed", a line each; the cure in the line below.
std::string RenderFindings(const std::vector<Finding>& findings);
// {"checks": [{"what", "level", "text", "cure"}], "worst"}
std::string FindingsJson(const std::vector<Finding>& findings);
Finding::Level Worst(const std::vector<Finding>& findings);

// ---- Judgements ----

// `soft`, `hard`: of RLIMIT_NOFILE; a negative one is unlimited.
Finding JudgeFiles(int64_t soft, int64_t hard);
// `most`: tasks that the user's or the control group's limit leaves; negative: unlimited.
Finding JudgeThreads(int64_t most, int64_t running);
// `synchronised`: by the kernel's word; `error_s`: its greatest error.
Finding JudgeClock(bool synchronised, double error_s);
Finding JudgeDisk(absl::string_view path, int64_t free_bytes);
// The clock of another host against ours, seen over a call of `round_trip_s`: both in seconds.
Finding JudgeSkew(double ahead_s, double round_trip_s);

// ---- Looks ----

Finding LookAtFiles();
Finding LookAtThreads();
Finding LookAtClock();
// Of `path`, or of the nearest folder above it that is there.
Finding LookAtDisk(const std::string& path);
// Processors that this process may run on: more compute threads than these only wait for another.
int Processors();
// That root and /dev/net/tun are there, as isthmus-wan needs them: never more than a warning.
Finding LookAtTun();
// That a server can listen on HOST:PORT.
Finding LookAtPort(const std::string& what, const std::string& address);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_MACHINE_CHECK_H_
