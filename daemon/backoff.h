// How long to wait before the n-th new attempt: doubling, capped, with jitter so that many daemons
// don't come back at once. Thread: pure functions.
#ifndef ISTHMUS_DAEMON_BACKOFF_H_
#define ISTHMUS_DAEMON_BACKOFF_H_

#include <cstdint>

#include "absl/time/time.h"

namespace isthmus::daemon {

struct BackoffOptions {
  absl::Duration first = absl::Milliseconds(500);
  absl::Duration cap = absl::Seconds(10);
};

// `failures` in a row so far, at least 1. Between half of the full wait and the full wait, by
// (seed, failures).
absl::Duration BackoffDelay(const BackoffOptions& options, int failures, uint64_t seed);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_BACKOFF_H_
