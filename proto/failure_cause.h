// The cause of a failure on an absl::Status: a FailureCause as its payload, so that it goes through
// every function that passes a status on, and no program reads words. Thread: pure functions.
#ifndef ISTHMUS_PROTO_FAILURE_CAUSE_H_
#define ISTHMUS_PROTO_FAILURE_CAUSE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "proto/failure.pb.h"

namespace isthmus {

FailureCause MakeCause(FailureCause::Kind kind, int rank = -1, const std::string& node = "",
                       int64_t step = 0);

// The error with `cause`; its message becomes the story.
absl::Status WithCause(absl::Status error, FailureCause cause);

// None: nobody has said it yet.
absl::optional<FailureCause> CauseOf(const absl::Status& error);

// The same without its story, for a message that has the words beside it. Kind UNTOLD: none.
FailureCause CauseBeside(const absl::Status& error);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_FAILURE_CAUSE_H_
