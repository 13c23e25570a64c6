// What delta buffers may take of a GPU's memory beside the stages there: the rule that a daemon
// follows when it makes a codec, and that the planner says in words. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_CARD_MEMORY_H_
#define ISTHMUS_PROTO_PLAN_CARD_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "proto/plan.pb.h"

namespace isthmus {

// Bytes that the stages on the host of `rank` are going to take, by the addresses of their daemons:
// a daemon does not know which of its neighbours compute on its own card, so all count.
inline int64_t PlannedOnHost(const Plan& plan, int rank) {
  const auto host = [&plan](int r) {
    const std::string& address = plan.ranks(r).address();
    return address.substr(0, address.rfind(':'));
  };
  int64_t bytes = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (r == rank || (host(r) == host(rank) && !host(r).empty()))
      bytes += plan.ranks(r).memory_bytes();
  }
  return bytes;
}

// Bytes of a card for the delta buffers of one end of a boundary, where `free_bytes` of it are free
// and `keep_bytes` of those are spoken for: a quarter of the rest, as a stage has two such ends and
// frameworks keep more than they use.
inline int64_t CardBufferBytes(int64_t free_bytes, int64_t keep_bytes) {
  return std::max<int64_t>(0, free_bytes - keep_bytes) / 4;
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_CARD_MEMORY_H_
