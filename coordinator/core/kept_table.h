// Which parts of checkpoints the daemons keep on their own disks, as they told. A checkpoint all of
// whose parts are kept is not lost, whatever the coordinator has of it. A core of values. Thread:
// one owner. Bounds: kMaxParts of a daemon.
#ifndef ISTHMUS_COORDINATOR_CORE_KEPT_TABLE_H_
#define ISTHMUS_COORDINATOR_CORE_KEPT_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/membership.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

class KeptTable {
 public:
  static constexpr int kMaxParts = 64;  // further ones that a daemon names are left out

  void Told(const std::string& node_id, const KeptParts& all);  // instead of what it told before

  // What daemons told that are no longer listed goes. Those that are not alive are out of reach
  // until they tell again.
  void Forget(const Membership& members);

  // The steps beyond `step` of which daemons keep the part of each rank of `plan` as that plan's
  // session wrote it, in order. `reachable`: daemons that are within reach.
  std::vector<int64_t> Whole(const Plan& plan, int64_t step, bool reachable = false) const;

  // The daemons that keep such a part of `rank`, its own first, those within reach before others.
  std::vector<std::string> Holders(const Plan& plan, int rank, int64_t step) const;

  // What the parts of `step` take to get here, all of them at once over the paths that their
  // holders have measured; of a part that nobody has told of yet, that of the rank's own daemon.
  double SecondsToBring(const Plan& plan, int64_t step) const;

  // Whether the daemon of `rank` keeps its part of any step beyond `step`.
  bool KeepsLater(const Plan& plan, int rank, int64_t step) const;

  // Who keeps parts of jobs of `removed`, as (daemon, job); named once for each time it is told.
  std::vector<std::pair<std::string, std::string>> TakeUseless(
      const std::set<std::string>& removed);

 private:
  using OfJob = std::map<std::string, std::vector<KeptPart>>;  // by daemon
  const OfJob& Of(const Plan& plan) const;

  std::map<std::string, OfJob> parts_;  // by job
  std::set<std::string> away_;          // daemons out of reach
  std::map<std::string, double> up_;    // bits a second from a daemon, where it has measured it
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_KEPT_TABLE_H_
