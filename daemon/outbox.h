// What waits to be told to the coordinator, and what was told but may have been lost with a
// connection: after a reconnect it is sent again (the coordinator ignores repeated records and
// events). Pure; `now` is a parameter.
//
// Bounds: kMaxRecords step records (the oldest is dropped and counted), kMaxEvents session events
// (likewise). A coordinator that is away for an hour of 3 steps a second loses nothing. Thread: one
// owner.
#ifndef ISTHMUS_DAEMON_OUTBOX_H_
#define ISTHMUS_DAEMON_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/control.pb.h"

namespace isthmus::daemon {

class Outbox {
 public:
  static constexpr size_t kMaxRecords = 16'384;
  static constexpr size_t kMaxEvents = 512;
  // A message sent this long before is taken as stored; longer than a dead connection stays
  // unnoticed.
  static constexpr absl::Duration kKeepSent = absl::Seconds(90);

  void Push(DaemonMessage message);

  // The next message that this connection has not carried; it counts as sent from `now`.
  absl::optional<DaemonMessage> Next(absl::Time now);
  bool HasNext() const { return next_ < items_.size(); }

  // A new connection: everything kept is sent again, in order.
  void Rewind() { next_ = 0; }

  // Forgets what was sent long ago.
  void Trim(absl::Time now);

  size_t size() const { return items_.size(); }
  int64_t dropped() const { return dropped_; }

 private:
  struct Item {
    DaemonMessage message;
    absl::Time sent = absl::InfiniteFuture();  // the first time
  };
  void DropOldest(bool record);

  std::deque<Item> items_;
  size_t next_ = 0;  // index of the first message that this connection has not carried
  size_t records_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_OUTBOX_H_
