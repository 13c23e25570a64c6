#include "coordinator/cli/testnet/testnet_plan.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/bit_rate.h"

namespace isthmus::cli {
namespace {

constexpr char kInsecure[] = "--insecure";  // nobody else reaches the emulated network
constexpr char kHeader[] = "from,to,rate,delay,jitter,loss\n";

constexpr char kUp[] = "@up";

struct Row {
  std::string from;
  std::string to;
  std::string text;
};

std::vector<Row> Rows(absl::string_view csv) {
  std::vector<Row> rows;
  for (const absl::string_view raw : absl::StrSplit(csv, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (line.empty() || line[0] == '#' || cells.size() < 3 || cells[0] == "from") continue;
    rows.push_back({std::string(absl::StripAsciiWhitespace(cells[0])),
                    std::string(absl::StripAsciiWhitespace(cells[1])), std::string(line)});
  }
  return rows;
}

std::string HubRows(const std::vector<std::string>& daemons) {
  std::string out;
  for (const std::string& name : daemons)
    absl::StrAppend(&out, kHub, ",", name, ",unlimited,0,,\n");
  return out;
}

std::vector<std::string> OnNode(const TestnetPrograms& programs, const std::string& run_dir,
                                const std::string& node, const std::vector<std::string>& command) {
  std::vector<std::string> argv = {programs.wan, "exec", "--run-dir", run_dir + "/wan", node, "--"};
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

// Of a rate as isthmus-wan takes it. Empty: isthmusd takes no such rate.
std::string DaemonUplink(absl::string_view text) {
  const auto rate = ParseBitRate(text);
  if (!rate.ok() || *rate < kMinUplink || *rate > kMaxUplink) return "";  // as "unlimited" is
  return FormatBitRate(*rate);
}

std::string At(const TestnetNode& node, int port) { return absl::StrCat(node.address, ":", port); }

}  // namespace

absl::Status CheckTestnetOptions(const TestnetOptions& o) {
  const bool uniform = !o.rate.empty() || !o.delay.empty() || !o.jitter.empty() ||
                       !o.loss.empty() || !o.uplink.empty() || !o.downlink.empty();
  if (!o.links.empty() && uniform) {
    return absl::InvalidArgumentError(
        "--links and --rate, --delay, --jitter, --loss, --uplink, --downlink exclude each other: "
        "put the figures into the table");
  }
  if (o.links.empty() && !uniform) {
    return absl::InvalidArgumentError(
        "say which network: --links PRESET|FILE, or --rate, --delay, --jitter, --loss, --uplink, "
        "--downlink (isthmus-wan presets lists the presets)");
  }
  if (o.links.empty() && o.nodes == 0)
    return absl::InvalidArgumentError("--nodes N is missing: how many daemons?");
  return absl::OkStatus();
}

TestnetLinks UniformLinks(const TestnetOptions& options) {
  TestnetLinks links;
  for (int i = 0; i < options.nodes; ++i) links.daemons.push_back(absl::StrCat("n", i));
  links.csv = absl::StrCat(kHeader, HubRows(links.daemons), "*,*,",
                           options.rate.empty() ? "unlimited" : options.rate, ",",
                           options.delay.empty() ? "0" : options.delay, ",", options.jitter, ",",
                           options.loss, "\n");
  for (const std::string& name : links.daemons) {
    for (const auto& [side, rate] :
         {std::make_pair(kUp, &options.uplink), std::make_pair("@down", &options.downlink)}) {
      if (!rate->empty()) absl::StrAppend(&links.csv, name, ",", side, ",", *rate, ",,,\n");
    }
  }
  return links;
}

std::string UplinkOf(const TestnetLinks& links, absl::string_view node) {
  for (const Row& row : Rows(links.csv)) {
    if (row.from != node || row.to != kUp) continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(row.text, ',');
    return DaemonUplink(absl::StripAsciiWhitespace(cells[2]));
  }
  return "";
}

bool IsEnd(absl::string_view to) { return absl::StartsWith(to, "@"); }

bool TableNamesHub(absl::string_view csv) {
  const std::vector<Row> rows = Rows(csv);
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return !IsEnd(row.to) && (row.from == kHub || row.to == kHub);
  });
}

absl::StatusOr<TestnetLinks> LinksOfTable(absl::string_view csv, int nodes) {
  TestnetLinks links;
  const std::vector<Row> rows = Rows(csv);
  const auto add = [&](const std::string& name) {
    if (name != kHub && name != "*" &&
        std::find(links.daemons.begin(), links.daemons.end(), name) == links.daemons.end()) {
      links.daemons.push_back(name);
    }
  };
  for (const Row& row : rows) {
    add(row.from);
    if (!IsEnd(row.to)) add(row.to);
  }
  if (links.daemons.empty() && nodes == 1)
    links.daemons.push_back("n0");  // one node has no links to show
  if (links.daemons.empty())
    return absl::InvalidArgumentError("the link table names no nodes: add --nodes N");
  if (nodes > static_cast<int>(links.daemons.size())) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes ", nodes, ", but the link table has ",
                                                   links.daemons.size(), " beside the hub"));
  }
  if (nodes > 0) links.daemons.resize(static_cast<size_t>(nodes));
  links.csv = kHeader;
  const auto chosen = [&](const std::string& name) {
    return name == kHub ||
           std::find(links.daemons.begin(), links.daemons.end(), name) != links.daemons.end();
  };
  if (!TableNamesHub(csv)) absl::StrAppend(&links.csv, HubRows(links.daemons));
  for (const Row& row : rows) {
    if (chosen(row.from) && (IsEnd(row.to) || chosen(row.to)))
      absl::StrAppend(&links.csv, row.text, "\n");
  }
  return links;
}

absl::StatusOr<std::vector<TestnetNode>> ParseWanNodes(absl::string_view text) {
  const nlohmann::json json =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("nodes") || !json["nodes"].is_array())
    return absl::DataLossError("wan.json has no nodes");
  std::vector<TestnetNode> nodes;
  for (const nlohmann::json& node : json["nodes"]) {
    if (!node.is_object() || !node.contains("name") || !node.contains("address") ||
        !node["name"].is_string() || !node["address"].is_string()) {
      return absl::DataLossError("wan.json has a node without name or address");
    }
    nodes.push_back({node["name"].get<std::string>(), node["address"].get<std::string>(), ""});
  }
  return nodes;
}

TestnetCommand WanCommand(const TestnetOptions& options, const TestnetPrograms& programs,
                          const std::string& run_dir) {
  return {kWanName,
          {programs.wan, "--links", run_dir + "/links.csv", "--run-dir", run_dir + "/wan", "--mtu",
           absl::StrCat(options.mtu), "--seed", absl::StrCat(options.seed)}};
}

TestnetCommand CoordinatorCommand(const TestnetOptions& options, const TestnetPrograms& programs,
                                  const std::string& run_dir, const TestnetNode& hub) {
  return {kCoordinatorName,
          OnNode(programs, run_dir, hub.name,
                 {programs.coordinator, kInsecure, "--listen", At(hub, kCoordinatorPort),
                  "--state-dir", run_dir + "/coordinator", "--http",
                  options.http ? At(hub, kCoordinatorHttpPort) : ""})};
}

TestnetCommand DaemonCommand(const TestnetOptions& options, const TestnetPrograms& programs,
                             const std::string& run_dir, const TestnetNode& hub,
                             const TestnetNode& node) {
  std::vector<std::string> argv = {programs.daemon, kInsecure,
                                   "--coordinator", At(hub, kCoordinatorPort),
                                   "--listen",      At(node, kDaemonPort),
                                   "--name",        node.name,
                                   "--state-dir",   absl::StrCat(run_dir, "/", node.name),
                                   "--data-dir",    options.data_dir,
                                   "--threads",     absl::StrCat(options.threads),
                                   "--http",        options.http ? At(node, kDaemonHttpPort) : ""};
  if (!node.uplink.empty()) argv.insert(argv.end(), {"--uplink", node.uplink});
  return {node.name, OnNode(programs, run_dir, node.name, argv)};
}

TestnetCommand CliCommand(const TestnetPrograms& programs, const std::string& run_dir,
                          const TestnetNode& hub, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {programs.cli, kInsecure, "--coordinator",
                                   At(hub, kCoordinatorPort)};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return {"cli", OnNode(programs, run_dir, hub.name, argv)};
}

std::vector<std::string> WaitArguments(const TestnetOptions& options, int daemons) {
  const int links = daemons * (daemons - 1);
  const double timeout_s =
      options.ready_timeout_s > 0 ? options.ready_timeout_s : std::max(180, 60 + 6 * links);
  return {"nodes", "--json", "--wait", absl::StrCat(daemons), "--timeout", absl::StrCat(timeout_s)};
}

std::vector<std::string> SubmitArguments(const TestnetOptions& options) {
  std::vector<std::string> arguments = {"submit", options.job_file.file, "--watch"};
  for (const std::string& setting : options.job_file.settings) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  }
  if (options.json) arguments.push_back("--json");
  if (!options.summary_file.empty()) {
    arguments.push_back("--summary");
    arguments.push_back(options.summary_file);
  }
  return arguments;
}

int64_t NewestCheckpoint(const std::string& state_dir) {
  int64_t newest = -1;
  std::error_code error;
  for (const auto& job : std::filesystem::directory_iterator(state_dir + "/checkpoints", error)) {
    for (const auto& entry : std::filesystem::directory_iterator(job.path(), error)) {
      const std::string name = entry.path().filename().string();
      absl::string_view digits = name;
      int64_t step = 0;
      if (absl::ConsumePrefix(&digits, "step-") && absl::SimpleAtoi(digits, &step))
        newest = std::max(newest, step);
    }
  }
  return newest;
}

std::string CutOffWords(const std::string& state_dir, int64_t checkpoint_step) {
  if (checkpoint_step < 0)
    return "the job ended with its network, before its first checkpoint: nothing of it is kept";
  return absl::StrCat("the job ended with its network; its checkpoint of step ", checkpoint_step,
                      " is kept in ", state_dir, ". To go on: isthmus-coordinator --state-dir ",
                      state_dir, ", daemons that join it, and isthmus submit JOB.yaml --resume");
}

}  // namespace isthmus::cli
