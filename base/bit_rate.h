// Rates of links in bits a second as people write them: "100Mbit", "1.5Gbit/s", "64kbit", "900bit".
// "unlimited" and "0" stand for none. Thread: pure. Limits: kMinBitRate to kMaxBitRate.
#ifndef ISTHMUS_BASE_BIT_RATE_H_
#define ISTHMUS_BASE_BIT_RATE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

inline constexpr int64_t kMinBitRate = 1'000;
inline constexpr int64_t kMaxBitRate = 1'000'000'000'000;

// What a daemon may be told of its uplink (isthmusd --uplink).
inline constexpr int64_t kMinUplink = 500'000;
inline constexpr int64_t kMaxUplink = 100'000'000'000;

// Bits a second, rounded to whole ones; 0: unlimited. InvalidArgument names the text and what to
// write.
absl::StatusOr<int64_t> ParseBitRate(absl::string_view text);

// As ParseBitRate reads it, exactly: "1500kbit", "unlimited".
std::string FormatBitRate(int64_t bits_per_s);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_BIT_RATE_H_
