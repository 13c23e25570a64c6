// What is known of the links between daemons, and which one to measure next. A core of values:
// `now` is a parameter.
//
// Measurements that run at once have no host in common (daemons of the same address host share a
// line), so N daemons take about 2 N rounds; none runs while a job does. A pair is measured when
// either daemon joins, again after `remeasure_after`, and after `retry_after` if it could not be
// reached. Thread: one owner. Bounds: a pair of two listed daemons has one entry.
#ifndef ISTHMUS_COORDINATOR_LINK_TABLE_H_
#define ISTHMUS_COORDINATOR_LINK_TABLE_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/membership.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

struct LinkTableOptions {
  absl::Duration probe_budget = absl::Seconds(3);      // asked of the daemon, for one peer
  absl::Duration answer_margin = absl::Seconds(10);    // on top: no answer until then is an answer
  absl::Duration remeasure_after = absl::Minutes(30);  // while nothing runs
  absl::Duration keep_on_rejoin =
      absl::Minutes(10);  // a daemon that comes back is not measured again within
  absl::Duration retry_after = absl::Minutes(1);  // of a pair that failed
};

struct ProbeTask {
  std::string from_id;
  std::string to_id;
};

class LinkTable {
 public:
  explicit LinkTable(LinkTableOptions options = {}) : options_(options) {}

  // A daemon registered. `moved`: its address is another one, or nothing was known: what was
  // measured to it counts no longer.
  void OnJoin(const std::string& node_id, bool moved, absl::Time now);
  void OnGone(const std::string& node_id, absl::Time now);  // a measurement that waits for it ends
  void Forgive(absl::Duration pause);      // the coordinator stood still: answers may come later
  void Forget(const Membership& members);  // pairs of daemons that are no longer listed

  // The next pair to measure, which then counts as under way. To be asked until it has none:
  // nothing while a job runs, or if all pairs of free hosts are measured.
  std::optional<ProbeTask> Next(const Membership& members, bool job_runs, absl::Time now);

  // Both directions may be in a result. InvalidArgument: figures that are no figures, or pairs not
  // of this daemon.
  absl::Status OnResult(const std::string& node_id, const ProbeResult& result, absl::Time now);

  void Restore(const LinkMeasurement& link,
               absl::Time now);  // from the store: usable, but to be measured again

  // A measurement from or to this daemon is under way.
  bool Measures(const std::string& node_id) const;

  // Pairs of these daemons that were never measured.
  int Unmeasured(const std::vector<std::string>& node_ids) const;
  std::vector<LinkMeasurement> Among(const std::vector<std::string>& node_ids) const;
  std::vector<LinkMeasurement> TakeChanged();

 private:
  struct Entry {
    LinkMeasurement link;
    absl::Time measured;
  };
  using Pair = std::pair<std::string, std::string>;
  bool Due(const Pair& pair, absl::Time now) const;
  void EndLate(absl::Time now);
  void Put(const LinkMeasurement& link, absl::Time now);
  void PutError(const Pair& pair, const std::string& error, absl::Time now);

  const LinkTableOptions options_;
  std::map<Pair, Entry> links_;
  std::map<Pair, absl::Time> under_way_;  // -> answer by
  std::map<Pair, bool> changed_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_LINK_TABLE_H_
