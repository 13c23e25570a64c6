#include "coordinator/cli/become_program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/command_line.h"
#include "base/process.h"
#include "base/status.h"

namespace isthmus::cli {

int BecomeProgram(const std::string& name, std::vector<std::string> arguments, Console* console) {
  absl::StatusOr<std::string> program = FindProgram(name);
  if (!program.ok()) return console->Fail(program.status());
  std::string typed = TypedName(name);  // for its usage line
  std::vector<char*> argv = {typed.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program->c_str(), argv.data());
  return console->Fail(absl::ResourceExhaustedError(
      absl::StrCat("can't run ", *program, ": ", std::strerror(errno))));
}

absl::StatusOr<std::string> HelpOf(const std::string& name) {
  const std::vector<std::string> programs = {"isthmusd",         "isthmus-coordinator",
                                             "isthmus-generate", "isthmus-multilevel",
                                             "isthmus-study",    "isthmus-wan"};
  if (std::find(programs.begin(), programs.end(), name) == programs.end()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no page of '", name.substr(0, 60),
                                                   "': give a command, job, or ",
                                                   absl::StrJoin(programs, ", ")));
  }
  ASSIGN_OR_RETURN(const std::string path, FindProgram(name));
  // The commands of isthmus-multilevel have the options.
  const std::string flag = name == "isthmus-multilevel" ? "--help-all" : "--help";
  return RunAndCapture({path, flag}, absl::Seconds(30));
}

}  // namespace isthmus::cli
