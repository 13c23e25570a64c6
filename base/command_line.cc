#include "base/command_line.h"

#include <CLI/CLI.hpp>
#include <sstream>

namespace isthmus {

std::string TypedName(std::string program) {
  if (const size_t dash = program.find('-'); dash != std::string::npos) program[dash] = ' ';
  return program;
}

std::string CalledAs(int argc, const char* const* argv, const std::string& program) {
  const std::string words = TypedName(program);
  return argc > 0 && words == argv[0] ? words : program;
}

std::optional<int> ParseCommandLine(int argc, const char* const* argv, const std::string& program,
                                    CLI::App* app, FILE* out, FILE* err) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help, wrong;
    const int code = app->exit(error, help, wrong);
    std::fputs(help.str().c_str(), out);
    if (code == 0) return kOk;
    std::fprintf(err, "%s: %s", program.c_str(), wrong.str().c_str());
    return kUsage;
  }
  return std::nullopt;
}

int CommandExitFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kUsage;
    case absl::StatusCode::kResourceExhausted:
      return kMachine;
    default:
      return kFailed;
  }
}

}  // namespace isthmus
