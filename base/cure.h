// Whether an error's words say already what to do: a mark on the status, which goes through every
// function that passes it on, so that whoever tells it adds no second advice. Thread: pure
// functions.
#ifndef ISTHMUS_BASE_CURE_H_
#define ISTHMUS_BASE_CURE_H_

#include "absl/status/status.h"

namespace isthmus {

// The error, marked: its message names the cure.
absl::Status WithCure(absl::Status error);

bool TellsCure(const absl::Status& error);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_CURE_H_
