#include "coordinator/cli/job/record_csv.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cli/view/json_out.h"

namespace isthmus::cli {
namespace {

using google::protobuf::FieldDescriptor;

// All single fields; a field has_X is told by an empty X.
std::vector<const FieldDescriptor*> Columns() {
  std::vector<const FieldDescriptor*> columns;
  const auto* type = JobRecord::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (!field->is_repeated() && field->message_type() == nullptr &&
        !absl::StartsWith(field->name(), "has_"))
      columns.push_back(field);
  }
  return columns;
}

bool Missing(const JobRecord& record, const FieldDescriptor* field) {
  if (field->has_presence()) return !record.GetReflection()->HasField(record, field);
  const FieldDescriptor* has =
      JobRecord::descriptor()->FindFieldByName(absl::StrCat("has_", field->name()));
  return has != nullptr && !record.GetReflection()->GetBool(record, has);
}

std::string Value(const JobRecord& record, const FieldDescriptor* field) {
  const auto* r = record.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = r->GetDouble(record, field);
      return std::isfinite(value) ? JsonNumber(value) : "";
    }
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(r->GetInt64(record, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(r->GetUInt64(record, field));
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(r->GetInt32(record, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r->GetBool(record, field) ? "1" : "0";
    default:  // a text
      return JsonString(r->GetString(record, field));
  }
}

}  // namespace

std::string RecordCsvHeader() {
  std::vector<std::string> names;
  for (const FieldDescriptor* field : Columns()) names.push_back(field->name());
  return absl::StrJoin(names, ",") + "\n";
}

std::string RecordCsv(const JobRecord& record) {
  std::vector<std::string> values;
  for (const FieldDescriptor* field : Columns())
    values.push_back(Missing(record, field) ? "" : Value(record, field));
  return absl::StrJoin(values, ",") + "\n";
}

}  // namespace isthmus::cli
