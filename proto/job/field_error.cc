#include "proto/job/field_error.h"

#include "absl/strings/cord.h"

namespace isthmus {
namespace {

constexpr char kField[] = "isthmus.job/field", kAllowed[] = "isthmus.job/allowed";

std::string Payload(const absl::Status& error, absl::string_view url) {
  const auto payload = error.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace

absl::Status FieldError(absl::string_view field, absl::string_view what) {
  absl::Status error = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  error.SetPayload(kField, absl::Cord(field));
  return error;
}

absl::Status ValueError(absl::string_view field, absl::string_view what,
                        absl::string_view allowed) {
  absl::Status error = FieldError(field, absl::StrCat(what, "it must be ", allowed));
  error.SetPayload(kAllowed, absl::Cord(allowed));
  return error;
}

FieldFault FaultOf(const absl::Status& error) {
  FieldFault fault{Payload(error, kField), std::string(error.message()), Payload(error, kAllowed)};
  if (!fault.field.empty()) fault.what.erase(0, fault.field.size() + 2);  // ": "
  return fault;
}

}  // namespace isthmus
