#include "base/log.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/utf8.h"
#include "spdlog/sinks/rotating_file_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace isthmus {
namespace {

constexpr size_t kLogFileBytes = 16u << 20;
constexpr size_t kLogFiles = 3;

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::string EscapeJson(absl::string_view text) {
  std::string out;
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char hex[8];
      std::snprintf(hex, sizeof(hex), "\\u%04x", c);
      out += hex;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

struct Logger {
  std::shared_ptr<spdlog::logger> sink;
  bool json = false;
};

Logger MakeLogger(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks{std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  if (!options.file.empty()) {
    sinks.push_back(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
        options.file, kLogFileBytes, kLogFiles));
  }
  auto logger = std::make_shared<spdlog::logger>(options.program, sinks.begin(), sinks.end());
  logger->set_pattern(options.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",)"
                                     R"("program":"%n","pid":%P,"message":"%v"})"
                                   : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %n[%P] %v",
                      spdlog::pattern_time_type::utc);
  logger->set_level(ToSpdlog(options.level));
  logger->flush_on(spdlog::level::info);
  return Logger{logger, options.json};
}

Logger& TheLogger() {
  static auto* logger = new Logger(MakeLogger(LogOptions{"isthmus"}));
  return *logger;
}

}  // namespace

void InitLogging(const LogOptions& options) { TheLogger() = MakeLogger(options); }

void LogMessage(LogLevel level, absl::string_view message) {
  Logger& logger = TheLogger();
  if (logger.json) {
    logger.sink->log(ToSpdlog(level), "{}", EscapeJson(ToUtf8(message)));
  } else {
    logger.sink->log(ToSpdlog(level), "{}", fmt::string_view(message.data(), message.size()));
  }
}

void Fatal(const char* file, int line, absl::string_view message) {
  LogError(file, ":", line, ": ", message);
  std::abort();
}

}  // namespace isthmus
