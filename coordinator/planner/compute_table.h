// How fast each daemon computes, and which one to measure next. A core of values: `now` is a
// parameter.
//
// A daemon measures the reference block at its start, beside whatever its host does then: daemons
// that start together share its cores, and their figures say a fraction of the truth. So each is
// asked to measure again once its host is idle, one daemon at a time (hosts of an emulated network
// share a machine too), and from time to time while it stays idle. Of the last measurements the
// fastest counts: other work only ever slows one. Until there is one, that of the start does.
//
// What a step of a job really took corrects the figure: a factor per daemon, since a block measured
// alone says nothing of neighbours that compute too, or of shapes that run better or worse. Daemons
// without steps of their own have the factor of those of their host, else the middle one of all, so
// that a daemon is not preferred for being new. Thread: one owner. Bounds: an entry a listed
// daemon.
#ifndef ISTHMUS_COORDINATOR_PLANNER_COMPUTE_TABLE_H_
#define ISTHMUS_COORDINATOR_PLANNER_COMPUTE_TABLE_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/membership.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

struct ComputeTableOptions {
  // A host is idle so long after a daemon joined there, or a session or a link's measurement ended.
  absl::Duration settle = absl::Milliseconds(500);
  absl::Duration confirm_after = absl::Minutes(1);     // until kKeptMeasurements are there
  absl::Duration remeasure_after = absl::Minutes(30);  // then
  absl::Duration answer_within = absl::Seconds(10);
  // Links of a new daemon's fleet wait for its measurement, at most so long after it joined.
  absl::Duration hold_links = absl::Seconds(10);
};

constexpr size_t kKeptMeasurements = 3;
constexpr double kLeastComputeFactor = 0.5;  // real seconds over those of the reference block
constexpr double kMostComputeFactor = 8;
constexpr double kStepWeight = 0.1;        // of the newest step in the factor
constexpr int kStepsForComputeFactor = 3;  // before it counts

// Seconds that a step's passes take on a stage by its daemon's reference block.
double PredictedComputeSeconds(const Plan& plan, const RankPlan& stage, const NodeInfo& node);

class ComputeTable {
 public:
  explicit ComputeTable(ComputeTableOptions options = {}) : options_(options) {}

  // A daemon registered; `restarted`: another process than before, which measured at its start.
  void OnJoin(const NodeInfo& node, bool restarted, absl::Time now);
  void OnGone(const std::string& node_id);
  void Restore(const NodeInfo& node);      // from the store: counts as a measurement
  void Forget(const Membership& members);  // daemons that are no longer listed

  // The next daemon to measure, which then counts as under way; nothing while one is. `busy`:
  // daemons whose hosts are not idle now.
  std::optional<std::string> Next(const Membership& members, const std::set<std::string>& busy,
                                  absl::Time now);
  // A daemon that joined a moment ago is to be measured before its links are.
  bool HoldsLinks(const Membership& members, const std::set<std::string>& busy,
                  absl::Time now) const;

  // Times of zero: it has a session and did not measure. InvalidArgument: figures that are none.
  absl::Status OnResult(const std::string& node_id, const ComputeTimes& times, absl::Time now);

  // `compute_s` of a committed step of a running job, by the daemon of `stage`. The first step of a
  // plan says nothing: memory is touched for the first time.
  void OnStep(const NodeInfo& node, const Plan& plan, const StepRecord& record);

  // The figure that counts, uncorrected.
  std::optional<ComputeTimes> Figure(const std::string& node_id) const;
  double Factor(const NodeInfo& node) const;  // 1 where nothing is known
  // The daemon with the figure that the planner should count with.
  NodeInfo Corrected(const NodeInfo& node) const;

 private:
  struct Entry {
    std::string host, device;
    int threads = 0;
    ComputeTimes at_start;
    std::deque<ComputeTimes> measured;  // while idle, the newest last
    absl::Time joined = absl::InfinitePast();
    absl::Time last_measured = absl::InfinitePast();
    bool first_due = false;  // since it joined
    double factor = 1;
    int steps = 0;
  };
  bool Due(const Entry& entry, absl::Time now) const;
  static std::optional<ComputeTimes> FigureOf(const Entry& entry);
  static void Rescale(const std::optional<ComputeTimes>& before, Entry* entry);

  const ComputeTableOptions options_;
  std::map<std::string, Entry> entries_;          // by identity
  std::map<std::string, absl::Time> busy_until_;  // by host
  std::string under_way_;                         // empty: none
  absl::Time answer_by_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_COMPUTE_TABLE_H_
