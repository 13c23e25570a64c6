#include "base/number_flag.h"

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/number_text.h"

namespace isthmus {
namespace {

bool HasOnly(const std::string& text, const char* characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string::npos;
}

// What the help says; also read by TableOf (coordinator/cli/shell/command_table.h).
std::string RangeName(const char* type, const std::string& least, const std::string& most) {
  return absl::StrCat(type, " in [", least, " - ", most, "]");
}

}  // namespace

CLI::Option* Whole(CLI::Option* option, uint64_t least, uint64_t most) {
  const auto read = [least, most](std::string& text) {
    uint64_t value = 0;
    if (!HasOnly(text, "0123456789") || !absl::SimpleAtoi(text, &value) || value < least ||
        value > most) {
      return absl::StrCat("'", text, "' is no whole number from ", least, " to ", most,
                          ", written in decimal digits alone");
    }
    text = absl::StrCat(value);  // CLI11 would read 030 as octal
    return std::string();
  };
  const std::string name =
      most == UINT64_MAX ? "" : RangeName("INT", absl::StrCat(least), absl::StrCat(most));
  return option->transform(CLI::Validator(read, name));
}

CLI::Option* Real(CLI::Option* option, double least, double most) {
  const auto read = [least, most](std::string& text) {
    double value = 0;
    const bool good = HasOnly(text, "0123456789.eE+-") && text[0] != '+' &&
                      absl::SimpleAtod(text, &value) && value >= least && value <= most;
    return good ? std::string()
                : absl::StrCat("'", text, "' is no number from ", NumberText(least), " to ",
                               NumberText(most));
  };
  return option->transform(
      CLI::Validator(read, RangeName("FLOAT", NumberText(least), NumberText(most))));
}

}  // namespace isthmus
