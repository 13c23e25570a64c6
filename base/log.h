// Logging to standard error: one line a record, `time level program[pid] message key=value ...`, or
// JSON lines. One error is logged once, where it is handled. Thread: any.
#ifndef ISTHMUS_BASE_LOG_H_
#define ISTHMUS_BASE_LOG_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace isthmus {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  std::string program;  // printed in each line
  LogLevel level = LogLevel::kInfo;
  bool json = false;
  std::string file;  // also there, 16 MiB x 3 rotating; empty: standard error alone
};

// Once, in main(), before other threads start. Without it, info and above go to standard error.
void InitLogging(const LogOptions& options);

void LogMessage(LogLevel level, absl::string_view message);

template <typename... Args>
void LogDebug(const Args&... args) {
  LogMessage(LogLevel::kDebug, absl::StrCat(args...));
}
template <typename... Args>
void LogInfo(const Args&... args) {
  LogMessage(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  LogMessage(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  LogMessage(LogLevel::kError, absl::StrCat(args...));
}

// A broken invariant of ours: logs and aborts. Never for what comes from outside.
[[noreturn]] void Fatal(const char* file, int line, absl::string_view message);

}  // namespace isthmus

#define ISTHMUS_CHECK(condition)                                                         \
  do {                                                                                   \
    if (!(condition)) ::isthmus::Fatal(__FILE__, __LINE__, "check failed: " #condition); \
  } while (false)

#endif  // ISTHMUS_BASE_LOG_H_
