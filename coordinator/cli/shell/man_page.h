// Manual pages in roff (man(7)), made from the table of commands. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_SHELL_MAN_PAGE_H_
#define ISTHMUS_COORDINATOR_CLI_SHELL_MAN_PAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cli/shell/command_table.h"

namespace isthmus::cli {

// The page of a program with all its commands: PROGRAM(1).
std::string ProgramPage(const CommandTable& program, absl::string_view version);

// The page of one command: PROGRAM-COMMAND(1).
std::string CommandPage(const CommandTable& program, const CommandTable& command,
                        absl::string_view version);

// A page whose body is `text` as it stands: isthmus-job(5).
std::string TextPage(absl::string_view name, int section, absl::string_view what,
                     absl::string_view text, absl::string_view version);

// The page of another program, which holds what its --help prints: NAME(1).
std::string HelpPage(absl::string_view name, absl::string_view help, absl::string_view version);

// What `isthmus man TOPIC` prints: all commands, one of them, or `job`. InvalidArgument: neither.
absl::StatusOr<std::string> PageOf(const CommandTable& program, const std::string& topic,
                                   absl::string_view version);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_SHELL_MAN_PAGE_H_
