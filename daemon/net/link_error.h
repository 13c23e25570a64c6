// How one end of a link tells the other why it stops: words, a code and, where a session failed,
// its FailureCause. The dialling end writes it as its last message. The serving end can't: breaking
// a call leaves it the text of a gRPC status alone, so the cause follows the words there, encoded,
// behind a separator that no words have. Thread: pure functions.
#ifndef ISTHMUS_DAEMON_NET_LINK_ERROR_H_
#define ISTHMUS_DAEMON_NET_LINK_ERROR_H_

#include "absl/status/status.h"
#include "proto/peer.pb.h"

namespace isthmus::daemon {

constexpr size_t kMaxReasonBytes = 2'000;  // with the cause it has to fit into gRPC's trailers

LinkChunk ErrorChunk(const absl::Status& why);
absl::Status ErrorOf(const LinkChunk& last);  // that the peer ended the link, and why

// `why` with its cause, if it has one, behind a separator in its message; and back.
absl::Status ToTrailer(const absl::Status& why);
bool IsTold(const absl::Status& trailer);  // it is one of ToTrailer, and not gRPC's own
absl::Status FromTrailer(const absl::Status& told);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_LINK_ERROR_H_
