#include "coordinator/core/job_names.h"

#include "absl/strings/str_cat.h"
#include "proto/job/job_state.h"

namespace isthmus::coordinator {

const Job* NewestNamed(const JobTable& jobs, const std::string& name) {
  const Job* found = jobs.Find(name);
  if (found == nullptr || found->spec.name() == name) return found;
  for (const Job* job : jobs.All()) {
    if (job->spec.name() == name) return job;
  }
  return nullptr;
}

absl::StatusOr<const Job*> JobCalled(const JobTable& jobs, const std::string& id_or_name) {
  const Job* found = jobs.Find(id_or_name);
  const Job* named = NewestNamed(jobs, id_or_name);
  if (named == nullptr || found == named) return found;
  const std::string& other = found->spec.name();
  const bool reached = jobs.Find(other) == found;
  return absl::InvalidArgumentError(
      absl::StrCat("'", id_or_name, "' is the name of job ", named->id, " (",
                   StateName(named->status.state()), ") and the id of job '", other, "' (",
                   StateName(found->status.state()), "): say ", named->id, " for the one",
                   reached ? absl::StrCat(", ", other, " for the other")
                           : ", and remove it to reach the other"));
}

absl::Status IdIsFree(const JobTable& jobs, const std::string& id) {
  const Job* named = NewestNamed(jobs, id);
  if (named == nullptr) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("job id '", id, "' is taken: job ", named->id, " has that name"));
}

}  // namespace isthmus::coordinator
