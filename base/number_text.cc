#include "base/number_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace isthmus {

std::string NumberText(double value) {
  constexpr double kMaxExact = 9007199254740992.0;  // 2^53
  if (std::abs(value) <= kMaxExact && value == std::floor(value))
    return absl::StrCat(static_cast<int64_t>(value));
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::string ShortNumberText(double value) {
  return value == std::floor(value) ? NumberText(value) : absl::StrFormat("%.12g", value);
}

std::string RangeText(int64_t least, int64_t most) {
  return least == most ? absl::StrCat(most) : absl::StrCat("from ", least, " to ", most);
}

std::string CountText(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace isthmus
