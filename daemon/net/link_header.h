// What a call of Peer.Link says beside its hello, as metadata of the call, each way: whether this
// end's streams outlive their connections (resuming_stream.h), and, of a call that mends a broken
// one, how far it got. Daemons that know nothing of it neither send nor see it. Thread: pure
// functions.
#ifndef ISTHMUS_DAEMON_NET_LINK_HEADER_H_
#define ISTHMUS_DAEMON_NET_LINK_HEADER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus::daemon {

struct LinkHeader {
  enum Kind {
    kNone,
    kResumes,  // of a new link, and of its answer
    kRedial,   // takes the place of a broken connection; its answer is one as well
    kAsk,      // the serving end lost the connection: is the link still there? Then dial again
  };
  Kind kind = kNone;
  uint64_t attempt = 0;   // kRedial: numbers the dials of a connection; kAsk: that of the lost one
  uint64_t received = 0;  // kRedial: messages of the other end that have come over all connections
};

inline constexpr char kLinkHeaderKey[] = "isthmus-link";

std::string LinkHeaderText(const LinkHeader& header);  // empty: kNone
// InvalidArgument: it is none of the above. Empty is kNone.
absl::StatusOr<LinkHeader> ParseLinkHeader(absl::string_view text);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_LINK_HEADER_H_
