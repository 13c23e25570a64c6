#include "coordinator/cli/become_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/process.h"

namespace isthmus::cli {

int BecomeProgram(const std::string& name, std::vector<std::string> arguments, Console* console) {
  absl::StatusOr<std::string> program = FindProgram(name);
  if (!program.ok()) return console->Fail(program.status());
  std::vector<char*> argv = {program->data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return console->Fail(absl::ResourceExhaustedError(
      absl::StrCat("can't run ", *program, ": ", std::strerror(errno))));
}

}  // namespace isthmus::cli
