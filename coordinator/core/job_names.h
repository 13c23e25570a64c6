// What users call jobs: an id or a name. Databases of earlier versions may hold a job whose id is
// the name of another one; new ones are kept apart.
#ifndef ISTHMUS_COORDINATOR_CORE_JOB_NAMES_H_
#define ISTHMUS_COORDINATOR_CORE_JOB_NAMES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/jobs.h"

namespace isthmus::coordinator {

// The newest of that name, or null.
const Job* NewestNamed(const JobTable& jobs, const std::string& name);

// By id, or the newest of that name; null: there is none. InvalidArgument: the words fit two jobs,
// and what to say instead.
absl::StatusOr<const Job*> JobCalled(const JobTable& jobs, const std::string& id_or_name);

// AlreadyExists: a new job can't have it, as a job has that name.
absl::Status IdIsFree(const JobTable& jobs, const std::string& id);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_JOB_NAMES_H_
