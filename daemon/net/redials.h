// Where a dial that mends a broken connection meets the link that it belongs to. A link that is
// open holds a Place for each of its connections. At the serving end a redial is offered there; at
// the dialling end the other one asks whether the link is still there. Nobody waits for a link that
// is not: both are refused in words then. Thread: any. Each offered redial holds one server thread.
// Limits: one redial and one place a connection.
#ifndef ISTHMUS_DAEMON_NET_REDIALS_H_
#define ISTHMUS_DAEMON_NET_REDIALS_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/net/link_stream.h"

namespace isthmus::daemon {

class Redials {
 public:
  // Job, generation, link, connection, and the node at the other end: nobody takes another one's
  // place.
  using Key = std::tuple<std::string, uint64_t, std::string, int, std::string>;
  static Key KeyOf(const LinkHello& from_peer);

  // Holds the key until it is destroyed; the board outlives it.
  class Place {
   public:
    Place(Redials* board, Key key);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Called where the other end redials, or asks (without a count): it has lost the connection.
    // Not after the destructor. It must not wait, nor come back here. An error refuses the redial.
    using Interrupt = std::function<absl::Status(std::optional<uint64_t> received)>;
    void OnInterrupt(Interrupt interrupt);
    // Of the connection that is used now: what is older is refused or not minded.
    void SetAttempt(uint64_t attempt);
    // Serving end. DeadlineExceeded: none came; Cancelled: Cancel did. An attempt that is taken is
    // the one that is used now.
    absl::StatusOr<std::shared_ptr<ServerCall>> Await(
        std::chrono::steady_clock::time_point deadline);
    void Cancel();  // from now on the link is not here

   private:
    friend class Redials;
    Redials* const board_;
    const Key key_;
    Interrupt interrupt_;  // of these the board's mutex
    uint64_t attempt_ = 0;
    bool cancelled_ = false;
    std::shared_ptr<ServerCall> waiting_;
  };

  // Handler of a redial: waits until the link takes it and OK is returned (then wait for
  // call->ended), or the error to answer with. Ends also when the caller goes away.
  absl::Status Offer(const LinkHello& hello, const std::shared_ptr<ServerCall>& call,
                     absl::Duration timeout);
  // Handler of kAsk. OK: the link is here, and will dial again where it uses that connection still.
  absl::Status Ask(const LinkHello& hello, uint64_t attempt);
  // All is refused with `why`, now and later.
  void Shutdown(const absl::Status& why);

 private:
  // NotFound: no such link is open here.
  absl::StatusOr<Place*> Find(const LinkHello& hello) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::map<Key, Place*> places_ ABSL_GUARDED_BY(mutex_);
  absl::Status shutdown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_REDIALS_H_
