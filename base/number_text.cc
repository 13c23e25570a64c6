#include "base/number_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace isthmus {

std::string NumberText(double value) {
  constexpr double kMaxExact = 9007199254740992.0;  // 2^53
  if (std::abs(value) <= kMaxExact && value == std::floor(value))
    return absl::StrCat(static_cast<int64_t>(value));
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

}  // namespace isthmus
