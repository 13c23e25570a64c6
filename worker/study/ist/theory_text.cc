#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "worker/study/ist/theory.h"

namespace isthmus::study::ist {
namespace {

std::string Number(double value) {
  const double size = std::abs(value);
  return size != 0 && (size < 1e-3 || size >= 1e5) ? absl::StrFormat("%.3e", value)
                                                   : absl::StrFormat("%.6f", value);
}

}  // namespace

std::string RenderTheory(const std::vector<TheoryRow>& rows) {
  size_t part = 4, what = 6;
  for (const TheoryRow& row : rows) {
    part = std::max(part, row.part.size());
    what = std::max(what, row.what.size());
  }
  std::string out = absl::StrFormat("%-*s  %-*s  %12s  %12s  %9s  %9s\n", static_cast<int>(part),
                                    "PART", static_cast<int>(what), "RESULT", "MEASURED",
                                    "CLOSED FORM", "DEVIATION", "TOLERANCE");
  for (const TheoryRow& row : rows) {
    absl::StrAppendFormat(&out, "%-*s  %-*s  %12s  %12s  %9.1e  %9.1e%s\n", static_cast<int>(part),
                          row.part, static_cast<int>(what), row.what, Number(row.measured),
                          absl::StrCat(row.bound ? "<= " : "", Number(row.expected)), row.deviation,
                          row.tolerance, row.holds() ? "" : "  MISSED");
  }
  return out;
}

std::string RenderTheoryJson(const std::vector<TheoryRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TheoryRow& row : rows) {
    list.push_back({{"part", row.part},
                    {"result", row.what},
                    {"measured", row.measured},
                    {"closed_form", row.expected},
                    {"bound", row.bound},
                    {"deviation", row.deviation},
                    {"tolerance", row.tolerance},
                    {"holds", row.holds()}});
  }
  return list.dump(2) + "\n";
}

}  // namespace isthmus::study::ist
