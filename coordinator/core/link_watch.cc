#include "coordinator/core/link_watch.h"

#include <algorithm>
#include <cmath>

#include "base/link_rate.h"

namespace isthmus::coordinator {
namespace {

constexpr double kMostCorrected = 4;  // of the plain rate, by what slow start may have taken

// Seconds that slow start takes beyond the bytes' own: a round trip for each doubling, until as
// much is under way as the link holds, or the train ends.
double SlowStartSeconds(const Trains& trains, double bits_per_s, double round_trip_s) {
  const double of_one =
      static_cast<double>(trains.bytes) / static_cast<double>(std::max<int64_t>(1, trains.frames));
  const double most = std::min(of_one, bits_per_s / 8 * round_trip_s);
  return static_cast<double>(trains.frames) * round_trip_s *
         std::log2(std::max(1.0, most / RateSearch::kFirstWindowBytes));
}

double ExpectedSeconds(const Trains& trains, double bits_per_s, double round_trip_s) {
  return 8.0 * static_cast<double>(trains.bytes) / bits_per_s +
         SlowStartSeconds(trains, bits_per_s, round_trip_s);
}

// 1: far slower than `believed`, slow start taken off; -1: far faster, whatever that took; 0:
// neither, or nothing is known.
int Verdict(const LinkLook& look, const Trains& trains, double window_s, double believed) {
  if (trains.bytes <= 0 || trains.seconds <= 0) return 0;
  const double seconds = trains.seconds / look.side_by_side;
  const double expected_s =
      ExpectedSeconds(trains, std::min(believed, kMostBitsPerSecond), look.round_trip_s);
  if (expected_s < kMuchSlower * seconds) return trains.seconds >= kLeastShare * window_s ? 1 : 0;
  return 8.0 * static_cast<double>(trains.bytes) / believed > kMuchFaster * seconds ? -1 : 0;
}

// Links of groups that a rank has: it may use them all at once.
int GroupLinksAt(const Plan& plan, int rank) {
  return static_cast<int>(
      std::count_if(plan.links().begin(), plan.links().end(), [&](const LinkPlan& link) {
        return link.kind() == LinkPlan::GROUP && (link.lower() == rank || link.upper() == rank);
      }));
}

}  // namespace

std::optional<double> CarriedRate(const LinkLook& look, double believed_bits_per_s) {
  const int verdict = Verdict(look, look.now, look.now_s, believed_bits_per_s);
  if (verdict == 0 || verdict != Verdict(look, look.before, look.before_s, believed_bits_per_s))
    return std::nullopt;
  const double seconds = look.now.seconds / look.side_by_side;
  const double plain = 8.0 * static_cast<double>(look.now.bytes) / seconds;
  if (verdict < 0) return plain;
  const double less = seconds - SlowStartSeconds(look.now, plain, look.round_trip_s);
  return plain * seconds / std::max(less, seconds / kMostCorrected);
}

LinkWatch::LinkWatch(const Plan& plan) {
  // Copies of local checkpoints go to buddies all the time, over the same lines.
  if (std::any_of(plan.ranks().begin(), plan.ranks().end(),
                  [](const RankPlan& rank) { return rank.buddy() != 0; }))
    return;
  for (const LinkPlan& link : plan.links()) {
    const RankPlan &lower = plan.ranks(link.lower()), &upper = plan.ranks(link.upper());
    if (lower.node_id() == upper.node_id()) continue;
    for (const bool forward : {true, false}) {
      Direction& direction = directions_.emplace_back();
      direction.forward = forward;
      LinkLook& look = direction.look;
      look.link_id = link.id();
      look.from_id = forward ? lower.node_id() : upper.node_id();
      look.to_id = forward ? upper.node_id() : lower.node_id();
      look.round_trip_s = link.round_trip_s();
      if (link.kind() == LinkPlan::GROUP)
        look.side_by_side =
            std::max(GroupLinksAt(plan, link.lower()), GroupLinksAt(plan, link.upper()));
    }
  }
}

LinkWatch::Direction* LinkWatch::Find(const std::string& link_id, bool forward) {
  const auto at = std::find_if(directions_.begin(), directions_.end(), [&](const Direction& d) {
    return d.look.link_id == link_id && d.forward == forward;
  });
  return at == directions_.end() ? nullptr : &*at;
}

std::vector<LinkLook> LinkWatch::OnStep(const std::vector<StepRecord>& ranks, double step_s) {
  for (const StepRecord& record : ranks) {
    for (const DirectionBytes& d : record.directions()) {
      Direction* incoming = Find(d.link_id(), !d.forward());
      if (incoming == nullptr) continue;
      Trains& trains = incoming->look.now;
      trains.frames += d.train_frames_in();
      trains.bytes += d.train_bytes_in();
      trains.seconds += d.train_s_in();
    }
  }
  ++steps_;
  seconds_ += step_s;
  std::vector<LinkLook> looks;
  if (steps_ < kWindowSteps || seconds_ < kWindowSeconds) return looks;
  for (Direction& d : directions_) {
    d.look.now_s = seconds_;
    if (d.whole) looks.push_back(d.look);
    d.whole = true;
    d.look.before = d.look.now;
    d.look.before_s = d.look.now_s;
    d.look.now = Trains();
  }
  steps_ = 0;
  seconds_ = 0;
  return looks;
}

}  // namespace isthmus::coordinator
