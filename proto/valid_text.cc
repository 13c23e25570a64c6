#include "proto/valid_text.h"

#include <string>
#include <vector>

#include "base/utf8.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace isthmus {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A plan has many thousands of actions: what can't hold text is not looked at.
bool MayHoldText(const Descriptor& type) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.type() == FieldDescriptor::TYPE_STRING || field.message_type() != nullptr)
      return true;
  }
  return false;
}

bool FixText(const FieldDescriptor* field, Message* message) {
  const Reflection& r = *message->GetReflection();
  bool fixed = false;
  std::string scratch;
  if (!field->is_repeated()) {
    const std::string& text = r.GetStringReference(*message, field, &scratch);
    if (IsUtf8(text)) return false;
    r.SetString(message, field, ToUtf8(text));
    return true;
  }
  for (int i = 0; i < r.FieldSize(*message, field); ++i) {
    const std::string& text = r.GetRepeatedStringReference(*message, field, i, &scratch);
    if (IsUtf8(text)) continue;
    r.SetRepeatedString(message, field, i, ToUtf8(text));
    fixed = true;
  }
  return fixed;
}

bool FixMessages(const FieldDescriptor* field, Message* message) {
  if (!MayHoldText(*field->message_type())) return false;
  const Reflection& r = *message->GetReflection();
  if (!field->is_repeated()) return MakeTextValid(r.MutableMessage(message, field));
  bool fixed = false;
  for (int i = 0; i < r.FieldSize(*message, field); ++i)
    fixed = MakeTextValid(r.MutableRepeatedMessage(message, field, i)) || fixed;
  return fixed;
}

}  // namespace

bool MakeTextValid(Message* message) {
  std::vector<const FieldDescriptor*> fields;  // that are set
  message->GetReflection()->ListFields(*message, &fields);
  bool fixed = false;
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      fixed = FixText(field, message) || fixed;
    } else if (field->message_type() != nullptr) {
      fixed = FixMessages(field, message) || fixed;
    }
  }
  return fixed;
}

}  // namespace isthmus
