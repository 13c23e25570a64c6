// Which role may call what of the coordinator. Thread: a constant.
#ifndef ISTHMUS_COORDINATOR_SERVICE_ALLOWED_CALLS_H_
#define ISTHMUS_COORDINATOR_SERVICE_ALLOWED_CALLS_H_

#include "absl/types/span.h"
#include "base/rpc/allowed_calls.h"

namespace isthmus::coordinator {

absl::Span<const rpc::AllowedCall> AllowedCalls();

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_ALLOWED_CALLS_H_
