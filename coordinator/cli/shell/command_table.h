// The commands of a program with their options, as plain values: what completions and man pages are
// made from. Thread: values.
#ifndef ISTHMUS_COORDINATOR_CLI_SHELL_COMMAND_TABLE_H_
#define ISTHMUS_COORDINATOR_CLI_SHELL_COMMAND_TABLE_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isthmus::cli {

struct CommandOption {
  std::vector<std::string> names;  // "-f", "--follow"; of an argument that stands alone: its name
  bool positional = false;
  bool required = false;
  bool repeated = false;
  std::string value;  // "STEP", "FILE", ...; empty: a flag
  std::string description;
  std::string fallback;     // the default value, as the help prints it
  std::string environment;  // the variable that sets it
};

struct CommandTable {
  std::string name;
  std::string description;
  std::string footer;  // examples
  std::vector<CommandOption> options;
  std::vector<CommandTable> commands;
};

// The only place beside app.cc that knows CLI11.
CommandTable TableOf(const CLI::App& app);

// Null: no such command.
const CommandTable* FindCommand(const CommandTable& table, const std::string& name);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_SHELL_COMMAND_TABLE_H_
