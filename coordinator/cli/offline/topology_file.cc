#include "coordinator/cli/offline/topology_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/bit_rate.h"
#include "base/status.h"
#include "coordinator/cli/job/job_scalar.h"
#include "coordinator/cli/testnet/testnet_plan.h"

namespace isthmus::cli {
namespace {

constexpr double kUnlimited = 1e12;   // bits/s, of a link without a rate
constexpr double kBackwardShare = 2;  // of a forward pass
constexpr double kBlockFlops = 1e9;
constexpr int64_t kDiskBytes = int64_t{1}
                               << 50;  // no plan fails for the disk of a host nobody looked at

std::vector<std::string> Cells(absl::string_view line) {
  std::vector<std::string> cells;
  for (absl::string_view cell : absl::StrSplit(line, ','))
    cells.emplace_back(absl::StripAsciiWhitespace(cell));
  return cells;
}

// Lines with cells, and their numbers: no comments, no empty ones.
std::vector<std::pair<int, std::vector<std::string>>> Rows(absl::string_view csv) {
  std::vector<std::pair<int, std::vector<std::string>>> rows;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(csv, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty() && line[0] != '#') rows.emplace_back(number, Cells(line));
  }
  return rows;
}

absl::Status BadLine(absl::string_view file, int line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ": ", what));
}

// Of a table that isthmus-wan has checked.
double RateOf(absl::string_view text) {
  const auto rate = ParseBitRate(text);
  return rate.ok() && *rate > 0 ? static_cast<double>(*rate) : kUnlimited;
}

double SecondsOf(const std::string& text) {
  absl::Duration delay;
  return absl::ParseDuration(text, &delay) ? absl::ToDoubleSeconds(delay) : 0;
}

double LossOf(absl::string_view text) {
  const double factor = absl::ConsumeSuffix(&text, "%") ? 0.01 : 1;
  double loss = 0;
  return absl::SimpleAtod(text, &loss) ? loss * factor : 0;
}

absl::StatusOr<std::map<std::string, HostFigures>> ReadHosts(absl::string_view csv,
                                                             const HostFigures& others) {
  constexpr char kFile[] = "hosts";
  std::map<std::string, HostFigures> hosts;
  bool header = true;
  for (const auto& [line, cells] : Rows(csv)) {
    if (std::exchange(header, false)) {
      if (cells != std::vector<std::string>{"host", "gflops", "memory"})
        return BadLine(kFile, line, "the first line must be host,gflops,memory");
      continue;
    }
    if (cells.size() != 3 || cells[0].empty()) {
      return BadLine(kFile, line,
                     absl::StrCat(cells.size(),
                                  " cells; a row is a host's name, its GFLOP/s and "
                                  "its memory, such as lab,120,32GiB"));
    }
    HostFigures host = others;
    if (!cells[1].empty() && !(absl::SimpleAtod(cells[1], &host.gflops) && host.gflops > 0 &&
                               host.gflops <= kMostGflops)) {
      return BadLine(kFile, line,
                     absl::StrCat("gflops '", Shown(cells[1]), "' is not a number above 0"));
    }
    if (!cells[2].empty()) {
      const absl::StatusOr<int64_t> bytes = ParseByteSize(cells[2]);
      if (!bytes.ok() || *bytes <= 0)
        return BadLine(kFile, line,
                       absl::StrCat("memory '", Shown(cells[2]), "' is not a size such as 16GiB"));
      host.memory_bytes = *bytes;
    }
    if (!hosts.emplace(cells[0], host).second)
      return BadLine(kFile, line, absl::StrCat("host '", Shown(cells[0]), "' has two rows"));
  }
  return hosts;
}

}  // namespace

absl::StatusOr<Topology> MakeTopology(absl::string_view links, absl::string_view hosts_csv,
                                      const HostFigures& others) {
  ASSIGN_OR_RETURN(auto hosts, ReadHosts(hosts_csv, others));
  ASSIGN_OR_RETURN(const TestnetLinks table, LinksOfTable(links, 0));
  Topology topology;
  for (const std::string& name : table.daemons) {
    const auto found = hosts.find(name);
    const HostFigures figures = found == hosts.end() ? others : found->second;
    if (found != hosts.end()) hosts.erase(found);
    NodeInfo* node = topology.add_nodes();
    node->set_id(name);
    node->set_name(name);
    node->set_address(absl::StrCat(name, ":", kDaemonPort));
    node->set_threads(1);
    node->set_memory_bytes(figures.memory_bytes);
    node->set_disk_bytes(kDiskBytes);
    node->set_block_flops(kBlockFlops);
    node->set_block_forward_s(kBlockFlops / (figures.gflops * 1e9));
    node->set_block_backward_s(kBackwardShare * node->block_forward_s());
  }
  if (!hosts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hosts: '", Shown(hosts.begin()->first), "' is no host of the link table"));
  }
  // Delays of both directions make a round trip.
  std::map<std::pair<std::string, std::string>, double> delays;
  std::map<std::pair<std::string, std::string>, double> ends;  // by node and "@up" or "@down"
  const auto end_rate = [&ends](const std::string& node, const char* side) {
    const auto found = ends.find({node, side});
    return found == ends.end() ? kUnlimited : found->second;
  };
  std::vector<std::vector<std::string>> rows;
  for (auto& [line, cells] : Rows(table.csv)) {
    if (cells.size() < 6 || cells[0] == "from" || cells[0] == kHub || cells[1] == kHub) continue;
    if (IsEnd(cells[1])) {
      ends[{cells[0], cells[1]}] = RateOf(cells[2]);
      continue;
    }
    delays[{cells[0], cells[1]}] = SecondsOf(cells[3]);
    rows.push_back(std::move(cells));
  }
  for (const std::vector<std::string>& cells : rows) {
    LinkMeasurement* link = topology.add_links();
    link->set_from_id(cells[0]);
    link->set_to_id(cells[1]);
    link->set_rate_bits_per_s(
        std::min({RateOf(cells[2]), end_rate(cells[0], "@up"), end_rate(cells[1], "@down")}));
    link->set_round_trip_s(delays[{cells[0], cells[1]}] + delays[{cells[1], cells[0]}]);
    link->set_loss(LossOf(cells[5]));
  }
  return topology;
}

}  // namespace isthmus::cli
