#include "coordinator/link_table.h"

#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/figures.h"

namespace isthmus::coordinator {
namespace {

constexpr int kMaxLinksInResult = 1024;
constexpr size_t kMaxErrorBytes = 300;

}  // namespace

void LinkTable::OnJoin(const std::string& node_id, bool moved, absl::Time now) {
  for (auto it = links_.begin(); it != links_.end();) {
    Entry& entry = it->second;
    if (it->first.first != node_id && it->first.second != node_id) {
      ++it;
    } else if (moved || !entry.link.error().empty()) {
      it = links_.erase(it);
    } else {
      if (now - entry.measured >= options_.keep_on_rejoin) {
        entry.measured = now - options_.remeasure_after;  // usable meanwhile
      }
      ++it;
    }
  }
}

void LinkTable::OnGone(const std::string& node_id, absl::Time now) {
  for (auto it = under_way_.begin(); it != under_way_.end();)
    it = it->first.first == node_id ? under_way_.erase(it) : std::next(it);
}

void LinkTable::Forgive(absl::Duration pause) {
  for (auto& [pair, answer_by] : under_way_) answer_by += pause;
}

void LinkTable::Forget(const Membership& members) {
  for (auto it = links_.begin(); it != links_.end();) {
    const bool listed =
        members.Find(it->first.first) != nullptr && members.Find(it->first.second) != nullptr;
    it = listed ? std::next(it) : links_.erase(it);
  }
}

bool LinkTable::Due(const Pair& pair, absl::Time now) const {
  auto it = links_.find(pair);
  if (it == links_.end()) return true;
  return now - it->second.measured >=
         (it->second.link.error().empty() ? options_.remeasure_after : options_.retry_after);
}

void LinkTable::EndLate(absl::Time now) {
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (now < it->second) {
      ++it;
      continue;
    }
    PutError(it->first,
             absl::StrCat("no answer of the measuring daemon within ",
                          DurationWords(options_.probe_budget + options_.answer_margin)),
             now);
    it = under_way_.erase(it);
  }
}

std::optional<ProbeTask> LinkTable::Next(const Membership& members, bool job_runs, absl::Time now) {
  EndLate(now);
  if (job_runs) return std::nullopt;
  std::set<std::string> busy;  // hosts: the daemons of one share its line
  for (const auto& [pair, answer_by] : under_way_) {
    for (const std::string& id : {pair.first, pair.second}) {
      if (const Member* member = members.Find(id)) busy.insert(HostOf(member->node.address()));
    }
  }
  std::vector<std::string> idle;
  for (const auto& [id, member] : members.members()) {
    if (member.alive() && member.heartbeat.generation() == 0 &&
        busy.count(HostOf(member.node.address())) == 0)
      idle.push_back(id);
  }
  auto take = [&](const Pair& pair) {
    under_way_[pair] = now + options_.probe_budget + options_.answer_margin;
    return ProbeTask{pair.first, pair.second};
  };
  std::optional<Pair> known;  // to be measured again: after those that never were
  for (const std::string& from : idle) {
    for (const std::string& to : idle) {
      const Pair pair{from, to};
      if (from == to || !Due(pair, now)) continue;
      if (links_.count(pair) == 0) return take(pair);
      if (!known.has_value()) known = pair;
    }
  }
  if (!known.has_value()) return std::nullopt;
  return take(*known);
}

absl::Status LinkTable::OnResult(const std::string& node_id, const ProbeResult& result,
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
    const bool asked = under_way_.erase({l.from_id(), l.to_id()}) > 0;
    // Unasked: kept only if it was never measured, so that a daemon can't rewrite the table.
    if (asked || links_.count({l.from_id(), l.to_id()}) == 0) Put(l, now);
  }
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (it->first.first != node_id) {
      ++it;
      continue;
    }
    PutError(it->first, "the measuring daemon did not answer for this pair", now);
    it = under_way_.erase(it);
  }
  return absl::OkStatus();
}

void LinkTable::Put(const LinkMeasurement& link, absl::Time now) {
  const Pair pair{link.from_id(), link.to_id()};
  Entry& entry = links_[pair];
  entry.link = link;
  if (link.error().size() > kMaxErrorBytes)
    entry.link.set_error(link.error().substr(0, kMaxErrorBytes));
  entry.measured = now;
  changed_[pair] = true;
}

void LinkTable::PutError(const Pair& pair, const std::string& error, absl::Time now) {
  LinkMeasurement link;
  link.set_from_id(pair.first);
  link.set_to_id(pair.second);
  link.set_error(error);
  Put(link, now);
}

void LinkTable::Restore(const LinkMeasurement& link, absl::Time now) {
  if (link.error().empty())
    links_[{link.from_id(), link.to_id()}] = {link, now - options_.keep_on_rejoin};
}

bool LinkTable::Measures(const std::string& node_id) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& at) {
    return at.first.first == node_id || at.first.second == node_id;
  });
}

int LinkTable::Unmeasured(const std::vector<std::string>& node_ids) const {
  int n = 0;
  for (const std::string& a : node_ids) {
    for (const std::string& b : node_ids) n += a != b && links_.count({a, b}) == 0;
  }
  return n;
}

std::vector<LinkMeasurement> LinkTable::Among(const std::vector<std::string>& node_ids) const {
  std::vector<LinkMeasurement> out;
  for (const std::string& a : node_ids) {
    for (const std::string& b : node_ids) {
      auto it = links_.find({a, b});
      if (it != links_.end()) out.push_back(it->second.link);
    }
  }
  return out;
}

std::vector<LinkMeasurement> LinkTable::TakeChanged() {
  std::vector<LinkMeasurement> out;
  for (const auto& [pair, changed] : changed_) {
    auto it = links_.find(pair);
    if (it != links_.end()) out.push_back(it->second.link);
  }
  changed_.clear();
  return out;
}

}  // namespace isthmus::coordinator
