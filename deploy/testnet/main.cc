// isthmus-wan: a wide-area network between processes of one machine. See README.md.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bit_rate.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "deploy/testnet/control.h"
#include "deploy/testnet/link_table.h"
#include "deploy/testnet/netns.h"
#include "deploy/testnet/run_dir.h"
#include "deploy/testnet/serve.h"

namespace isthmus::testnet {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;
constexpr int kExitRefused = 3;     // by the kernel: not root, no TUN
constexpr int kExitNotRunning = 4;  // exec, set, stats: there is no such emulator

constexpr char kDescription[] =
    R"(A wide-area network between processes of one machine: namespaces joined by shaped links.

  isthmus-wan --links PRESET|FILE [OPTIONS] [-- COMMAND...]
  isthmus-wan --nodes N [--rate R] [--delay D] [--jitter J] [--loss P] [--uplink R] [--downlink R]
              [OPTIONS] [-- COMMAND...]
  isthmus-wan exec|set|stats|presets|show ...)";

constexpr char kFooter[] = R"(
Examples:
  isthmus-wan --links regions --nodes 4 --run-dir /tmp/wan          serve until Ctrl-C
  isthmus-wan exec --run-dir /tmp/wan us-east -- bash               a shell on that node
  isthmus-wan --nodes 2 --rate 20Mbit --delay 25ms -- ./my-test.sh  run a command, then stop
  isthmus-wan set --run-dir /tmp/wan us-east '*' --down             pull a node's cable
  isthmus-wan set --run-dir /tmp/wan us-east @up --rate 20Mbit      what all its links share

A command finds ISTHMUS_WAN_DIR and ISTHMUS_WAN_NODES (name=address,...) in its environment. It runs
in the original network; what it starts by `isthmus-wan exec` runs on a node. Without a command, the
line `ready DIR` on stdout says that the network is up.

Exit codes: the command's own; else 0 done, 1 error, 2 wrong usage or link table, 3 the kernel
refuses (not root, no TUN), 4 no such emulator is running, 126/127 the command can't be run / is
not there.)";

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "isthmus-wan: %s\n", std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return kExitRefused;
    case absl::StatusCode::kUnavailable:
      return kExitNotRunning;
    default:
      return kExitError;
  }
}

// The tables and directories that a user names: not finding them is wrong usage.
int FailLookup(const absl::Status& status, int not_found_code) {
  const int code = Fail(status);
  return absl::IsNotFound(status) ? not_found_code : code;
}

struct Arguments {
  std::string links, run_dir, rate, delay, jitter, loss, uplink, downlink, drop_over;
  int nodes = 0;
  int mtu = 1500;
  uint64_t seed = 1;
  int64_t queue_bytes = 0;
  std::string node, from, to;
  bool down = false, up = false, one_way = false;
  std::vector<std::string> command;  // after `--`
};

absl::StatusOr<LinkTable> TableOf(const Arguments& a) {
  const bool uniform = !a.rate.empty() || !a.delay.empty() || !a.jitter.empty() ||
                       !a.loss.empty() || !a.uplink.empty() || !a.downlink.empty();
  if (!a.links.empty() && uniform) {
    return absl::InvalidArgumentError(
        "--links goes without --rate, --delay, --jitter, --loss, --uplink and --downlink: put "
        "those into the table");
  }
  if (!a.links.empty()) return LoadLinkTable(a.links, a.nodes);
  if (a.nodes == 0) {
    return absl::InvalidArgumentError(
        "say which network: --links PRESET|FILE, or --nodes N with --rate, --delay, --loss");
  }
  absl::StatusOr<int64_t> rate = ParseBitRate(a.rate.empty() ? "unlimited" : a.rate);
  if (!rate.ok()) return rate.status();
  absl::StatusOr<absl::Duration> delay = ParseDelay(a.delay.empty() ? "0" : a.delay);
  if (!delay.ok()) return delay.status();
  absl::StatusOr<absl::Duration> jitter = ParseDelay(a.jitter.empty() ? "0" : a.jitter);
  if (!jitter.ok()) return jitter.status();
  absl::StatusOr<double> loss = ParseLoss(a.loss.empty() ? "0" : a.loss);
  if (!loss.ok()) return loss.status();
  absl::StatusOr<int64_t> uplink = ParseBitRate(a.uplink.empty() ? "unlimited" : a.uplink);
  if (!uplink.ok()) return Annotate(uplink.status(), "--uplink");
  absl::StatusOr<int64_t> downlink = ParseBitRate(a.downlink.empty() ? "unlimited" : a.downlink);
  if (!downlink.ok()) return Annotate(downlink.status(), "--downlink");
  return UniformLinkTable(a.nodes, LinkSpec{*rate, *delay, *jitter, *loss}, {*uplink, *downlink});
}

int RunServe(const Arguments& a) {
  ServeOptions options;
  absl::StatusOr<LinkTable> table = TableOf(a);
  if (!table.ok()) return FailLookup(table.status(), kExitUsage);
  options.table = std::move(*table);
  options.emulator.mtu = a.mtu;
  options.emulator.shaper.seed = a.seed;
  options.emulator.shaper.queue_bytes = a.queue_bytes;
  options.run_dir = a.run_dir;
  options.command = a.command;
  absl::StatusOr<int> code = Serve(options);
  return code.ok() ? *code : Fail(code.status());
}

int RunExec(const Arguments& a) {
  if (a.command.empty()) {
    return Fail(absl::InvalidArgumentError("say what to run: isthmus-wan exec NODE -- COMMAND..."));
  }
  absl::StatusOr<std::string> run_dir = ResolveRunDir(a.run_dir);
  if (!run_dir.ok()) return Fail(run_dir.status());
  absl::StatusOr<WanInfo> info = ReadWanInfo(*run_dir);
  if (!info.ok()) return FailLookup(info.status(), kExitNotRunning);
  const auto node = std::find_if(info->nodes.begin(), info->nodes.end(),
                                 [&](const WanNode& n) { return n.name == a.node; });
  if (node == info->nodes.end()) {
    std::string names;
    for (const WanNode& n : info->nodes) absl::StrAppend(&names, " ", n.name);
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("no node '", a.node, "'; there are:", names)));
  }
  absl::Status entered = EnterNetns(node->ns_path);
  if (!entered.ok()) return Fail(entered);
  setenv("ISTHMUS_WAN_DIR", run_dir->c_str(), 1);
  setenv("ISTHMUS_WAN_NODE", node->name.c_str(), 1);
  setenv("ISTHMUS_WAN_ADDRESS", node->address.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& c : a.command) arguments.push_back(const_cast<char*>(c.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  std::fprintf(stderr, "isthmus-wan: can't run %s: %s\n", arguments[0], std::strerror(error));
  return error == ENOENT ? 127 : 126;
}

int Send(const Arguments& a, const std::string& request, std::string* answer) {
  absl::StatusOr<std::string> run_dir = ResolveRunDir(a.run_dir);
  if (!run_dir.ok()) return Fail(run_dir.status());
  absl::StatusOr<std::string> reply = SendControl(*run_dir, request);
  if (!reply.ok()) return FailLookup(reply.status(), kExitNotRunning);
  *answer = *reply;
  return 0;
}

int RunSet(const Arguments& a) {
  LinkChange change;
  change.from = a.from;
  change.to = a.to;
  change.one_way = a.one_way;
  if (a.down || a.up) change.down = a.down;
  std::string request = FormatLinkChange(change);
  // As typed: the emulator checks them, with the same parser as a link table's cells.
  for (const auto& [key, value] :
       {std::make_pair("rate", &a.rate), std::make_pair("delay", &a.delay),
        std::make_pair("jitter", &a.jitter), std::make_pair("loss", &a.loss),
        std::make_pair("drop-over", &a.drop_over)}) {
    if (!value->empty()) absl::StrAppend(&request, " ", key, "=", *value);
  }
  absl::StatusOr<LinkChange> checked = ParseLinkChange(request);
  if (!checked.ok()) return Fail(checked.status());
  std::string answer;
  const int code = Send(a, request, &answer);
  if (code == 0) std::printf("%s changed\n", answer.c_str());
  return code;
}

int RunStats(const Arguments& a) {
  std::string path;
  const int code = Send(a, "stats", &path);
  if (code != 0) return code;
  std::ifstream in(path);
  std::cout << in.rdbuf();
  return in ? 0 : kExitError;
}

int RunPresets() {
  const std::vector<Preset> presets = ListPresets();
  for (const Preset& p : presets) std::printf("%-20s %s\n", p.name.c_str(), p.summary.c_str());
  if (!presets.empty()) return 0;
  return Fail(LoadLinkTable("regions").status());
}

int RunShow(const Arguments& a) {
  absl::StatusOr<LinkTable> table = LoadLinkTable(a.links, a.nodes);
  if (!table.ok()) return FailLookup(table.status(), kExitUsage);
  std::fputs(FormatLinkTable(*table).c_str(), stdout);
  return 0;
}

void AddLinkFigures(CLI::App* app, Arguments* a) {
  app->add_option("--rate", a->rate, "rate of IP packets, such as 20Mbit; unlimited")
      ->type_name("R");
  app->add_option("--delay", a->delay, "one-way delay, such as 25ms")->type_name("D");
  app->add_option("--jitter", a->jitter, "uniform in delay +- jitter; packets stay in order")
      ->type_name("J");
  app->add_option("--loss", a->loss, "share of packets lost, such as 0.1%")->type_name("P");
}

void AddRunDir(CLI::App* app, Arguments* a) {
  app->add_option("--run-dir", a->run_dir, "the emulator's run directory (else $ISTHMUS_WAN_DIR)")
      ->type_name("DIR");
}

int Main(int argc, char** argv) {
  Arguments a;
  // What follows the first `--` is a command, whatever it looks like.
  const int end = static_cast<int>(
      std::find_if(argv + 1, argv + argc, [](char* s) { return std::strcmp(s, "--") == 0; }) -
      argv);
  for (int i = end + 1; i < argc; ++i) a.command.push_back(argv[i]);

  CLI::App app{kDescription, "isthmus-wan"};
  app.footer(kFooter);
  app.add_option("--links", a.links, "a preset's name or a CSV file")->type_name("PRESET|FILE");
  Whole(
      app.add_option("--nodes", a.nodes, "how many nodes (with --links: the first N of the table)"),
      1, kMaxNodes);
  AddLinkFigures(&app, &a);
  app.add_option("--uplink", a.uplink, "of a node, for all it sends over whichever link")
      ->type_name("R");
  app.add_option("--downlink", a.downlink, "of a node, for all it receives")->type_name("R");
  app.add_option("--run-dir", a.run_dir,
                 "where wan.json and wan-stats.json go (else a temporary one)")
      ->type_name("DIR");
  Whole(app.add_option("--mtu", a.mtu, "largest IP packet; 9000 costs the least CPU"), kMinMtu,
        kMaxMtu)
      ->capture_default_str();
  Whole(app.add_option("--seed", a.seed, "of losses and jitter"), 0)->capture_default_str();
  Whole(app.add_option("--queue", a.queue_bytes,
                       "bytes that may wait for a link (0: 200 ms of its rate, at least 64 KiB)"),
        0, uint64_t{1} << 40);

  CLI::App* exec = app.add_subcommand("exec", "run a command on a node: exec NODE -- COMMAND...");
  AddRunDir(exec, &a);
  exec->add_option("NODE", a.node, "its name")->required();
  CLI::App* set = app.add_subcommand("set", "change links while the emulator runs");
  AddRunDir(set, &a);
  set->add_option("FROM", a.from, "a node, or *")->required();
  set->add_option("TO", a.to, "a node, or *; @up, @down: what all links of FROM share")->required();
  AddLinkFigures(set, &a);
  set->add_option("--drop-over", a.drop_over,
                  "packets of more bytes vanish, as on a path that filters ICMP; 0: none")
      ->type_name("BYTES");
  CLI::Option* down = set->add_flag("--down", a.down, "pull the cable");
  set->add_flag("--up", a.up, "plug it in again")->excludes(down);
  set->add_flag("--one-way", a.one_way, "only from FROM to TO (else both directions)");
  CLI::App* stats = app.add_subcommand("stats", "write wan-stats.json and print it");
  AddRunDir(stats, &a);
  CLI::App* presets = app.add_subcommand("presets", "list the link tables that come with Isthmus");
  CLI::App* show = app.add_subcommand("show", "print a link table in full");
  show->add_option("PRESET|FILE", a.links, "which")->required();
  Whole(show->add_option("--nodes", a.nodes, "the first N nodes"), 1, kMaxNodes);
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", std::string("isthmus-wan ") + ISTHMUS_VERSION);

  try {
    app.parse(end, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (*exec) return RunExec(a);
  if (*set) return RunSet(a);
  if (*stats) return RunStats(a);
  if (*presets) return RunPresets();
  if (*show) return RunShow(a);
  return RunServe(a);
}

}  // namespace
}  // namespace isthmus::testnet

int main(int argc, char** argv) { return isthmus::testnet::Main(argc, argv); }
