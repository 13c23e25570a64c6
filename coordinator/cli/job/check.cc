#include "coordinator/cli/job/check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/model/gpt2_import.h"
#include "coordinator/cli/view/json_out.h"
#include "proto/job/phases.h"

namespace isthmus::cli {
namespace {

std::string ErrorJson(const JobFileError& error) {
  const std::string place =
      error.flag.empty() ? absl::StrCat("\"line\": ", error.line, ", \"column\": ", error.column)
                         : absl::StrCat("\"flag\": ", JsonString(error.flag));
  return absl::StrCat("    {", place, ", \"path\": ", JsonString(error.path),
                      ", \"message\": ", JsonString(error.message), "}");
}

std::string ReportJson(const std::string& file, const std::vector<JobFileError>& errors,
                       size_t more) {
  std::vector<std::string> lines;
  for (const JobFileError& error : errors) lines.push_back(ErrorJson(error));
  return absl::StrCat("{\n  \"file\": ", JsonString(file),
                      ",\n  \"valid\": ", errors.empty() ? "true" : "false", ",\n  \"errors\": [",
                      errors.empty() ? "" : absl::StrCat("\n", absl::StrJoin(lines, ",\n"), "\n  "),
                      "],\n  \"more_errors\": ", more, "\n}\n");
}

}  // namespace

int RunCheck(const JobSource& source, bool json, Console* console) {
  const absl::StatusOr<std::string> text = ReadJobText(source);
  if (!text.ok()) return console->Fail(text.status());
  JobFile file = ParseJobYaml(*text, source.settings);
  const std::string name = JobFileName(source);
  if (file.errors.empty() && !file.job.model().init_from().empty()) {
    ResolveInitFrom(source, &file.job);
    const auto model = ReadGpt2(file.job.model().init_from(), PhaseJob(file.job, 0).model());
    if (!model.ok()) {
      const auto place = file.places.find("model.init_from");
      JobFileError error = place == file.places.end() ? JobFileError() : place->second;
      error.path = "model.init_from";
      error.message = std::string(model.status().message());
      file.errors.push_back(error);
    }
  }
  for (const JobFileError& error : file.errors)
    console->Err(absl::StrCat(FormatJobFileError(name, error), "\n"));
  if (file.more_errors > 0) console->Err(absl::StrCat(MoreErrors(file.more_errors), "\n"));
  if (json) console->Out(ReportJson(name, file.errors, file.more_errors));
  if (!file.errors.empty()) return kExitUsage;
  if (!json) {
    const ModelSpec& model = file.job.model();
    const int phases = file.job.phases_size();
    console->Out(absl::StrCat(
        name, ": no errors; job ", file.job.name(), ", ", CountText(model.layers(), "layer"), " x ",
        model.hidden(), ", ", CountText(file.job.recipe().steps(), "step"),
        phases > 0 ? absl::StrCat(" in ", CountText(phases, "phase")) : "", "\n"));
  }
  return kExitOk;
}

}  // namespace isthmus::cli
