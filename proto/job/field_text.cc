#include "proto/job/field_text.h"

#include <google/protobuf/descriptor.h>

#include <cassert>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"

namespace isthmus {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string Whole(const FieldDescriptor* field, int64_t value) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return absl::EndsWith(field->name(), "_bytes") && value % kMiB == 0
             ? absl::StrCat(value / kMiB, "MiB")
             : absl::StrCat(value);
}

std::string Inline(const Message& message) {
  std::vector<std::string> items;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->has_presence() && !message.GetReflection()->HasField(message, field)) continue;
    const char* quote = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING ? "'" : "";
    items.push_back(absl::StrCat(field->name(), ": ", quote, FieldText(message, field), quote));
  }
  return absl::StrCat("{", absl::StrJoin(items, ", "), "}");
}

// `index`: of a list; -1 for a value that stands alone.
std::string ValueText(const Message& message, const FieldDescriptor* field, int index) {
  const auto* r = message.GetReflection();
  const bool list = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return (list ? r->GetRepeatedBool(message, field, index) : r->GetBool(message, field))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return ShortNumberText(list ? r->GetRepeatedDouble(message, field, index)
                                  : r->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? r->GetRepeatedString(message, field, index) : r->GetString(message, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return Whole(field,
                   list ? r->GetRepeatedInt32(message, field, index) : r->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(list ? r->GetRepeatedUInt64(message, field, index)
                               : r->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return Whole(field,
                   list ? r->GetRepeatedInt64(message, field, index) : r->GetInt64(message, field));
    default:
      assert(list && field->message_type() != nullptr);  // job.proto has no other types
      return Inline(r->GetRepeatedMessage(message, field, index));
  }
}

}  // namespace

std::string FieldText(const Message& message, const FieldDescriptor* field) {
  if (!field->is_repeated()) return ValueText(message, field, -1);
  std::vector<std::string> items;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i)
    items.push_back(ValueText(message, field, i));
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

}  // namespace isthmus
