// What a job file says of an MLP (model.family mlp): defaults of what the family has not, and what
// is refused. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_MLP_JOB_H_
#define ISTHMUS_PROTO_JOB_MLP_JOB_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace isthmus {

// One head and one position, so that a boundary carries samples x 1 x hidden; values of bytes; a
// head of its own.
void FillMlpDefaults(ModelSpec* model);

// Of a job of either family, beside what job_defaults.h says of both. InvalidArgument each, and the
// message begins with the field.
std::vector<absl::Status> FamilyErrors(const JobSpec& job);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_MLP_JOB_H_
