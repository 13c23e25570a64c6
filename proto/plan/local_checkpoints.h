// When the ranks of a plan keep local checkpoints: their parts lie on the daemons' own disks alone,
// so that a job which goes on by itself loses the steps since the last one (checkpoint.local). All
// of them are of one step, since the decision of the vote says when. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_LOCAL_CHECKPOINTS_H_
#define ISTHMUS_PROTO_PLAN_LOCAL_CHECKPOINTS_H_

#include <cstdint>
#include <string>

#include "proto/job/job_limits.h"
#include "proto/plan.pb.h"

namespace isthmus {

// Steps between two of them, at the most; 1: after each step that the pace lets one; 0: none.
int64_t LocalEvery(const Plan& plan);
bool PacesLocal(const Plan& plan);
// Of a job that asks for them: why its plan has none, in words; empty: it has, or they were not
// asked for.
std::string WhyNoLocal(const Plan& plan);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_LOCAL_CHECKPOINTS_H_
