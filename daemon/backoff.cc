#include "daemon/backoff.h"

#include <algorithm>

#include "base/rng.h"

namespace isthmus::daemon {

absl::Duration BackoffDelay(const BackoffOptions& options, int failures, uint64_t seed) {
  const int doublings = std::clamp(failures - 1, 0, 30);
  const absl::Duration full = std::min(options.first * (int64_t{1} << doublings), options.cap);
  return full * (0.5 + 0.5 * RandomUniform(seed, 0, static_cast<uint64_t>(failures)));
}

}  // namespace isthmus::daemon
