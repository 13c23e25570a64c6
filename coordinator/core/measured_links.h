// What is known of the links between daemons, and which one to measure next. A core of values:
// `now` is a parameter.
//
// Measurements that run at once have no host in common (daemons of the same address host share a
// line), so N daemons take about 2 N rounds; hosts with a daemon that works for a job are left
// alone. A pair is measured when either daemon joins, when a session doubts it, and again after a
// while that grows with the number of daemons; after `retry_after` if it could not be reached.
// Where one of the two can't dial, the other one measures both ways.
//
// While a job runs its own frames tell of links that carry less (Carries), and a small measurement
// beside it now and then shows when they carry more again (NextBeside): it shares the line with the
// job, so it only ever raises a rate.
//
// Thread: one owner. Bounds: a pair of two listed daemons has one entry;
// MeasuredLinksOptions.day_bytes.
#ifndef ISTHMUS_COORDINATOR_CORE_MEASURED_LINKS_H_
#define ISTHMUS_COORDINATOR_CORE_MEASURED_LINKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/membership.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

struct MeasuredLinksOptions {
  absl::Duration probe_budget = absl::Seconds(3);      // asked of the daemon, for one peer
  absl::Duration answer_margin = absl::Seconds(15);    // on top: no answer until then is an answer
  absl::Duration remeasure_after = absl::Minutes(30);  // at the earliest
  absl::Duration keep_on_rejoin =
      absl::Minutes(10);  // a daemon that comes back is not measured again within
  absl::Duration retry_after = absl::Minutes(1);  // of a pair that failed
  // What a daemon sends and receives for measurements in a day. Beyond it nothing is measured
  // again, and pairs that were never measured with rounds of lean_bytes at most.
  int64_t day_bytes = int64_t{1} << 30;
  int64_t lean_bytes = 256 << 10;
  // Beside a running job: at most a second of the link each time, of one that carries less than was
  // measured after the first of these, then twice as long each time, of any other one after the
  // second.
  absl::Duration beside_budget = absl::Seconds(1);
  absl::Duration beside_slower = absl::Seconds(30);
  absl::Duration beside_every = absl::Minutes(10);
};

constexpr double kCarriesLess = 0.7;  // of the measured rate: a link is called slower
constexpr double kCarriesMore = 1.4;  // of what it is thought to carry: a measurement beside a job
                                      // that shows as much is believed
constexpr double kSameRate = 0.2;     // a smaller change is none

struct ProbeTask {
  std::string from_id;
  std::string to_id;
  bool both_ways = false;  // the other one can't dial
  int64_t max_bytes = 0;   // of a round; 0: the daemon's own bound
  absl::Duration budget;
};

// A direction carries something else than before, though no idle host measured it.
struct LinkNews {
  std::string from_id, to_id;
  double before_bits_per_s = 0, now_bits_per_s = 0;
  double measured_bits_per_s = 0;  // between idle hosts
  std::string from_name, to_name;  // for words
};

class MeasuredLinks {
 public:
  explicit MeasuredLinks(MeasuredLinksOptions options = {}) : options_(options) {}

  // A daemon registered. `moved`: its address is another one, or nothing was known: what was
  // measured to it counts no longer.
  void OnJoin(const std::string& node_id, bool moved, absl::Time now);
  void OnGone(const std::string& node_id, absl::Time now);  // a measurement that waits for it ends
  void Forgive(absl::Duration pause);      // the coordinator stood still: answers may come later
  void Forget(const Membership& members);  // pairs of daemons that are no longer listed

  // A session failed over the link of these two: it is to be measured before the next plan.
  void Doubt(const std::string& a, const std::string& b);

  // The next pair to measure, which then counts as under way. To be asked until it has none: all
  // pairs of free hosts are measured. `working`: daemons that work for a job.
  std::optional<ProbeTask> Next(const Membership& members, const std::set<std::string>& working,
                                absl::Time now);

  using Pair = std::pair<std::string, std::string>;  // from, to
  // A small measurement beside a running job of one of the pairs that it uses. To be asked as Next.
  std::optional<ProbeTask> NextBeside(const Membership& members, const std::set<Pair>& used,
                                      absl::Time now);
  // The frames of a running job show what this direction carries: no more than was measured counts.
  void Carries(const Pair& pair, double bits_per_s, absl::Time now);
  std::vector<LinkNews> TakeNews();
  double RateOf(const Pair& pair) const;  // 0: not known

  // InvalidArgument: figures that are no figures, or pairs not of this daemon. The direction to
  // this daemon counts where it was asked for.
  absl::Status OnResult(const std::string& node_id, const ProbeResult& result, absl::Time now);

  void Restore(const LinkMeasurement& link,
               absl::Time now);  // from the store: usable, but to be measured again

  // A measurement from or to this daemon is under way.
  bool Measures(const std::string& node_id) const;

  // Pairs of these daemons that were never measured, are doubted, or can't be dialled and their
  // other end has not said yet what it measures. A measurement that is late ends in Next.
  int Unmeasured(const std::vector<std::string>& node_ids) const;
  std::vector<LinkMeasurement> Among(const std::vector<std::string>& node_ids) const;
  std::vector<LinkMeasurement> TakeChanged();

 private:
  struct Entry {
    LinkMeasurement link;
    absl::Time measured;
    bool stale = false;              // usable, to be measured again soon
    bool doubted = false;            // a session failed over it
    bool asked_peer = false;         // it can't be dialled: the other end was asked for its rate
    double measured_bits_per_s = 0;  // between idle hosts; link.rate_bits_per_s may be less
    absl::Time looked = absl::InfinitePast();  // beside a job
    absl::Duration look_after;  // that, again, while it carries less: longer each time
    bool unreachable() const { return !link.error().empty() && link.rate_bits_per_s() == 0; }
  };
  struct UnderWay {
    absl::Time answer_by;
    bool both_ways = false;
    bool beside = false;  // a job runs there
  };
  struct Spent {
    absl::Time since;
    int64_t bytes = 0;
  };
  enum Urgency { kNever, kPeerAsks, kDoubted, kAgain, kNotNow };

  Urgency UrgencyOf(const Pair& pair, absl::Duration again_after, absl::Time now) const;
  bool PeerMayAsk(const Pair& pair) const;
  bool PeerMeasures(const Pair& pair) const;
  int64_t SpentBy(const std::string& node_id, absl::Time now) const;
  void Spend(const std::string& node_id, int64_t bytes, absl::Time now);
  void EndLate(absl::Time now);
  void Put(const LinkMeasurement& link, absl::Time now);
  void PutFromPeer(const LinkMeasurement& link);
  void PutError(const Pair& pair, const std::string& error, absl::Time now);
  void PutBeside(const LinkMeasurement& link);
  void SetRate(const Pair& pair, Entry* entry, double bits_per_s);

  const MeasuredLinksOptions options_;
  std::map<Pair, Entry> links_;
  std::map<Pair, UnderWay> under_way_;
  std::map<Pair, bool> changed_;
  std::vector<LinkNews> news_;
  std::map<std::string, Spent> spent_;  // by daemon, of its current day
  double mean_bytes_ = 8 << 20;         // of a measurement, as of late
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_MEASURED_LINKS_H_
