// What no job exceeds: products of these and sums over phases stay within int64_t.
#ifndef ISTHMUS_PROTO_JOB_JOB_LIMITS_H_
#define ISTHMUS_PROTO_JOB_JOB_LIMITS_H_

#include <cstdint>

namespace isthmus {

constexpr int kMaxHeads = 1024, kMaxHidden = 65536;  // of model
constexpr int64_t kMaxSteps = 1'000'000'000;         // of recipe, and of a phase
// checkpoint.local: so often that writing takes at most 1 / kPacedShare of the time, and no more
// than so many bytes a second go to a disk.
constexpr int64_t kPacedLocal = -1;
constexpr int kPacedShare = 25;
constexpr double kPacedBytesPerSecond = 5e6;

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_JOB_LIMITS_H_
