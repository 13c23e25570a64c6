#include "coordinator/core/format.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace isthmus::coordinator {
namespace {

// Three significant digits, without an exponent.
std::string Three(double v) {
  if (v == 0) return "0";
  const double a = std::fabs(v);
  if (a >= 99.95) return absl::StrFormat("%.0f", v);
  if (a >= 9.995) return absl::StrFormat("%.1f", v);
  if (a >= 0.9995) return absl::StrFormat("%.2f", v);
  return absl::StrFormat("%.3g", v);
}

}  // namespace

std::string FormatRate(double r) {
  if (r >= 1e9) return absl::StrCat(Three(r / 1e9), " Gbit/s");
  if (r >= 1e6) return absl::StrCat(Three(r / 1e6), " Mbit/s");
  return absl::StrCat(Three(r / 1e3), " kbit/s");
}

std::string FormatBytes(double b) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int u = 0;
  while (std::fabs(b) >= 1024 && u < 5) {
    b /= 1024;
    ++u;
  }
  return absl::StrCat(Three(b), " ", units[u]);
}

std::string FormatSeconds(double s) {
  if (s <= 0) return "0 s";
  if (s >= 7200) return absl::StrCat(Three(s / 3600), " h");
  if (s >= 600) return absl::StrCat(Three(s / 60), " min");
  if (s >= 0.1) return absl::StrCat(Three(s), " s");
  if (s >= 1e-4) return absl::StrCat(Three(s * 1e3), " ms");
  return absl::StrCat(Three(s * 1e6), " us");
}

std::string DurationWords(absl::Duration duration) {
  return absl::StrCat(std::round(absl::ToDoubleSeconds(duration) * 10) / 10, " s");
}

std::string FormatShare(double share) {
  const int digits = share <= 0 || share >= 0.0995 ? 0 : share >= 9.5e-4 ? 1 : 2;
  return absl::StrFormat("%.*f %%", digits, 100 * share);
}

std::string FormatCount(double n) {
  if (n >= 1e9) return absl::StrCat(Three(n / 1e9), " billion");
  if (n >= 1e6) return absl::StrCat(Three(n / 1e6), " million");
  return absl::StrFormat("%.0f", n);
}

}  // namespace isthmus::coordinator
