#include "coordinator/planner/deadlines.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/slices.h"
#include "proto/model/model_cost.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

constexpr double kOpenFloorSeconds = 30;
constexpr double kFirstStepFloorSeconds = 60;
constexpr double kStepFloorSeconds = 30;
constexpr double kDrainFloorSeconds = 60;
constexpr double kCheckpointFloorSeconds = 60;
constexpr double kFirstStepFactor =
    20;  // of a step of first visits: memory is touched for the first time
constexpr double kStepFactor = 10;
constexpr double kDrainStepFactor = 3;
constexpr double kTransferFactor = 3;  // of a checkpoint at the measured rates
constexpr double kRoundTrips = 20;
constexpr double kLongestSeconds = 30 * 86400.0;
constexpr double kUnmeasuredBitsPerSecond = 1e7;  // at most, of a path nobody has measured
constexpr double kUnderWayBytes = 1 << 20;        // of a transfer, that nobody sees arrive
constexpr double kCheckpointWords = 1.0;          // a checkpoint of more seconds is explained
constexpr double kSlowDiskBytesPerSecond = 50e6;  // of a daemon, which writes it while others wait

double ParameterBytes(const Plan& plan, const RankPlan& stage) {
  return static_cast<double>(
      StageCost(plan.job().model(), stage.first_layer(), stage.end_layer(), 1).parameter_bytes());
}

// Of these, those that are dealt to subnetworks.
double DealtBytes(const Plan& plan, const RankPlan& stage) {
  return static_cast<double>(4 * DealtParameters(plan.job().model(), stage.first_layer(),
                                                 stage.end_layer(), SliceOfRank(plan, stage)));
}

// A step in which a checkpoint is written waits for the slowest disk; a short wait is in the floor.
double DiskSeconds(const Plan& plan) {
  double bytes = 0;
  for (const RankPlan& rank : plan.ranks()) bytes = std::max(bytes, 3 * ParameterBytes(plan, rank));
  const double seconds = bytes / kSlowDiskBytesPerSecond;
  return seconds < kCheckpointWords ? 0 : seconds;
}

// What the parts of a checkpoint take in one direction: every rank fetches its own, and of several
// replicas one stores them.
struct Transfer {
  double seconds = 0;       // all of them, at the measured rates
  double bytes = 0;         // weights and the optimiser's two moments
  double slowest_rate = 0;  // of a stage's own path, in its share of the coordinator's
  int slowest_rank = 0;
  bool measured = false;  // every path was
};

Transfer TransferOf(const Plan& plan, const DeadlineInput& in, bool up) {
  Transfer t;
  t.measured = true;
  std::vector<double> rates, bytes;
  std::vector<int> ranks;
  double widest = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (up && !PutsParts(plan, r)) continue;
    const RankPlan& stage = plan.ranks(r);
    ranks.push_back(r);
    const auto path = in.paths->find(stage.node_id());
    double rate = 0;
    if (path != in.paths->end())
      rate = up ? path->second.up_bits_per_s() : path->second.down_bits_per_s();
    if (rate <= 0) {
      t.measured = false;
      rate = in.slowest_rate_bits_per_s > 0
                 ? std::min(in.slowest_rate_bits_per_s, kUnmeasuredBitsPerSecond)
                 : kUnmeasuredBitsPerSecond;
    }
    rates.push_back(rate);
    const double whole = ParameterBytes(plan, stage), shared = whole - DealtBytes(plan, stage);
    // Subnetworks fetch all weights and cut them; moments of what is dealt go with their round.
    if (!up) {
      bytes.push_back(whole + 2 * shared);
    } else {
      bytes.push_back(StandsForStage(plan, r) ? 3 * whole : 2 * shared);
    }
    t.bytes += bytes.back();
    widest = std::max(widest, rate);
  }
  t.seconds = t.bytes * 8 / widest;
  t.slowest_rate = widest / static_cast<double>(rates.size());
  size_t slowest = 0;
  for (size_t s = 0; s < rates.size(); ++s) {
    t.seconds = std::max(t.seconds, bytes[s] * 8 / rates[s]);
    if (rates[s] < rates[slowest]) slowest = s;
  }
  t.slowest_rank = ranks[slowest];
  t.slowest_rate = std::min(t.slowest_rate, rates[slowest]);
  return t;
}

int64_t Ms(double seconds) {
  return static_cast<int64_t>(std::ceil(std::min(seconds, kLongestSeconds) * 1000));
}

// A checkpoint is wanted more often than it can be stored.
std::string TooOften(const Plan& plan, const DeadlineInput& in, const Transfer& store) {
  const auto every = static_cast<double>(plan.job().checkpoint().every());
  const double between_s = every * in.again_step_s;
  if (!store.measured || every <= 0 || store.seconds <= between_s) return "";
  return absl::StrCat("a checkpoint takes ", FormatSeconds(store.seconds),
                      " to reach the coordinator, and one is due every ", FormatSeconds(between_s),
                      " (checkpoint.every ", plan.job().checkpoint().every(),
                      "): training goes on meanwhile, and there will be fewer. Use a larger "
                      "checkpoint.every, or a coordinator that the daemons reach faster");
}

}  // namespace

double CheckpointSeconds(const Plan& plan, const CoordinatorPaths& paths, bool up) {
  DeadlineInput in;
  in.paths = &paths;
  return TransferOf(plan, in, up).seconds;
}

PlannedDeadlines MakeDeadlines(const Plan& plan, const DeadlineInput& in) {
  const double round_trips_s = kRoundTrips * in.longest_round_trip_s;
  const Transfer store = TransferOf(plan, in, true), fetch = TransferOf(plan, in, false);
  const double disk_s = DiskSeconds(plan);
  const double fetch_s = plan.from_checkpoint() ? kTransferFactor * fetch.seconds : 0;
  PlannedDeadlines out;
  Deadlines* d = &out.deadlines;
  d->set_open_ms(Ms(kOpenFloorSeconds + round_trips_s + fetch_s));
  d->set_first_step_ms(
      Ms(kFirstStepFloorSeconds + kFirstStepFactor * in.first_step_s + round_trips_s + disk_s));
  // A round ends in one step of many, and what it takes is spread over all of them in their mean.
  const double agree_s = kTransferFactor * in.agree_s;
  d->set_step_ms(Ms(kStepFloorSeconds + kStepFactor * std::max(in.first_step_s, in.again_step_s) +
                    round_trips_s + disk_s + agree_s));
  d->set_drain_ms(Ms(kDrainFloorSeconds + kDrainStepFactor * in.first_step_s + agree_s +
                     kTransferFactor * store.seconds));
  d->set_checkpoint_ms(
      Ms(kCheckpointFloorSeconds +
         kTransferFactor * kUnderWayBytes * 8 / std::min(store.slowest_rate, fetch.slowest_rate)));
  out.explanation.push_back(absl::StrCat(
      "deadlines: a wait of more than ", FormatSeconds(d->step_ms() / 1e3), " ends the session (",
      kStepFloorSeconds, " s + ", kStepFactor, " steps + ", kRoundTrips, " round trips",
      disk_s == 0
          ? ""
          : absl::StrCat(" + ", FormatSeconds(disk_s), " to write a checkpoint to a slow disk"),
      agree_s == 0 ? ""
                   : absl::StrCat(" + ", kTransferFactor, " x ", FormatSeconds(in.agree_s),
                                  ", the longest end of a round"),
      "); links open within ", FormatSeconds(d->open_ms() / 1e3), ", first step within ",
      FormatSeconds(d->first_step_ms() / 1e3),
      "; a checkpoint may take as long as its bytes move, at most ",
      FormatSeconds(d->checkpoint_ms() / 1e3), " without one"));
  if (store.measured && store.seconds >= kCheckpointWords) {
    const RankPlan& slowest = plan.ranks(store.slowest_rank);
    out.explanation.push_back(absl::StrCat(
        "a checkpoint: ", FormatBytes(store.bytes), ", about ", FormatSeconds(store.seconds),
        " to the coordinator, all stages at once (slowest path: ",
        FormatRate(in.paths->at(slowest.node_id()).up_bits_per_s()), " from ", slowest.node_name(),
        ")"));
  }
  if (std::string often = TooOften(plan, in, store); !often.empty())
    out.warnings.push_back(std::move(often));
  return out;
}

}  // namespace isthmus::coordinator
