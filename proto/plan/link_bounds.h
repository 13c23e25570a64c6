// What a link may take: TCP connections side by side, and the bytes that pile up at an end whose
// session does not take them. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_LINK_BOUNDS_H_
#define ISTHMUS_PROTO_PLAN_LINK_BOUNDS_H_

#include <algorithm>
#include <cstdint>

#include "proto/plan.pb.h"

namespace isthmus {

constexpr int kMaxConnections = 8;
// Of each connection towards the end that is dialled: gRPC fixes a server's window when it starts.
constexpr int64_t kServingWindowBytes = 16 << 20;
constexpr int64_t kOrderBytesAConnection = 1 << 20;  // at least: two of the largest chunks

inline int Connections(const LinkPlan& link) { return std::max(1, link.connections()); }

// Of each connection towards the dialling end: several together let through twice what one would,
// so that one that recovers from a loss does not stall the others.
inline int64_t ConnectionWindowBytes(const LinkPlan& link) {
  const int connections = Connections(link);
  return connections > 1 ? 2 * link.window_bytes() / connections : link.window_bytes();
}

// What may wait for its turn, of several connections.
inline int64_t OrderWindowBytes(const LinkPlan& link) {
  return std::max(link.window_bytes(), kOrderBytesAConnection * Connections(link));
}

// What an end keeps at most, of each connection, of what it sent and does not know to have come.
// The other end may hold a window of it, and gRPC widens windows where the line is long.
inline int64_t KeptBytes(const LinkPlan& link) {
  return std::max(kServingWindowBytes, 4 * ConnectionWindowBytes(link));
}

// What one end holds at most of a link: what the other one sent, and what it keeps itself.
inline int64_t MostBytesHeld(const LinkPlan& link, bool dials) {
  const int connections = Connections(link);
  const int64_t each = dials ? ConnectionWindowBytes(link) : kServingWindowBytes;
  return connections * (each + KeptBytes(link)) + (connections > 1 ? OrderWindowBytes(link) : 0);
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_LINK_BOUNDS_H_
