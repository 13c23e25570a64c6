// Where the dials of lower stages meet the session of this daemon: a dial waits here until the
// session asks for it, or is refused because it belongs to an older generation (the fence). Thread:
// any. Each waiting dial holds one server thread; at most kMaxWaiting of them.
#ifndef ISTHMUS_DAEMON_NET_DIAL_BOARD_H_
#define ISTHMUS_DAEMON_NET_DIAL_BOARD_H_

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/net/link_stream.h"
#include "daemon/net/redials.h"

namespace isthmus::daemon {

class DialBoard {
 public:
  static constexpr int kMaxWaiting = 128;

  using Diallers = std::map<std::string, std::string>;  // link -> the node that the plan lets dial

  // From now on dials of older generations of this job are refused, waiting ones too, and those of
  // a link by another node than its dialler.
  void SetSession(const std::string& job_id, uint64_t generation, Diallers diallers = {});

  struct Dial {
    std::shared_ptr<ServerCall> call;
    LinkHello hello;
  };

  // Session: the dial of one of a link's connections. DeadlineExceeded if none came;
  // FailedPrecondition if it came with another generation, and which.
  absl::StatusOr<Dial> Await(const std::string& job_id, uint64_t generation,
                             const std::string& link_id, absl::Duration timeout,
                             int connection = 0);

  // Handler: waits until a session takes the dial and OK is returned (then wait for call->ended),
  // or the error to answer with. Ends also when the caller goes away.
  absl::Status Offer(const LinkHello& hello, const std::shared_ptr<ServerCall>& call,
                     absl::Duration timeout);

  // Everything that waits ends with `why`, now and later.
  void Shutdown(const absl::Status& why);
  // Awaits end with `why`; the next SetSession opens the board again.
  void CancelAwaits(const absl::Status& why);

  // Of links that are open: where dials that mend them go.
  Redials& redials() { return redials_; }

 private:
  // Job, generation, link, connection, and who dials: nobody takes another one's place.
  using Key = std::tuple<std::string, uint64_t, std::string, int, std::string>;
  absl::Status Unwanted(const LinkHello& hello) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Redials redials_;
  Mutex mutex_;
  CondVar changed_;
  std::string job_id_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  Diallers diallers_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Dial> waiting_ ABSL_GUARDED_BY(mutex_);
  std::string other_generation_
      ABSL_GUARDED_BY(mutex_);  // the last dial of another generation, in words
  absl::Status shutdown_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_DIAL_BOARD_H_
