#include "coordinator/cli/view/json_out.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace isthmus::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// "finished" of JOB_FINISHED, as StateName: the word of texts and metrics.
std::string EnumWord(absl::string_view name) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, "JOB_"));
}

class Writer {
 public:
  explicit Writer(bool pretty) : pretty_(pretty) {}

  void Object(const Message& message, int depth) {
    out_ += '{';
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message.GetDescriptor()->field(i);
      if (field->containing_oneof() != nullptr &&  // optional ones, too
          !message.GetReflection()->HasField(message, field))
        continue;
      if (out_.back() != '{') out_ += ',';
      Break(depth + 1);
      const bool direction = IsDirection(field);
      absl::StrAppend(&out_, JsonString(direction ? "direction" : field->name()),
                      pretty_ ? ": " : ":");
      if (direction) {
        const bool forward = message.GetReflection()->GetBool(message, field);
        out_ += JsonString(forward ? "forward" : "backward");
        continue;
      }
      field->is_repeated() ? List(message, field, depth + 1) : Value(message, field, -1, depth + 1);
    }
    if (out_.back() != '{') Break(depth);
    out_ += '}';
  }
  std::string Take() { return std::move(out_); }

 private:
  // The .proto files have `bool forward`; people read `direction` everywhere else.
  static bool IsDirection(const FieldDescriptor* field) {
    return field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL && !field->is_repeated() &&
           field->name() == "forward";
  }

  void Break(int depth) {
    if (pretty_) absl::StrAppend(&out_, "\n", std::string(2 * static_cast<size_t>(depth), ' '));
  }

  void List(const Message& message, const FieldDescriptor* field, int depth) {
    const int size = message.GetReflection()->FieldSize(message, field);
    // Lists of numbers and texts stay on one line.
    const bool lines = field->message_type() != nullptr;
    out_ += '[';
    for (int i = 0; i < size; ++i) {
      if (i > 0) absl::StrAppend(&out_, pretty_ && !lines ? ", " : ",");
      if (lines) Break(depth + 1);
      Value(message, field, i, depth + 1);
    }
    if (lines && size > 0) Break(depth);
    out_ += ']';
  }

  void Value(const Message& message, const FieldDescriptor* field, int index, int depth) {
    const auto* r = message.GetReflection();
    const bool list = index >= 0;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (!list && !r->HasField(message, field)) {
          out_ += "null";
        } else {
          Object(
              list ? r->GetRepeatedMessage(message, field, index) : r->GetMessage(message, field),
              depth);
        }
        break;
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text =
            list ? r->GetRepeatedString(message, field, index) : r->GetString(message, field);
        out_ += JsonString(field->type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text)
                                                                        : text);
        break;
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        out_ += (list ? r->GetRepeatedBool(message, field, index) : r->GetBool(message, field))
                    ? "true"
                    : "false";
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        out_ += JsonString(
            EnumWord((list ? r->GetRepeatedEnum(message, field, index) : r->GetEnum(message, field))
                         ->name()));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        out_ += JsonNumber(list ? r->GetRepeatedDouble(message, field, index)
                                : r->GetDouble(message, field));
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        out_ += JsonNumber(list ? r->GetRepeatedFloat(message, field, index)
                                : r->GetFloat(message, field));
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        absl::StrAppend(
            &out_, list ? r->GetRepeatedInt32(message, field, index) : r->GetInt32(message, field));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        absl::StrAppend(
            &out_, list ? r->GetRepeatedInt64(message, field, index) : r->GetInt64(message, field));
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        absl::StrAppend(&out_, list ? r->GetRepeatedUInt32(message, field, index)
                                    : r->GetUInt32(message, field));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        absl::StrAppend(&out_, list ? r->GetRepeatedUInt64(message, field, index)
                                    : r->GetUInt64(message, field));
        break;
    }
  }

  const bool pretty_;
  std::string out_;
};

}  // namespace

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  Writer writer(pretty);
  writer.Object(message, 0);
  return pretty ? writer.Take() + "\n" : writer.Take();
}

std::string JsonString(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string JsonNumber(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

}  // namespace isthmus::cli
