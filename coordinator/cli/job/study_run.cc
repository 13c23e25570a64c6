#include "coordinator/cli/job/study_run.h"

#include <google/protobuf/util/json_util.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "coordinator/cli/become_program.h"
#include "coordinator/cli/job/job_yaml.h"
#include "coordinator/cli/job/standard_input.h"

namespace isthmus::cli {
namespace {

bool IsJobFile(const std::string& argument) {
  return argument == kStandardInput ||
         (!absl::StartsWith(argument, "-") &&
          (absl::EndsWith(argument, ".yaml") || absl::EndsWith(argument, ".yml")));
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
  JobSettings settings;
  int job_at = -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (absl::ConsumePrefix(&argument, "--set=")) {
      settings.emplace_back(argument);
    } else if (argument == "--set") {
      if (++i == arguments.size())
        return absl::InvalidArgumentError("--set: PATH=VALUE is missing");
      settings.push_back(arguments[i]);
    } else {
      if (IsJobFile(arguments[i])) job_at = static_cast<int>(out.size());
      out.push_back(arguments[i]);
    }
  }
  if (job_at < 0) {
    if (settings.empty()) return out;
    return absl::InvalidArgumentError("--set changes a job file, and none is named");
  }
  JobSource source(out[job_at]);
  source.settings = std::move(settings);
  ASSIGN_OR_RETURN(const JobSpec job, ReadJobFile(source));
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(job, &json).ok())
    return absl::InternalError(absl::StrCat(JobFileName(source), ": the job has no JSON form"));
  ASSIGN_OR_RETURN(out[job_at], InMemory(json));
  return out;
}

int RunStudy(const std::vector<std::string>& arguments, Console* console) {
  absl::StatusOr<std::vector<std::string>> passed = StudyArguments(arguments);
  if (!passed.ok()) return console->Fail(passed.status());
  return BecomeProgram("isthmus-study", *std::move(passed), console);
}

}  // namespace isthmus::cli
