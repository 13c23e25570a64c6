// The two ways to another connection of a link whose connection broke: the end that dialled dials
// again, the other one waits for that dial.
//
// Both give up after kPatience: the coordinator misses a daemon after as long. They do so at once
// where the other daemon is not there any more: nobody listens at its address, or who answers has
// no such link open. For that the serving end asks. Its question also wakes a dialling end that has
// not noticed. It asks only where it has reached the dialling one when the link was opened: what
// answers at an address behind NAT is somebody else.
// Thread: as Redialler says.
#ifndef ISTHMUS_DAEMON_NET_REDIALLER_H_
#define ISTHMUS_DAEMON_NET_REDIALLER_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "daemon/net/redials.h"
#include "daemon/net/resuming_stream.h"
#include "daemon/net/watchdog.h"

namespace isthmus::daemon {

struct RedialOptions {
  static constexpr absl::Duration kPatience = absl::Seconds(15);

  std::string address;          // of the other daemon
  rpc::ChannelOptions channel;  // to it
  LinkHello hello;              // of this end, for this connection
  std::string peer_node_id;
  // Serving end: whether it has reached the address, of all connections of the link. Prepare tries
  // that for connection 0. Null: it can't.
  std::shared_ptr<std::atomic<bool>> reached;
  Redials* board = nullptr;  // outlive it
  Watchdog* watchdog = nullptr;
  absl::Duration patience = kPatience;
};

std::unique_ptr<Redialler> DialAgain(RedialOptions options);
std::unique_ptr<Redialler> AwaitDial(RedialOptions options);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_REDIALLER_H_
