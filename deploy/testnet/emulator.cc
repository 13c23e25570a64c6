#include "deploy/testnet/emulator.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bit_rate.h"
#include "base/status.h"
#include "deploy/testnet/ipv4.h"

namespace isthmus::testnet {
namespace {

constexpr int kReadsPerTurn = 64;
constexpr int kEventsPerTurn = 64;
// Turns that carry packets begin at least this far apart, so that dense traffic shares wake-ups. It
// bounds what this adds to a packet's way: once when it is read, once when it is delivered. Twice
// as much would save a third of the CPU at 100 Mbit/s and MTU 1500, and endanger the promised 1 ms.
constexpr int64_t kTurnNs = 150'000;
// epoll data: a node's index, or this plus a descriptor.
constexpr uint64_t kWatchedBase = uint64_t{1} << 32;

int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Emulator>> Emulator::Create(const LinkTable& table,
                                                           const EmulatorOptions& options) {
  if (options.mtu < kMinMtu || options.mtu > kMaxMtu) {
    return absl::InvalidArgumentError(
        absl::StrCat("the MTU must be ", kMinMtu, " to ", kMaxMtu, ", not ", options.mtu));
  }
  std::unique_ptr<Emulator> emulator(new Emulator(table, options));
  RETURN_IF_ERROR(emulator->Start());
  return emulator;
}

Emulator::Emulator(const LinkTable& table, const EmulatorOptions& options)
    : names_(table.nodes),
      options_(options),
      shaper_(table, options.shaper),
      buffer_(static_cast<size_t>(kMaxMtu)) {}

absl::Status Emulator::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.ok()) return absl::ErrnoToStatus(errno, "epoll_create1");
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.ok()) return absl::ErrnoToStatus(errno, "timerfd_create");
  RETURN_IF_ERROR(Watch(timer_.get(), [] {}));  // waking is all it does
  for (size_t i = 0; i < names_.size(); ++i) {
    ASSIGN_OR_RETURN(NodeNet node,
                     MakeNodeNet({NodeAddress(static_cast<int>(i)), kPrefixLength, options_.mtu}));
    nodes_.push_back(std::move(node));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, nodes_.back().tun.get(), &event) != 0) {
      return absl::ErrnoToStatus(errno, "epoll_ctl on a TUN device");
    }
  }
  started_ns_ = NowNs();
  return absl::OkStatus();
}

absl::Status Emulator::Watch(int fd, std::function<void()> on_readable) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWatchedBase + static_cast<uint64_t>(fd);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  watched_[fd] = std::move(on_readable);
  return absl::OkStatus();
}

absl::Status Emulator::RunOnce(absl::Duration max_wait) {
  PaceTurns();
  DeliverDue();
  const int64_t now = NowNs();
  int64_t deadline = shaper_.NextEvent();
  if (max_wait != absl::InfiniteDuration()) {
    deadline = std::min(deadline, now + absl::ToInt64Nanoseconds(max_wait));
  }
  ArmTimer(deadline);
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerTurn, -1);
  if (count < 0) {
    return errno == EINTR ? absl::OkStatus() : absl::ErrnoToStatus(errno, "epoll_wait");
  }
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id < kWatchedBase) {
      ReadDevice(static_cast<int>(id));
    } else {
      watched_[static_cast<int>(id - kWatchedBase)]();
    }
  }
  return absl::OkStatus();
}

void Emulator::PaceTurns() {
  const int64_t now = NowNs();
  if (carried_ && now < turn_began_ns_ + kTurnNs) {
    const int64_t until = turn_began_ns_ + kTurnNs;
    const timespec wake{until / 1'000'000'000, until % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
  }
  turn_began_ns_ = carried_ ? NowNs() : now;
  carried_ = false;
}

void Emulator::ArmTimer(int64_t deadline_ns) {
  const int64_t wanted = deadline_ns == Shaper::kNever ? 0 : deadline_ns;
  // Unless it has fired: then only setting it again takes the readiness away.
  if (wanted == armed_ns_ && wanted > NowNs()) return;
  if (wanted == 0 && armed_ns_ == 0) return;
  itimerspec spec{};
  spec.it_value.tv_sec = wanted / 1'000'000'000;
  spec.it_value.tv_nsec = wanted % 1'000'000'000;
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
  armed_ns_ = wanted;
}

void Emulator::DeliverDue() {
  const int64_t now = NowNs();
  while (std::optional<Shaper::Delivery> due = shaper_.Pop(now)) {
    const int64_t late = now - due->arrival_ns;
    ++lateness_.count;
    lateness_.sum_ns += late;
    lateness_.max_ns = std::max(lateness_.max_ns, late);
    Write(due->to, due->packet);
    carried_ = true;
  }
}

void Emulator::ReadDevice(int node) {
  const int fd = nodes_[node].tun.get();
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const ssize_t size = read(fd, buffer_.data(), buffer_.size());
    if (size <= 0)
      return;  // drained; a device that someone took down reads EBADFD until it is up again
    carried_ = true;
    Route(node, absl::MakeConstSpan(buffer_.data(), static_cast<size_t>(size)), NowNs());
  }
}

void Emulator::Route(int node, absl::Span<const uint8_t> packet, int64_t now_ns) {
  const std::optional<Ipv4Header> header = ParseIpv4(packet);
  if (!header) {
    ++not_ipv4_;
    return;
  }
  const int to = NodeOfAddress(header->destination);
  const bool inside = to >= 0 && to < static_cast<int>(nodes_.size()) && to != node;
  if (!inside || header->source != NodeAddress(node)) {
    ++refused_;
    if (header->source == NodeAddress(node)) Write(node, MakeRefusal(packet));
    return;
  }
  shaper_.Offer(node, to, packet, now_ns);
}

void Emulator::Write(int node, absl::Span<const uint8_t> packet) {
  if (packet.empty()) return;
  if (write(nodes_[node].tun.get(), packet.data(), packet.size()) < 0) ++write_errors_;
}

absl::StatusOr<int> Emulator::Change(const LinkChange& change) {
  if (const std::optional<Side> side = SideOf(change.to)) {
    ASSIGN_OR_RETURN(const std::vector<int> nodes, NodesOf(change.from, names_));
    for (int node : nodes) shaper_.SetEnd(node, *side, *change.rate_bits_per_s, NowNs());
    return static_cast<int>(nodes.size());
  }
  ASSIGN_OR_RETURN(const std::vector<int> pairs, PairsOf(change, names_));
  const int n = static_cast<int>(names_.size());
  const int64_t now = NowNs();
  for (int pair : pairs) {
    const int from = pair / n;
    const int to = pair % n;
    const LinkSpec spec = Changed(shaper_.link(from, to), change);
    if (spec != shaper_.link(from, to)) shaper_.SetLink(from, to, spec, now);
    if (change.down) shaper_.SetDown(from, to, *change.down);
  }
  return static_cast<int>(pairs.size());
}

std::string Emulator::StatsJson() const {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  nlohmann::ordered_json json;
  json["uptime_s"] = static_cast<double>(NowNs() - started_ns_) / 1e9;
  json["cpu_s"] = absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                                        absl::DurationFromTimeval(usage.ru_stime));
  json["refused"] = refused_;
  json["not_ipv4"] = not_ipv4_;
  json["write_errors"] = write_errors_;
  json["held_bytes"] = shaper_.held_bytes();
  json["late_mean_us"] = lateness_.count == 0 ? 0.0
                                              : static_cast<double>(lateness_.sum_ns) / 1e3 /
                                                    static_cast<double>(lateness_.count);
  json["late_max_us"] = static_cast<double>(lateness_.max_ns) / 1e3;
  json["ends"] = nlohmann::ordered_json::array();
  for (int node = 0; node < static_cast<int>(names_.size()); ++node) {
    for (const Side side : kSides) {
      const EndCounters& c = shaper_.counters(node, side);
      if (shaper_.end_rate(node, side) == 0 && c.packets == 0) continue;
      json["ends"].push_back({{"node", names_[node]},
                              {"side", SideName(side)},
                              {"rate", FormatBitRate(shaper_.end_rate(node, side))},
                              {"packets", c.packets},
                              {"bytes", c.bytes},
                              {"dropped_queue", c.dropped_queue},
                              {"longest_wait_ms", static_cast<double>(c.longest_wait_ns) / 1e6}});
    }
  }
  json["pairs"] = nlohmann::ordered_json::array();
  for (int from = 0; from < static_cast<int>(names_.size()); ++from) {
    for (int to = 0; to < static_cast<int>(names_.size()); ++to) {
      if (from == to) continue;
      const PairCounters& c = shaper_.counters(from, to);
      json["pairs"].push_back({{"from", names_[from]},
                               {"to", names_[to]},
                               {"packets", c.packets},
                               {"bytes", c.bytes},
                               {"dropped_loss", c.dropped_loss},
                               {"dropped_queue", c.dropped_queue},
                               {"dropped_down", c.dropped_down},
                               {"dropped_large", c.dropped_large}});
    }
  }
  return json.dump(1) + "\n";
}

WanInfo Emulator::Info() const {
  WanInfo info;
  info.pid = getpid();
  info.mtu = options_.mtu;
  info.seed = options_.shaper.seed;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    info.nodes.push_back({names_[i], FormatAddress(NodeAddress(static_cast<int>(i))),
                          absl::StrCat("/proc/", info.pid, "/fd/", nodes_[i].netns.get())});
  }
  return info;
}

std::vector<int> Emulator::ProcessesInside() const {
  std::vector<int> fds;
  for (const NodeNet& node : nodes_) fds.push_back(node.netns.get());
  return testnet::ProcessesInside(fds);
}

}  // namespace isthmus::testnet
