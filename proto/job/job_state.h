// JobStatus in words: its state, "running", "paused" ..., and codecs. Thread: pure.
#ifndef ISTHMUS_PROTO_JOB_JOB_STATE_H_
#define ISTHMUS_PROTO_JOB_JOB_STATE_H_

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "proto/control.pb.h"

namespace isthmus {

// The name without JOB_, in lower case.
inline std::string StateName(JobState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(JobState_Name(state), "JOB_"));
}

// In BoundaryTotals.codec, where validation passes were among what a direction carried: between its
// codec and theirs.
constexpr char kWithValidations[] = ", validations ";

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_JOB_STATE_H_
