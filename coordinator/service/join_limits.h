// What strangers may cost at the port where hosts join: so many tries in a minute, of an address
// and in all, and so many at a time. What is refused is not remembered, so that memory has a bound,
// too.
// Thread: any.
#ifndef ISTHMUS_COORDINATOR_SERVICE_JOIN_LIMITS_H_
#define ISTHMUS_COORDINATOR_SERVICE_JOIN_LIMITS_H_

#include <deque>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace isthmus::coordinator {

constexpr absl::Duration kJoinWindow = absl::Minutes(1);

struct JoinLimits {
  int of_address = 10;  // tries in kJoinWindow
  int in_all = 120;     // likewise
  int at_once = 8;
};

class JoinLimiter {
 public:
  explicit JoinLimiter(JoinLimits limits) : limits_(limits) {}

  // A try begins; where it is OK, End follows. ResourceExhausted: too many; the message tells of
  // which, and when to come again. `now` is steady.
  absl::Status Begin(const std::string& address, absl::Time now);
  void End();

 private:
  const JoinLimits limits_;
  Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  // The last minute's, at most in_all.
  std::deque<std::pair<absl::Time, std::string>> tries_ ABSL_GUARDED_BY(mutex_);
};

// What counts as one address, of gRPC's name of a peer: "10.0.0.1" of "ipv4:10.0.0.1:53412"; of
// IPv6 the first 64 bits, which one household has.
std::string AddressOfPeer(absl::string_view peer);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_JOIN_LIMITS_H_
