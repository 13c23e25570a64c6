// One end of a real link between two processes: what it carries. tests/bench/link_bench.py runs
// both ends on the WAN emulator.
//
//   link_bench serve|dial --address HOST:PORT [--connections N] [--window BYTES] [--seconds S]
//              [--skip S] [--send yes|no] [--ping yes|no] [--ping-bytes N] [--uplink BITS_PER_S]
//
// Prints one JSON line: `bits_per_s` of the payload that came, after the first --skip seconds, and
// with --ping the round trips of frames of --ping-bytes on a link of their own meanwhile (dialling
// end; the answers are small). The payload is bulk, as gradients of replicas are, and the frames
// are of the critical path: with --uplink these go first, as in `isthmusd --uplink`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/net/dial_board.h"
#include "daemon/net/link_opener.h"
#include "daemon/net/peer_service.h"
#include "daemon/net/watchdog.h"

namespace isthmus::daemon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kFrameBytes = 256 << 10;
constexpr int64_t kMaxPingBytes = 16 << 20;
constexpr std::chrono::milliseconds kPingEvery{50};

struct Flags {
  bool serves = false;
  std::string address;
  int connections = 1;
  int64_t window_bytes = 0;
  double seconds = 5;
  double skip = 1;
  bool send = true;
  bool ping = false;
  int64_t ping_bytes = 64;
  int64_t uplink_bits_per_s = 0;
};

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Plan PlanOf(const Flags& flags) {
  Plan plan;
  plan.set_job_id("bench");
  plan.set_generation(1);
  for (int rank = 0; rank < 2; ++rank) {
    plan.add_ranks()->set_stage(rank);
    plan.mutable_ranks(rank)->set_node_name(absl::StrCat("n", rank));
    plan.mutable_ranks(rank)->set_address(flags.address);
  }
  for (const char* id : {"b0", "ping"}) {
    LinkPlan* link = plan.add_links();
    link->set_id(id);
    link->set_upper(1);
    link->set_window_bytes(flags.window_bytes);
  }
  plan.mutable_links(0)->set_connections(flags.connections);
  return plan;
}

worker::Frame MakeFrame(FrameHeader::Kind kind, int64_t bytes) {
  worker::Frame frame;
  frame.header.set_kind(kind);
  frame.header.set_payload_bytes(static_cast<uint64_t>(bytes));
  frame.payload.resize(static_cast<size_t>(bytes));
  return frame;
}

void SendFor(worker::Link* link, double seconds) {
  const auto start = Clock::now();
  while (Since(start) < seconds &&
         link->Send(MakeFrame(FrameHeader::CONTRIBUTION, kFrameBytes), kLong).ok()) {
  }
}

// Bits a second of what came after the first `skip` seconds.
double ReceiveAll(worker::Link* link, double skip) {
  double from = 0, until = 0;
  int64_t bytes = 0;
  Clock::time_point start;
  for (bool first = true;; first = false) {
    const auto frame = link->Receive(kFrameBytes, kLong);
    if (!frame.ok()) {
      if (!absl::IsOutOfRange(frame.status()))
        std::fprintf(stderr, "%s\n", frame.status().ToString().c_str());
      break;
    }
    if (first) start = Clock::now();
    until = Since(start);
    if (until < skip || from == 0) {
      from = until;
    } else {
      bytes += kFrameBytes;
    }
  }
  return until > from ? static_cast<double>(bytes) * 8 / (until - from) : 0;
}

std::vector<double> Ping(worker::Link* link, double seconds, int64_t bytes) {
  std::vector<double> round_trips_s;
  const auto start = Clock::now();
  while (Since(start) < seconds) {
    const auto sent = Clock::now();
    if (!link->Send(MakeFrame(FrameHeader::ACTIVATION, bytes), kLong).ok() ||
        !link->Receive(kFrameBytes, kLong).ok())
      break;
    round_trips_s.push_back(Since(sent));
    std::this_thread::sleep_for(kPingEvery);
  }
  std::sort(round_trips_s.begin(), round_trips_s.end());
  return round_trips_s;
}

void Answer(worker::Link* link) {
  while (link->Receive(kMaxPingBytes, kLong).ok() &&
         link->Send(MakeFrame(FrameHeader::GRADIENT, 64), kLong).ok()) {
  }
}

int Run(const Flags& flags) {
  Watchdog watchdog;
  DialBoard board;
  board.SetSession("bench", 1);
  std::unique_ptr<PeerServer> server;
  if (flags.serves) {
    PeerServerOptions options;
    options.listen = flags.address;
    options.board = &board;
    options.watchdog = &watchdog;
    auto started = PeerServer::Start(options);
    if (!started.ok()) {
      std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
      return 1;
    }
    server = std::move(started).value();
  }
  UplinkGate uplink(flags.uplink_bits_per_s);
  GrpcLinkOpener opener({"", &board, &watchdog, {}, nullptr, &uplink});
  const Plan plan = PlanOf(flags);
  const int rank = flags.serves ? 1 : 0;
  auto bulk = opener.Open(plan, plan.links(0), rank, kLong);
  auto ping = opener.Open(plan, plan.links(1), rank, kLong);
  if (!bulk.ok() || !ping.ok()) {
    std::fprintf(stderr, "%s %s\n", bulk.status().ToString().c_str(),
                 ping.status().ToString().c_str());
    return 1;
  }
  double rate = 0;
  std::vector<double> round_trips_s;
  std::thread receiver([&] { rate = ReceiveAll(bulk->get(), flags.skip); });
  std::thread small([&] {
    if (flags.serves) {
      Answer(ping->get());
    } else if (flags.ping) {
      round_trips_s = Ping(ping->get(), flags.seconds, flags.ping_bytes);
    }
    ping->get()->Finish(kLong).IgnoreError();
  });
  if (flags.send) SendFor(bulk->get(), flags.seconds);
  const absl::Status finished = bulk->get()->Finish(kLong);
  if (!finished.ok()) std::fprintf(stderr, "%s\n", finished.ToString().c_str());
  receiver.join();
  small.join();
  std::printf("{\"bits_per_s\": %.0f, \"ping_ms\": [%.1f, %.1f]}\n", rate,
              round_trips_s.empty() ? 0 : 1e3 * round_trips_s[round_trips_s.size() / 2],
              round_trips_s.empty() ? 0 : 1e3 * round_trips_s.back());
  return finished.ok() ? 0 : 1;
}

bool Parse(int argc, char** argv, Flags* flags) {
  if (argc < 2) return false;
  const std::string mode = argv[1];
  flags->serves = mode == "serve";
  const std::map<std::string, std::function<bool(const std::string&)>> known = {
      {"--address",
       [&](const std::string& v) {
         flags->address = v;
         return true;
       }},
      {"--connections",
       [&](const std::string& v) { return absl::SimpleAtoi(v, &flags->connections); }},
      {"--window", [&](const std::string& v) { return absl::SimpleAtoi(v, &flags->window_bytes); }},
      {"--ping-bytes",
       [&](const std::string& v) {
         return absl::SimpleAtoi(v, &flags->ping_bytes) && flags->ping_bytes <= kMaxPingBytes;
       }},
      {"--uplink",
       [&](const std::string& v) { return absl::SimpleAtoi(v, &flags->uplink_bits_per_s); }},
      {"--seconds", [&](const std::string& v) { return absl::SimpleAtod(v, &flags->seconds); }},
      {"--skip", [&](const std::string& v) { return absl::SimpleAtod(v, &flags->skip); }},
      {"--send",
       [&](const std::string& v) {
         flags->send = v == "yes";
         return v == "yes" || v == "no";
       }},
      {"--ping",
       [&](const std::string& v) {
         flags->ping = v == "yes";
         return v == "yes" || v == "no";
       }},
  };
  for (int i = 2; i < argc; i += 2) {
    const auto flag = known.find(argv[i]);
    if (flag == known.end() || i + 1 == argc || !flag->second(argv[i + 1])) return false;
  }
  return (flags->serves || mode == "dial") && !flags->address.empty();
}

}  // namespace
}  // namespace isthmus::daemon

int main(int argc, char** argv) {
  isthmus::daemon::Flags flags;
  if (!isthmus::daemon::Parse(argc, argv, &flags)) {
    std::fprintf(stderr, "usage: see the head of tests/bench/link_bench.cc\n");
    return 2;
  }
  return isthmus::daemon::Run(flags);
}
