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

// What one end holds at most of what the other one sent.
inline int64_t MostBytesHeld(const LinkPlan& link, bool dials) {
  const int connections = Connections(link);
  const int64_t each = dials ? ConnectionWindowBytes(link) : kServingWindowBytes;
  return connections * each + (connections > 1 ? OrderWindowBytes(link) : 0);
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_LINK_BOUNDS_H_
