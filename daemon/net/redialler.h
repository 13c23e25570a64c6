// The two ways to another connection of a link whose connection broke: the end that dialled dials
// again, the other one waits for that dial.
//
// Both give up after kPatience: the coordinator misses a daemon after as long. They do so at once
// where the other daemon is not there any more: nobody listens at its address, or who answers has
// no such link open. For that the serving end asks; it can't where the plan says that it can't dial
// (LinkPlan.upper_dials). Its question also wakes a dialling end that has not noticed.
// Thread: as Redialler says.
#ifndef ISTHMUS_DAEMON_NET_REDIALLER_H_
#define ISTHMUS_DAEMON_NET_REDIALLER_H_

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
  bool can_dial = true;
  Redials* board = nullptr;  // outlive it
  Watchdog* watchdog = nullptr;
  absl::Duration patience = kPatience;
};

std::unique_ptr<Redialler> DialAgain(RedialOptions options);
std::unique_ptr<Redialler> AwaitDial(RedialOptions options);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_REDIALLER_H_
