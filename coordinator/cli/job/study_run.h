// `isthmus study`: becomes isthmus-study, a program of its own since this one links no LibTorch. A
// job file among the arguments (*.yaml, *.yml) is read here, and passed on as JSON. Thread: main.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_STUDY_RUN_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_STUDY_RUN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

// The arguments with each job file replaced by a file in memory that holds it as JSON; the
// descriptors stay open for the program to come. NotFound or InvalidArgument: the job file.
absl::StatusOr<std::vector<std::string>> StudyArguments(const std::vector<std::string>& arguments);

// Returns only if it can't be started: the exit code.
int RunStudy(const std::vector<std::string>& arguments, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_STUDY_RUN_H_
