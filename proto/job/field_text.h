// A field of a job as text: for templates and for tables of what differs. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_FIELD_TEXT_H_
#define ISTHMUS_PROTO_JOB_FIELD_TEXT_H_

#include <google/protobuf/message.h>

#include <string>

namespace isthmus {

// The value as a job file writes it, so that it reads back: numbers in full, a field ending in
// _bytes in MiB where it is so many, a list as [a, b], a section in a list as {key: value} with the
// keys that are set. Not for a section by itself.
std::string FieldText(const google::protobuf::Message& message,
                      const google::protobuf::FieldDescriptor* field);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_FIELD_TEXT_H_
