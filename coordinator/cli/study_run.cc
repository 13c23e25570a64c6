#include "coordinator/cli/study_run.h"

#include <google/protobuf/util/json_util.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/cli/job_yaml.h"
#include "coordinator/cli/process.h"

namespace isthmus::cli {
namespace {

bool IsJobFile(const std::string& argument) {
  return !absl::StartsWith(argument, "-") &&
         (absl::EndsWith(argument, ".yaml") || absl::EndsWith(argument, ".yml"));
}

absl::StatusOr<std::string> InMemory(const std::string& text) {
  const int fd = memfd_create("isthmus-job", 0);
  if (fd < 0)
    return absl::ResourceExhaustedError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0) return absl::ResourceExhaustedError(absl::StrCat("memfd: ", std::strerror(errno)));
    done += static_cast<size_t>(n);
  }
  return absl::StrCat("/proc/self/fd/", fd);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> StudyArguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  for (const std::string& argument : arguments) {
    out.push_back(argument);
    if (!IsJobFile(argument)) continue;
    ASSIGN_OR_RETURN(const JobSpec job, ReadJobFile(argument));
    std::string json;
    if (!google::protobuf::util::MessageToJsonString(job, &json).ok())
      return absl::InternalError(absl::StrCat(argument, ": the job has no JSON form"));
    ASSIGN_OR_RETURN(out.back(), InMemory(json));
  }
  return out;
}

int RunStudy(const std::vector<std::string>& arguments, Console* console) {
  absl::StatusOr<std::string> program = FindProgram("isthmus-study");
  if (!program.ok()) return console->Fail(program.status());
  absl::StatusOr<std::vector<std::string>> passed = StudyArguments(arguments);
  if (!passed.ok()) return console->Fail(passed.status());
  std::vector<char*> argv = {program->data()};
  for (std::string& argument : *passed) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return console->Fail(absl::ResourceExhaustedError(
      absl::StrCat("can't run ", *program, ": ", std::strerror(errno))));
}

}  // namespace isthmus::cli
