#include "proto/plan/simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus {
namespace {

// What makes a frame the one that must come next on its link.
struct FrameKey {
  FrameHeader::Kind what = FrameHeader::ACTIVATION;
  int number = 0;  // micro-batch, or group

  bool operator==(const FrameKey& other) const {
    return what == other.what && number == other.number;
  }
};

std::string GroupName(int group, const Wiring& wiring) {
  const bool known = group >= 0 && group < static_cast<int>(wiring.groups.size());
  return known ? wiring.groups[group].name : absl::StrCat("group ", group);
}

std::string FrameText(const FrameKey& key, const Wiring& wiring) {
  switch (key.what) {
    case FrameHeader::ACTIVATION:
      return absl::StrCat("activation ", key.number);
    case FrameHeader::GRADIENT:
      return absl::StrCat("gradient ", key.number);
    case FrameHeader::VOTE:
      return "vote";
    case FrameHeader::DECISION:
      return "decision";
    case FrameHeader::BUFFER_HASH:
      return "buffer hash";
    case FrameHeader::CONTRIBUTION:
      return absl::StrCat("contribution to ", GroupName(key.number, wiring));
    case FrameHeader::SUM:
      return absl::StrCat("sum of ", GroupName(key.number, wiring));
    case FrameHeader::SLICE:
      return absl::StrCat("slice of ", GroupName(key.number, wiring));
    default:
      return absl::StrCat("frame of kind ", static_cast<int>(key.what));
  }
}

// One direction of a link: what is under way, and when slots became free.
struct Channel {
  struct Message {
    FrameKey key;
    double arrival_s;
  };
  std::deque<Message> queue;
  std::vector<double> popped_s;  // time of the k-th receive
  int sent = 0;
  double link_free_s = 0;
};

class Simulator {
 public:
  Simulator(const std::vector<ActionList>& lists, const Wiring& wiring, int queue_limit,
            const ScheduleCosts& costs)
      : lists_(lists),
        wiring_(wiring),
        limit_(std::max(1, queue_limit)),
        costs_(costs),
        next_(lists.size()),
        clock_(lists.size()),
        up_(wiring.links.size()),
        down_(wiring.links.size()),
        received_(lists.size()),
        pieces_(lists.size()) {
    result_.ranks.resize(lists.size());
    result_.busy_s.resize(lists.size());
    for (size_t r = 0; r < lists.size(); ++r) {
      for (const Action& a : lists[r]) pieces_[r][a.micro()] += a.op() == Action::BWD;
    }
  }

  absl::StatusOr<Simulation> Run() {
    for (moved_ = true; moved_;) {
      moved_ = false;
      for (size_t r = 0; r < lists_.size(); ++r) {
        for (;;) {
          ASSIGN_OR_RETURN(bool done, Try(static_cast<int>(r)));
          if (!done) break;
          moved_ = true;
        }
      }
    }
    RETURN_IF_ERROR(Finished());
    for (double clock_s : clock_) result_.end_s = std::max(result_.end_s, clock_s);
    return std::move(result_);
  }

 private:
  // True if the rank's next action could run; false if it has to wait or there is none.
  absl::StatusOr<bool> Try(int r) {
    if (next_[r] == lists_[r].size()) return false;
    const Action& a = lists_[r][next_[r]];
    const double start = clock_[r];
    ASSIGN_OR_RETURN(const bool done, Do(r, a));
    if (!done) return false;
    result_.ranks[r].push_back({a, start, clock_[r]});
    ++next_[r];
    return true;
  }

  absl::StatusOr<bool> Do(int r, const Action& a) {
    switch (a.op()) {
      case Action::FWD:
      case Action::BWD: {
        const double cost = a.op() == Action::FWD
                                ? costs_.forward_s[r]
                                : costs_.backward_s[r] / std::max(1, pieces_[r][a.micro()]);
        clock_[r] += cost;
        result_.busy_s[r] += cost;
        result_.makespan_s = std::max(result_.makespan_s, clock_[r]);
        return true;
      }
      case Action::SEND:
      case Action::RECV: {
        const int links = static_cast<int>(wiring_.links.size());
        if (a.link() < 0 || a.link() >= links)
          return Broken(r, a, absl::StrCat("there are ", links, " links"));
        const Wiring::Link& link = wiring_.links[a.link()];
        if (link.lower != r && link.upper != r)
          return Broken(r, a, absl::StrCat(link.name, " does not end here"));
        const FrameKey key{a.what(), a.micro()};
        if (a.op() == Action::SEND) return Send(r, a.link(), key);
        return Receive(r, a, a.link(), key);
      }
      case Action::OFFER:
      case Action::REDUCE:
      case Action::COLLECT:
      case Action::DEAL:
      case Action::MERGE:
        return Reduction(r, a);
      default:
        return true;
    }
  }

  Channel& Direction(int r, int link, bool out) {
    return (wiring_.links[link].lower == r) == out ? up_[link] : down_[link];
  }

  int Limit(int link) const {
    return wiring_.links[link].queue_limit > 0 ? wiring_.links[link].queue_limit : limit_;
  }

  bool HasRoom(int r, int link) {
    const Channel& channel = Direction(r, link, true);
    return channel.sent - Limit(link) < static_cast<int>(channel.popped_s.size());
  }

  bool Send(int r, int link, const FrameKey& key) {
    if (!HasRoom(r, link)) return false;
    Channel& channel = Direction(r, link, true);
    const int freed_by = channel.sent - Limit(link);
    if (freed_by >= 0) clock_[r] = std::max(clock_[r], channel.popped_s[freed_by]);
    double busy_s = 0;
    if (key.what == FrameHeader::ACTIVATION) busy_s = costs_.up_s[link];
    if (key.what == FrameHeader::GRADIENT) busy_s = costs_.Gradient(link, key.number);
    const bool of_group = key.what == FrameHeader::CONTRIBUTION || key.what == FrameHeader::SUM ||
                          key.what == FrameHeader::SLICE;
    if (of_group && !costs_.group_s.empty()) busy_s = costs_.group_s[key.number];
    channel.link_free_s = std::max(channel.link_free_s, clock_[r]) + busy_s;
    channel.queue.push_back({key, channel.link_free_s + costs_.latency_s[link]});
    ++channel.sent;
    return true;
  }

  absl::StatusOr<bool> Receive(int r, const Action& a, int link, const FrameKey& key) {
    Channel& channel = Direction(r, link, false);
    if (channel.queue.empty()) return false;
    const Channel::Message& message = channel.queue.front();
    if (!(message.key == key)) {
      return Broken(r, a,
                    absl::StrCat("the ", FrameText(message.key, wiring_), " comes next on ",
                                 wiring_.links[link].name, ", not the ", FrameText(key, wiring_)));
    }
    clock_[r] = std::max(clock_[r], message.arrival_s);
    channel.queue.pop_front();
    channel.popped_s.push_back(clock_[r]);
    return true;
  }

  // All peers at once: it waits until there is a frame of each of them, then until each has room.
  absl::StatusOr<bool> Reduction(int r, const Action& a) {
    const int groups = static_cast<int>(wiring_.groups.size());
    if (a.group() < 0 || a.group() >= groups)
      return Broken(r, a, absl::StrCat("there are ", groups, " groups"));
    const Wiring::Group& group = wiring_.groups[a.group()];
    if (std::find(group.ranks.begin(), group.ranks.end(), r) == group.ranks.end())
      return Broken(r, a, absl::StrCat("this rank is not in ", group.name));
    std::vector<int> links;
    for (int peer : group.ranks) {
      if (peer == r) continue;
      links.push_back(wiring_.GroupLink(r, peer));
      if (links.back() < 0)
        return Broken(r, a, absl::StrCat("there is no link to rank ", peer, " for ", group.name));
    }
    const bool receives = a.op() != Action::OFFER && a.op() != Action::DEAL;
    const bool sends = !receives || (a.op() == Action::REDUCE && group.sharded);
    const FrameHeader::Kind in = a.op() == Action::MERGE     ? FrameHeader::SLICE
                                 : a.op() == Action::COLLECT ? FrameHeader::SUM
                                                             : FrameHeader::CONTRIBUTION;
    const FrameHeader::Kind out = a.op() == Action::DEAL    ? FrameHeader::SLICE
                                  : a.op() == Action::OFFER ? FrameHeader::CONTRIBUTION
                                                            : FrameHeader::SUM;
    if (receives && !received_[r]) {
      for (int link : links) {
        if (Direction(r, link, false).queue.empty()) return false;
      }
      for (int link : links) RETURN_IF_ERROR(Receive(r, a, link, {in, a.group()}).status());
      received_[r] = moved_ = true;
    }
    if (sends) {
      for (int link : links) {
        if (!HasRoom(r, link)) return false;
      }
      for (int link : links) Send(r, link, {out, a.group()});
    }
    received_[r] = false;
    return true;
  }

  absl::Status Broken(int r, const Action& a, absl::string_view why) const {
    return absl::FailedPreconditionError(absl::StrCat("schedule: rank ", r, ", action ", next_[r],
                                                      " (", ActionName(a, wiring_), "): ", why));
  }

  absl::Status Finished() const {
    for (size_t r = 0; r < lists_.size(); ++r) {
      if (next_[r] == lists_[r].size()) continue;
      const Action& a = lists_[r][next_[r]];
      return Broken(
          static_cast<int>(r), a,
          absl::StrCat("deadlock: it waits forever with ", limit_, " frames a direction"));
    }
    for (size_t l = 0; l < wiring_.links.size(); ++l) {
      for (const Channel* channel : {&up_[l], &down_[l]}) {
        if (channel->queue.empty()) continue;
        return absl::FailedPreconditionError(absl::StrCat(
            "schedule: ", wiring_.links[l].name, ": the ",
            FrameText(channel->queue.front().key, wiring_), " is sent and not received"));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<ActionList>& lists_;
  const Wiring& wiring_;
  const int limit_;
  const ScheduleCosts& costs_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::vector<Channel> up_;                 // of each link: lower -> upper
  std::vector<Channel> down_;               // ... upper -> lower
  std::vector<bool> received_;              // of each rank: a REDUCE has its frames, and sends next
  std::vector<std::map<int, int>> pieces_;  // of each rank: BWDs of a micro-batch
  bool moved_ = false;
  Simulation result_;
};

}  // namespace

double ScheduleCosts::Gradient(size_t link, size_t micro) const {
  const bool differs = link < gradient_s.size() && micro < gradient_s[link].size();
  return differs ? gradient_s[link][micro] : down_s[link];
}

ScheduleCosts ScheduleCosts::Unit(const Wiring& wiring) {
  const size_t ranks = wiring.ranks, links = wiring.links.size();
  return {std::vector<double>(ranks, 1),
          std::vector<double>(ranks, 2),
          std::vector<double>(links),
          std::vector<double>(links),
          std::vector<double>(links),
          {},
          {}};
}

absl::StatusOr<Simulation> Simulate(const std::vector<ActionList>& lists, const Wiring& wiring,
                                    int queue_limit, const ScheduleCosts& costs) {
  const size_t ranks = lists.size(), links = wiring.links.size();
  if (costs.forward_s.size() < ranks || costs.backward_s.size() < ranks ||
      costs.up_s.size() < links || costs.down_s.size() < links || costs.latency_s.size() < links ||
      (!costs.group_s.empty() && costs.group_s.size() < wiring.groups.size())) {
    return absl::InvalidArgumentError(
        "schedule costs: a value for each rank, link and group is needed");
  }
  return Simulator(lists, wiring, queue_limit, costs).Run();
}

std::string ActionName(const Action& a, const Wiring& wiring) {
  const std::string name = Action::Op_Name(a.op());
  switch (a.op()) {
    case Action::FWD:
    case Action::BWD:
      return absl::StrCat(name, " ", a.micro());
    case Action::SEND:
    case Action::RECV: {
      const bool known = a.link() >= 0 && a.link() < static_cast<int>(wiring.links.size());
      return absl::StrCat(name, " ", FrameText({a.what(), a.micro()}, wiring), " on ",
                          known ? wiring.links[a.link()].name : absl::StrCat("link ", a.link()));
    }
    case Action::OFFER:
    case Action::REDUCE:
    case Action::COLLECT:
    case Action::DEAL:
    case Action::MERGE:
      return absl::StrCat(name, " ", GroupName(a.group(), wiring));
    default:
      return name;
  }
}

}  // namespace isthmus
