// The command lines of the programs that `isthmus` starts (generate, multilevel, study).
// Thread: pure functions.
#ifndef ISTHMUS_BASE_COMMAND_LINE_H_
#define ISTHMUS_BASE_COMMAND_LINE_H_

#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace isthmus {

// Codes as those of `isthmus`.
enum CommandExit { kOk = 0, kFailed = 1, kUsage = 2, kMachine = 3, kRefused = 5 };

// "isthmus study" for "isthmus-study": as users type it.
std::string TypedName(std::string program);

// The name for a program's usage line: "isthmus study" where `isthmus` started it with that as
// argv[0], else `program`, such as "isthmus-study".
std::string CalledAs(int argc, const char* const* argv, const std::string& program);

// nullopt: the command line is parsed, go on. Else how the program ends: after its help or version,
// which went to `out`, or after what is wrong, which went to `err` behind the name of `program`.
std::optional<int> ParseCommandLine(int argc, const char* const* argv, const std::string& program,
                                    CLI::App* app, FILE* out, FILE* err);

// Of a program that reads what the user names: InvalidArgument and NotFound are wrong usage,
// ResourceExhausted is the machine's.
int CommandExitFor(const absl::Status& status);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_COMMAND_LINE_H_
