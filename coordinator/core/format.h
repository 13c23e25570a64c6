// Figures in words, for explanations and errors: "18.2 Mbit/s", "1.2 GiB", "0.41 s", "12 ms".
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CORE_FORMAT_H_
#define ISTHMUS_COORDINATOR_CORE_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace isthmus::coordinator {

std::string FormatRate(double bits_per_s);
std::string FormatBytes(double bytes);
std::string FormatSeconds(double seconds);
std::string DurationWords(absl::Duration duration);  // to a tenth of a second: "7.5 s"
std::string FormatShare(double share);  // 0.958 is "96 %", 0.004 "0.4 %", 0.0004 "0.04 %"
std::string FormatCount(double count);  // 950, 131072, 4.8 million

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_FORMAT_H_
