#include "coordinator/core/measured_links.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/format.h"
#include "proto/plan/link_bounds.h"

namespace isthmus::coordinator {
namespace {

constexpr int kMaxLinksInResult = 1024;
constexpr size_t kMaxErrorBytes = 500;
constexpr int64_t kMostProbeBytes = int64_t{1} << 30;  // of one measurement: more is an error
constexpr double kMeanOver = 16;                       // measurements
// Of a round beside a job: what the link carried in this time when it was idle, within bounds.
constexpr double kBesideSeconds = 0.2;
constexpr int64_t kMostBesideBytes = 4 << 20;

}  // namespace

void MeasuredLinks::OnJoin(const std::string& node_id, bool moved, absl::Time now) {
  for (auto it = links_.begin(); it != links_.end();) {
    Entry& entry = it->second;
    if (it->first.first != node_id && it->first.second != node_id) {
      ++it;
    } else if (moved || !entry.link.error().empty()) {
      it = links_.erase(it);
    } else {
      entry.stale = entry.stale || now - entry.measured >= options_.keep_on_rejoin;
      ++it;
    }
  }
}

void MeasuredLinks::OnGone(const std::string& node_id, absl::Time now) {
  for (auto it = under_way_.begin(); it != under_way_.end();)
    it = it->first.first == node_id ? under_way_.erase(it) : std::next(it);
}

void MeasuredLinks::Forgive(absl::Duration pause) {
  for (auto& [pair, under_way] : under_way_) under_way.answer_by += pause;
}

void MeasuredLinks::Forget(const Membership& members) {
  for (auto it = links_.begin(); it != links_.end();) {
    const bool listed =
        members.Find(it->first.first) != nullptr && members.Find(it->first.second) != nullptr;
    it = listed ? std::next(it) : links_.erase(it);
  }
  for (auto it = spent_.begin(); it != spent_.end();)
    it = members.Find(it->first) != nullptr ? std::next(it) : spent_.erase(it);
}

void MeasuredLinks::Doubt(const std::string& a, const std::string& b) {
  for (const Pair& pair : {Pair{a, b}, Pair{b, a}}) {
    auto it = links_.find(pair);
    if (it != links_.end()) it->second.doubted = true;
  }
}

// `pair` can't be dialled, its other end can dial and has not been asked yet.
bool MeasuredLinks::PeerMayAsk(const Pair& pair) const {
  auto it = links_.find(pair), back = links_.find({pair.second, pair.first});
  return it != links_.end() && back != links_.end() && it->second.unreachable() &&
         !it->second.asked_peer && back->second.link.error().empty();
}

// The other end of `pair` measures both ways now.
bool MeasuredLinks::PeerMeasures(const Pair& pair) const {
  const auto it = under_way_.find({pair.second, pair.first});
  return it != under_way_.end() && it->second.both_ways;
}

MeasuredLinks::Urgency MeasuredLinks::UrgencyOf(const Pair& pair, absl::Duration again_after,
                                                absl::Time now) const {
  auto it = links_.find(pair);
  if (it == links_.end()) return kNever;
  if (PeerMayAsk({pair.second, pair.first})) return kPeerAsks;
  if (it->second.doubted) return kDoubted;
  const absl::Duration wait = it->second.unreachable() ? options_.retry_after : again_after;
  return it->second.stale || now - it->second.measured >= wait ? kAgain : kNotNow;
}

int64_t MeasuredLinks::SpentBy(const std::string& node_id, absl::Time now) const {
  auto it = spent_.find(node_id);
  return it == spent_.end() || now - it->second.since >= absl::Hours(24) ? 0 : it->second.bytes;
}

void MeasuredLinks::Spend(const std::string& node_id, int64_t bytes, absl::Time now) {
  Spent& spent = spent_[node_id];
  if (now - spent.since >= absl::Hours(24)) spent = {now, 0};
  spent.bytes += bytes;
}

void MeasuredLinks::EndLate(absl::Time now) {
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (now < it->second.answer_by) {
      ++it;
      continue;
    }
    if (!it->second.beside)
      PutError(it->first,
               absl::StrCat("no answer of the measuring daemon within ",
                            DurationWords(options_.probe_budget + options_.answer_margin)),
               now);
    it = under_way_.erase(it);
  }
}

std::optional<ProbeTask> MeasuredLinks::Next(const Membership& members,
                                             const std::set<std::string>& working, absl::Time now) {
  EndLate(now);
  std::set<std::string> busy;  // hosts: the daemons of one share its line
  auto take_host = [&](const std::string& id) {
    if (const Member* member = members.Find(id)) busy.insert(HostOf(member->node.address()));
  };
  for (const std::string& id : working) take_host(id);
  for (const auto& [pair, under_way] : under_way_) {
    take_host(pair.first);
    take_host(pair.second);
  }
  for (const auto& [id, member] : members.members()) {
    if (member.alive() && member.heartbeat.generation() != 0) take_host(id);
  }
  std::vector<std::string> idle;
  for (const auto& [id, member] : members.members()) {
    if (member.alive() && busy.count(HostOf(member.node.address())) == 0) idle.push_back(id);
  }
  // So long that each daemon stays within its bytes of a day, as sender and as receiver.
  const double a_round = 2 * (static_cast<double>(idle.size()) - 1) * mean_bytes_;
  const absl::Duration again_after =
      std::max(options_.remeasure_after,
               absl::Hours(24) * (a_round / static_cast<double>(options_.day_bytes)));
  Urgency most = kNotNow;
  ProbeTask task;
  for (const std::string& from : idle) {
    const int64_t spent = SpentBy(from, now);
    for (const std::string& to : idle) {
      if (from == to) continue;
      const Urgency urgency = UrgencyOf({from, to}, again_after, now);
      if (urgency >= most) continue;
      const double after = static_cast<double>(std::max(spent, SpentBy(to, now))) + mean_bytes_;
      const bool over = after > static_cast<double>(options_.day_bytes);
      if (over && urgency == kAgain) continue;
      most = urgency;
      task = {from, to, false, over ? options_.lean_bytes : 0, options_.probe_budget};
    }
    if (most == kNever) break;
  }
  if (most == kNotNow) return std::nullopt;
  auto back = links_.find({task.to_id, task.from_id});
  if (back != links_.end() && !back->second.link.error().empty()) {
    task.both_ways = true;
    back->second.asked_peer = true;
  }
  under_way_[{task.from_id, task.to_id}] = {now + options_.probe_budget + options_.answer_margin,
                                            task.both_ways};
  return task;
}

double MeasuredLinks::RateOf(const Pair& pair) const {
  const auto it = links_.find(pair);
  return it == links_.end() ? 0 : it->second.link.rate_bits_per_s();
}

std::optional<ProbeTask> MeasuredLinks::NextBeside(const Membership& members,
                                                   const std::set<Pair>& used, absl::Time now) {
  EndLate(now);
  for (const Pair& pair : used) {
    const auto it = links_.find(pair);
    if (it == links_.end() || it->second.link.rate_bits_per_s() <= 0) continue;
    Entry& entry = it->second;
    const bool slower = entry.link.rate_bits_per_s() < kCarriesLess * entry.measured_bits_per_s;
    const absl::Duration wait =
        slower ? std::max(entry.look_after, options_.beside_slower) : options_.beside_every;
    if (now - std::max(entry.looked, entry.measured) < wait) continue;
    // Who dials measures.
    const bool peer_dials = !entry.link.error().empty();
    const Pair ask = peer_dials ? Pair{pair.second, pair.first} : pair;
    const Member *from = members.Find(ask.first), *to = members.Find(ask.second);
    if (from == nullptr || to == nullptr || !from->alive() || !to->alive()) continue;
    if (Measures(pair.first) || Measures(pair.second)) continue;
    ProbeTask task{ask.first, ask.second, peer_dials, 0, options_.beside_budget};
    task.max_bytes =
        std::clamp<int64_t>(static_cast<int64_t>(entry.measured_bits_per_s / 8 * kBesideSeconds),
                            options_.lean_bytes, kMostBesideBytes);
    if (std::max(SpentBy(ask.first, now), SpentBy(ask.second, now)) + 2 * task.max_bytes >
        options_.day_bytes)
      continue;
    entry.looked = now;
    entry.look_after = std::min(2 * wait, options_.beside_every);
    under_way_[ask] = {now + task.budget + options_.answer_margin, task.both_ways, true};
    return task;
  }
  return std::nullopt;
}

void MeasuredLinks::SetRate(const Pair& pair, Entry* entry, double bits_per_s) {
  const double before = entry->link.rate_bits_per_s();
  if (std::abs(bits_per_s - before) < kSameRate * before) return;
  entry->link.set_rate_bits_per_s(bits_per_s);
  entry->stale = true;  // measured again once no job runs there; what is stored is that measure
  entry->look_after = absl::ZeroDuration();
  news_.push_back({pair.first, pair.second, before, bits_per_s, entry->measured_bits_per_s});
}

void MeasuredLinks::Carries(const Pair& pair, double bits_per_s, absl::Time now) {
  const auto it = links_.find(pair);
  if (it == links_.end() || it->second.link.rate_bits_per_s() <= 0 || bits_per_s <= 0) return;
  Entry& entry = it->second;
  entry.looked = now;
  SetRate(pair, &entry,
          std::min(bits_per_s, std::max(entry.measured_bits_per_s, entry.link.rate_bits_per_s())));
}

// It shared the line with a job: it shows what the link carries at least.
void MeasuredLinks::PutBeside(const LinkMeasurement& link) {
  const Pair pair{link.from_id(), link.to_id()};
  const auto it = links_.find(pair);
  if (it == links_.end() || link.rate_bits_per_s() <= 0) return;
  Entry& entry = it->second;
  const double shown = link.rate_bits_per_s();
  if (shown < kCarriesMore * entry.link.rate_bits_per_s()) return;
  const bool as_measured = shown >= kCarriesLess * entry.measured_bits_per_s;
  entry.measured_bits_per_s = std::max(entry.measured_bits_per_s, shown);
  SetRate(pair, &entry, as_measured ? entry.measured_bits_per_s : shown);
}

std::vector<LinkNews> MeasuredLinks::TakeNews() { return std::exchange(news_, {}); }

absl::Status MeasuredLinks::OnResult(const std::string& node_id, const ProbeResult& result,
                                     absl::Time now) {
  if (result.links_size() > kMaxLinksInResult) {
    return absl::InvalidArgumentError(absl::StrCat("probe result with ", result.links_size(),
                                                   " links; at most ", kMaxLinksInResult));
  }
  for (const LinkMeasurement& l : result.links()) {
    if ((l.from_id() != node_id && l.to_id() != node_id) || l.from_id() == l.to_id()) {
      return absl::InvalidArgumentError("probe result of a link that is not of this daemon");
    }
    if (l.error().empty() && (!std::isfinite(l.rate_bits_per_s()) || l.rate_bits_per_s() <= 0 ||
                              !std::isfinite(l.round_trip_s()) || l.round_trip_s() < 0)) {
      return absl::InvalidArgumentError(absl::StrCat("probe result with rate ", l.rate_bits_per_s(),
                                                     " and round trip ", l.round_trip_s()));
    }
    if (l.connections() < 0 || l.connections() > kMaxConnections) {
      return absl::InvalidArgumentError(absl::StrCat("probe result with ", l.connections(),
                                                     " connections; at most ", kMaxConnections));
    }
  }
  const bool told = result.bytes() > 0 && result.bytes() < kMostProbeBytes;
  const bool small = std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& at) {
    return at.first.first == node_id && at.second.beside;
  });
  if (told && !small)
    mean_bytes_ += (static_cast<double>(result.bytes()) - mean_bytes_) / kMeanOver;
  for (const LinkMeasurement& l : result.links()) {
    if (l.from_id() == node_id) continue;
    auto asked = under_way_.find({node_id, l.from_id()});
    if (asked == under_way_.end() || !asked->second.both_ways || !l.error().empty()) continue;
    asked->second.beside ? PutBeside(l) : PutFromPeer(l);
  }
  for (const LinkMeasurement& l : result.links()) {
    if (l.to_id() == node_id) continue;
    const Pair pair{l.from_id(), l.to_id()};
    const auto at = under_way_.find(pair);
    const bool asked = at != under_way_.end(), beside = asked && at->second.beside;
    if (asked) under_way_.erase(at);
    for (const std::string& id : {pair.first, pair.second})
      Spend(id, told ? result.bytes() : static_cast<int64_t>(mean_bytes_), now);
    // Unasked: kept only if it was never measured, so that a daemon can't rewrite the table.
    if (beside) {
      if (l.error().empty()) PutBeside(l);
    } else if (asked || links_.count(pair) == 0) {
      Put(l, now);
    }
  }
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (it->first.first != node_id) {
      ++it;
      continue;
    }
    if (!it->second.beside)
      PutError(it->first, "the measuring daemon did not answer for this pair", now);
    it = under_way_.erase(it);
  }
  return absl::OkStatus();
}

void MeasuredLinks::Put(const LinkMeasurement& link, absl::Time now) {
  const Pair pair{link.from_id(), link.to_id()};
  Entry& entry = links_[pair];
  const LinkMeasurement before = entry.link;
  const double measured = entry.measured_bits_per_s;
  const bool asked_peer = entry.asked_peer && !link.error().empty();
  entry = Entry();
  entry.link = link;
  entry.measured = now;
  entry.asked_peer = asked_peer;
  entry.measured_bits_per_s = link.error().empty() ? link.rate_bits_per_s() : measured;
  if (!link.error().empty()) {
    entry.link.set_error(link.error().substr(0, kMaxErrorBytes));
    // It still can't be dialled: what the other end measured stays true.
    entry.link.set_rate_bits_per_s(before.error().empty() ? 0 : before.rate_bits_per_s());
    entry.link.set_round_trip_s(before.error().empty() ? 0 : before.round_trip_s());
    entry.link.set_connections(before.error().empty() ? 0 : before.connections());
  }
  changed_[pair] = true;
}

void MeasuredLinks::PutFromPeer(const LinkMeasurement& link) {
  auto it = links_.find({link.from_id(), link.to_id()});
  if (it == links_.end() || it->second.link.error().empty()) return;
  it->second.link.set_rate_bits_per_s(link.rate_bits_per_s());
  it->second.link.set_round_trip_s(link.round_trip_s());
  it->second.link.set_connections(link.connections());
  it->second.measured_bits_per_s = link.rate_bits_per_s();
  changed_[it->first] = true;
}

void MeasuredLinks::PutError(const Pair& pair, const std::string& error, absl::Time now) {
  LinkMeasurement link;
  link.set_from_id(pair.first);
  link.set_to_id(pair.second);
  link.set_error(error);
  Put(link, now);
}

void MeasuredLinks::Restore(const LinkMeasurement& link, absl::Time now) {
  if (!link.error().empty()) return;
  Entry& entry = links_[{link.from_id(), link.to_id()}];
  entry.link = link;
  entry.measured = now - options_.keep_on_rejoin;
  entry.measured_bits_per_s = link.rate_bits_per_s();
}

bool MeasuredLinks::Measures(const std::string& node_id) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& at) {
    return at.first.first == node_id || at.first.second == node_id;
  });
}

int MeasuredLinks::Unmeasured(const std::vector<std::string>& node_ids) const {
  int n = 0;
  for (const std::string& a : node_ids) {
    for (const std::string& b : node_ids) {
      auto it = links_.find({a, b});
      n += a != b && (it == links_.end() || it->second.doubted || PeerMayAsk({a, b}) ||
                      (it->second.unreachable() && PeerMeasures({a, b})));
    }
  }
  return n;
}

std::vector<LinkMeasurement> MeasuredLinks::Among(const std::vector<std::string>& node_ids) const {
  std::vector<LinkMeasurement> out;
  for (const std::string& a : node_ids) {
    for (const std::string& b : node_ids) {
      auto it = links_.find({a, b});
      if (it != links_.end()) out.push_back(it->second.link);
    }
  }
  return out;
}

std::vector<LinkMeasurement> MeasuredLinks::TakeChanged() {
  std::vector<LinkMeasurement> out;
  for (const auto& [pair, changed] : changed_) {
    auto it = links_.find(pair);
    if (it != links_.end()) out.push_back(it->second.link);
  }
  changed_.clear();
  return out;
}

}  // namespace isthmus::coordinator
