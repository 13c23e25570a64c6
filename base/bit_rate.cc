#include "base/bit_rate.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace isthmus {

absl::StatusOr<int64_t> ParseBitRate(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (rest == "unlimited" || rest == "0") return 0;
  const auto fail = [&text](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate '", text, "' ", why, "; write 100Mbit, 1.5Gbit, 64kbit or unlimited"));
  };
  absl::ConsumeSuffix(&rest, "/s");
  double factor = 1;
  if (absl::ConsumeSuffix(&rest, "Gbit")) {
    factor = 1e9;
  } else if (absl::ConsumeSuffix(&rest, "Mbit")) {
    factor = 1e6;
  } else if (absl::ConsumeSuffix(&rest, "kbit")) {
    factor = 1e3;
  } else if (!absl::ConsumeSuffix(&rest, "bit")) {
    return fail("has no unit of bits");
  }
  double value = 0;
  if (!absl::SimpleAtod(rest, &value) || !std::isfinite(value)) return fail("is not a number");
  value = std::round(value * factor);
  if (value == 0) return 0;
  if (value < static_cast<double>(kMinBitRate) || value > static_cast<double>(kMaxBitRate))
    return fail("is out of range (1kbit to 1000Gbit)");
  return static_cast<int64_t>(value);
}

std::string FormatBitRate(int64_t rate) {
  if (rate == 0) return "unlimited";
  if (rate % 1'000'000'000 == 0) return absl::StrCat(rate / 1'000'000'000, "Gbit");
  if (rate % 1'000'000 == 0) return absl::StrCat(rate / 1'000'000, "Mbit");
  if (rate % 1'000 == 0) return absl::StrCat(rate / 1'000, "kbit");
  return absl::StrCat(rate, "bit");
}

}  // namespace isthmus
