// Numbers on command lines, read in one way by every program. CLI11 by itself takes 030 for 24,
// 0x1e and +30, wraps what is too large, and its Range takes NaN. Thread: one owner.
#ifndef ISTHMUS_BASE_NUMBER_FLAG_H_
#define ISTHMUS_BASE_NUMBER_FLAG_H_

#include <cstdint>

namespace CLI {
class Option;
}

namespace isthmus {

// An option whose value (each of them, where it takes several) must be a whole number from `least`
// to `most`, in decimal digits alone: zeros before it change nothing. Another text is a parse error
// that says so. Returns `option`.
CLI::Option* Whole(CLI::Option* option, uint64_t least, uint64_t most = UINT64_MAX);

// A finite number from `least` to `most`, in decimal digits, perhaps with a point and an exponent.
CLI::Option* Real(CLI::Option* option, double least, double most);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_NUMBER_FLAG_H_
