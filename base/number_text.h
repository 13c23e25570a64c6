// A number as people read it, in messages and in files that are read again. Thread: pure.
#ifndef ISTHMUS_BASE_NUMBER_TEXT_H_
#define ISTHMUS_BASE_NUMBER_TEXT_H_

#include <string>

namespace isthmus {

// The shortest text that reads back as `value`; whole numbers up to 2^53 without an exponent:
// 0.05, 1e-12, 1000000000.
std::string NumberText(double value);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_NUMBER_TEXT_H_
