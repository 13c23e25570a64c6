// Who is there: identities, streams, leases, liveness by progress. A core of values: `now` is a
// parameter, no clock, no I/O, no threads.
//
// An identity is one entry for ever: a restarted daemon replaces its own. A second live daemon with
// the same identity (a copied state directory) is refused, but never one whose predecessor merely
// has not been missed yet: if the old stream is silent, the new one wins. Likewise for a second
// daemon that advertises an address which another one has. `now` is monotonic (its
// epoch means nothing); leases are durations, so clocks of hosts never matter. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CORE_MEMBERSHIP_H_
#define ISTHMUS_COORDINATOR_CORE_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// The host part of HOST:PORT.
inline std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

constexpr size_t kMaxLeavingBytes = 100;  // of the reason why a daemon ends

struct MembershipOptions {
  absl::Duration lease = absl::Seconds(15);     // no heartbeat for so long: lost
  absl::Duration heartbeat = absl::Seconds(3);  // asked of daemons; a lease holds five
  absl::Duration silence = absl::Seconds(
      7);  // an old stream silent for so long gives way to a second daemon of its identity

  // The same proportions for another lease.
  static MembershipOptions ForLease(absl::Duration lease) {
    MembershipOptions options;
    options.heartbeat *= absl::FDivDuration(lease, options.lease);
    options.silence *= absl::FDivDuration(lease, options.lease);
    options.lease = lease;
    return options;
  }
  // A lost node is listed for so long; one that is drained stays.
  absl::Duration forget_after = absl::Hours(24);
  int max_nodes = 1024;  // entries, lost ones included (those are dropped first)
};

struct Member {
  NodeInfo node;
  std::string instance;
  uint64_t stream = 0;  // 0: none
  absl::Time registered;
  absl::Time last_heartbeat;   // or registration
  absl::Duration forgiven;     // of the time since: the coordinator itself stood still
  bool has_heartbeat = false;  // since registration
  Heartbeat heartbeat;         // the last one
  // When `progress`, `checkpoint_bytes` or `generation` of the heartbeats last changed.
  absl::Time progress_changed;
  absl::Time lost_since;    // if not connected
  CoordinatorPath path;     // as last told
  bool leaving = false;     // it was told to end ...
  std::string why_leaving;  // ... by what, as it says ("SIGTERM")
  bool drained = false;     // it gets no job, whether it is connected or not
  bool connected() const { return stream != 0; }
  // It has answered on this stream: a registration alone may have lain in a queue for longer than
  // its daemon lived.
  bool alive() const { return connected() && has_heartbeat; }
  absl::Duration silent(absl::Time now) const { return now - last_heartbeat - forgiven; }
};

struct RegisterDecision {
  enum Kind {
    kAccepted,
    kRefused,
    kWait
  };  // kWait: ask again with the same first_asked in a second
  Kind kind = kAccepted;
  std::string reason;            // in words
  uint64_t replaced_stream = 0;  // kAccepted: a stream the caller ends; 0: none
  bool restarted = false;        // kAccepted: another process than the one known before
};

struct LostNode {
  std::string node_id;
  std::string node_name;
  uint64_t stream = 0;  // the caller ends it; 0: it had ended
  std::string reason;
};

class Membership {
 public:
  explicit Membership(MembershipOptions options = {}) : options_(options) {}

  // `stream` names the caller's stream, never 0 and never used twice. `first_asked` is when this
  // registration came in.
  RegisterDecision Register(const isthmus::Register& request, uint64_t stream,
                            absl::Time first_asked, absl::Time now);

  // NotFound: the stream is not (or no longer) that of a member.
  absl::Status OnHeartbeat(const std::string& node_id, uint64_t stream, const Heartbeat& heartbeat,
                           absl::Time now);

  // The reference block's times that count for this daemon (compute_table.h).
  void SetCompute(const std::string& node_id, const ComputeTimes& times);

  // It was told to end, and takes no new session.
  void OnLeaving(const std::string& node_id, const std::string& reason);

  // It gets no job from now on, or gets jobs again. NotFound: nobody has this name or identity;
  // FailedPrecondition: several have the name. Gives its identity.
  absl::StatusOr<std::string> Drain(absl::string_view name_or_id, bool drained);

  // The stream ended. True if it was the member's current one: the member counts as not alive from
  // now on.
  bool OnStreamGone(const std::string& node_id, uint64_t stream, absl::Time now);

  // Members whose lease ran out, each reported once; forgets those lost for long.
  std::vector<LostNode> Expire(absl::Time now);

  // The coordinator stood still for `pause` and heard nobody: leases do not count it, and every
  // member has at least the time of a heartbeat until its words are read.
  void Forgive(absl::Duration pause, absl::Time now);

  // Entries from the store after a restart of the coordinator: known, not alive.
  void Restore(const NodeInfo& node, bool drained, absl::Time now);

  // Whether `node_id` is alive, runs `generation`, and has moved within `patience`.
  bool Moves(const std::string& node_id, uint64_t generation, absl::Duration patience,
             absl::Time now) const;

  // How long the heartbeats of `node_id` have shown no progress in `generation`; zero if it runs
  // another one or is not alive.
  absl::Duration NoProgressFor(const std::string& node_id, uint64_t generation,
                               absl::Time now) const;

  // Nodes as they are now, of those that have changed, or said that they leave, since the last
  // call: to be stored.
  std::vector<NodeInfo> TakeChanged();

  // What metrics and lists of targets call each daemon, by identity, each name once: its own; with
  // the head of its identity where several have it. A lost daemon whose name an alive one has is
  // left out: that one took its place.
  std::map<std::string, std::string> Labels() const;

  const Member* Find(const std::string& node_id) const;
  const std::map<std::string, Member>& members() const { return members_; }
  const MembershipOptions& options() const { return options_; }

 private:
  bool MakeRoom();
  // Whether `member`, which is in the way of a newcomer, is alive.
  RegisterDecision InTheWay(const Member& member, const std::string& refusal,
                            absl::Time first_asked, absl::Time now) const;

  const MembershipOptions options_;
  std::map<std::string, Member> members_;  // by identity
  std::set<std::string> changed_;
};

// Of a daemon that is not connected: "is lost, last heard 5 s ago", or that it left in good order.
std::string AwayWords(const Member& member, absl::Time now);

// Why other hosts can't reach this address, in words; empty: nothing speaks against it. Loopback
// (127.0.1.1 too, which Debian gives a host's own name) and link-local addresses.
std::string LocalOnly(const std::string& address);

// Whether each figure is a number that is not negative.
bool IsUsable(const CoordinatorPath& path);

// InvalidArgument names what is missing or too large in what a daemon says about itself.
absl::Status CheckNodeInfo(const NodeInfo& node);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_MEMBERSHIP_H_
