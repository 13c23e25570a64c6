#include "coordinator/cli/job/job_scalar.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace isthmus::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxTextBytes = 4096;
constexpr double kMaxExact = 9007199254740992.0;  // 2^53

bool IsBytes(const FieldDescriptor* field) { return absl::EndsWith(field->name(), "_bytes"); }
bool IsShare(const FieldDescriptor* field) { return absl::EndsWith(field->name(), "_share"); }

absl::Status Wrong(absl::string_view text, const FieldDescriptor* field) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", Shown(text), "' is not ", TypeInWords(field)));
}

}  // namespace

std::string Shown(absl::string_view text) {
  return text.size() <= 60 ? std::string(text) : absl::StrCat(text.substr(0, 57), "...");
}

std::string TypeInWords(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return IsShare(field) ? "a number such as 0.05, or a percentage such as 5%" : "a number";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a text";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "a section";
    default:
      return IsBytes(field) ? "a size such as 256MiB" : "a whole number";
  }
}

absl::Status SetScalar(const std::string& text, const FieldDescriptor* field, Message* message) {
  const auto* reflection = message->GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (absl::StrContains(text, '\0'))
        return absl::InvalidArgumentError("has a NUL character, which no text here may hold");
      if (text.size() > kMaxTextBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("has ", text.size(), " bytes; at most ", kMaxTextBytes));
      }
      list ? reflection->AddString(message, field, text)
           : reflection->SetString(message, field, text);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return Wrong(text, field);
      reflection->SetBool(message, field, text == "true");
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      absl::string_view digits = text;
      const bool percent = absl::ConsumeSuffix(&digits, "%");
      double value = 0;
      if ((percent && !IsShare(field)) || !absl::SimpleAtod(digits, &value) ||
          !std::isfinite(value))
        return Wrong(text, field);
      reflection->SetDouble(message, field, percent ? value / 100 : value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      ASSIGN_OR_RETURN(const int64_t value, ParseWholeNumber(text));
      if (value < std::numeric_limits<int32_t>::min() ||
          value > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(absl::StrCat(value, " is too large for this field"));
      }
      list ? reflection->AddInt32(message, field, static_cast<int32_t>(value))
           : reflection->SetInt32(message, field, static_cast<int32_t>(value));
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      ASSIGN_OR_RETURN(const int64_t value,
                       IsBytes(field) ? ParseByteSize(text) : ParseWholeNumber(text));
      reflection->SetInt64(message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      if (absl::StartsWith(text, "+") || !absl::SimpleAtoi(text, &value)) {
        ASSIGN_OR_RETURN(const int64_t parsed, ParseWholeNumber(text));
        if (parsed < 0)
          return absl::InvalidArgumentError(
              absl::StrCat(parsed, " is negative; it must be 0 or more"));
        value = static_cast<uint64_t>(parsed);
      }
      reflection->SetUInt64(message, field, value);
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError(
          absl::StrCat("field type ", field->cpp_type_name(), " in job files"));
  }
}

absl::StatusOr<int64_t> ParseWholeNumber(absl::string_view text) {
  int64_t value = 0;
  const bool plain = text.find_first_not_of("0123456789.eE+-") == absl::string_view::npos &&
                     !absl::StartsWith(text, "+");
  if (plain && absl::SimpleAtoi(text, &value)) return value;
  double real = 0;
  if (!plain || !absl::SimpleAtod(text, &real) || !std::isfinite(real)) {
    return absl::InvalidArgumentError(absl::StrCat("'", Shown(text), "' is not a whole number"));
  }
  if (real != std::floor(real))
    return absl::InvalidArgumentError(absl::StrCat("must be a whole number, not ", Shown(text)));
  if (std::abs(real) > kMaxExact)
    return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is too large"));
  return static_cast<int64_t>(real);
}

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const size_t unit_at = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  const absl::string_view digits = text.substr(0, unit_at);
  const absl::string_view unit = absl::StripAsciiWhitespace(text.substr(unit_at));
  static const std::map<absl::string_view, double> kUnits = {{"", 1},
                                                             {"B", 1},
                                                             {"kB", 1e3},
                                                             {"KB", 1e3},
                                                             {"MB", 1e6},
                                                             {"GB", 1e9},
                                                             {"TB", 1e12},
                                                             {"KiB", 1024.0},
                                                             {"MiB", 1048576.0},
                                                             {"GiB", 1073741824.0},
                                                             {"TiB", 1099511627776.0}};
  const auto factor = kUnits.find(unit);
  double value = 0;
  if (factor == kUnits.end() || !absl::SimpleAtod(digits, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", Shown(text), "' is not a size; write bytes or a unit: 1048576, 512KiB, 256MiB, 2GB"));
  }
  const double bytes = std::round(value * factor->second);
  if (bytes < 0 || bytes > kMaxExact)
    return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is out of range"));
  return static_cast<int64_t>(bytes);
}

}  // namespace isthmus::cli
