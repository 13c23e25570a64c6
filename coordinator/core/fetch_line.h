// Who reads checkpoints now, and who waits for it. A value: `now` is a parameter. Two lines, so
// that exports over slow links never hold up daemons that start a job; each serves by arrival. A
// reader that moves nothing for `stall` is to be broken off. Thread: one owner. Bounds: kMaxFetches
// and kMaxExports at once, kMaxFetchesWaiting in each line.
#ifndef ISTHMUS_COORDINATOR_CORE_FETCH_LINE_H_
#define ISTHMUS_COORDINATOR_CORE_FETCH_LINE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace isthmus::coordinator {

constexpr int kMaxFetches = 32;  // of daemons; one holds a buffer and what gRPC has under way
constexpr int kMaxExports = 8;
constexpr int kMaxFetchesWaiting = 64;
constexpr char kWaitsBehind[] = "isthmus-waits-behind";  // metadata of a call that waits: how many

class FetchLine {
 public:
  enum Kind { kDaemon, kExport };

  explicit FetchLine(absl::Duration stall) : stall_(stall) {}

  // A ticket for Leave. ResourceExhausted: the line is full, with its numbers.
  absl::StatusOr<uint64_t> Enter(Kind kind);
  // How many of its kind are before it; 0: it may run, now and until it leaves.
  int Before(uint64_t ticket, absl::Time now);
  void Progress(uint64_t ticket, absl::Time now);
  void Leave(uint64_t ticket);
  std::vector<uint64_t> Stalled(absl::Time now) const;  // they run, and move nothing

 private:
  struct Entry {
    Kind kind = kDaemon;
    bool runs = false;
    absl::Time moved;
  };
  const absl::Duration stall_;
  std::map<uint64_t, Entry> entries_;  // by ticket, which is by arrival
  uint64_t last_ = 0;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_FETCH_LINE_H_
