// Numbers as people read them, in messages and in files that are read again. Thread: pure.
#ifndef ISTHMUS_BASE_NUMBER_TEXT_H_
#define ISTHMUS_BASE_NUMBER_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace isthmus {

// The shortest text that reads back as `value`; whole numbers up to 2^53 without an exponent:
// 0.05, 1e-12, 1000000000.
std::string NumberText(double value);

// For messages alone: rounded to 12 digits, so that what was computed reads as what was meant:
// 0.0003, where a tenth of 0.003 is 0.00030000000000000003.
std::string ShortNumberText(double value);

// "from 2 to 5"; "2" where nothing else is in the range.
std::string RangeText(int64_t least, int64_t most);

// "1 layer", "3 layers".
std::string CountText(int64_t count, absl::string_view noun);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_NUMBER_TEXT_H_
