// `isthmus check`: a job file judged without a coordinator. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_CHECK_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_CHECK_H_

#include "coordinator/cli/job/job_yaml.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

// Every error of the file goes to stderr, a line each, as compilers print theirs; the model that
// the job begins from is read too. The exit code: kExitUsage for a job file with errors.
int RunCheck(const JobSource& source, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_CHECK_H_
