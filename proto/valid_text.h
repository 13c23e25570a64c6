// proto3's string fields are UTF-8: a message with other text leaves its sender with a line in the
// log and is refused by its receiver, a registration or a heartbeat for ever. Texts of the system
// (errors with names of files, a cut in the midst of a character) may be anything, so each message
// that carries words passes here before it is written. Thread: pure functions.
#ifndef ISTHMUS_PROTO_VALID_TEXT_H_
#define ISTHMUS_PROTO_VALID_TEXT_H_

namespace google::protobuf {
class Message;
}

namespace isthmus {

// Puts U+FFFD for bytes that are not UTF-8, in all string fields, those of messages inside it
// included. True if there were any.
bool MakeTextValid(google::protobuf::Message* message);

template <typename M>
M WithValidText(M message) {
  MakeTextValid(&message);
  return message;
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_VALID_TEXT_H_
