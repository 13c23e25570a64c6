// How a session's end is told: one status that names who, where and what to do, the same at the
// stage that failed and at its peers. Thread: pure functions.
#ifndef ISTHMUS_WORKER_FAILURE_H_
#define ISTHMUS_WORKER_FAILURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

// `cause` as seen here -> the session's status, with a FailureCause (proto/failure_cause.h). A
// status that has one already (it came through a cancelled link) keeps it and its story: the first
// stage that failed is named, not every one on the way.
absl::Status DescribeFailure(const SessionPlan& plan, int64_t step, const absl::Status& cause);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_FAILURE_H_
