#include "deploy/testnet/link_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/bit_rate.h"
#include "base/file/read_file.h"
#include "base/status.h"

namespace isthmus::testnet {
namespace {

constexpr absl::string_view kHeader = "from,to,rate,delay,jitter,loss";
constexpr size_t kMaxNameBytes = 32;

// One direction as a row gives it; -1 stands for `*`.
struct Rule {
  LinkSpec spec;
  int line = 0;
};
using Rules = std::map<std::pair<int, int>, Rule>;
using EndRules = std::map<std::pair<int, Side>, Rule>;

absl::Status ErrorAt(absl::string_view name, int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ":", line, ": ", what));
}

bool ValidNodeName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name[0] == '-') return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

absl::StatusOr<LinkSpec> ParseSpec(const std::vector<std::string>& cells) {
  ASSIGN_OR_RETURN(int64_t rate, ParseBitRate(cells[2]));
  const bool end = SideOf(cells[1]).has_value();
  ASSIGN_OR_RETURN(absl::Duration delay, ParseDelay(end && cells[3].empty() ? "0" : cells[3]));
  ASSIGN_OR_RETURN(absl::Duration jitter, ParseDelay(cells[4].empty() ? "0" : cells[4]));
  ASSIGN_OR_RETURN(double loss, ParseLoss(cells[5].empty() ? "0" : cells[5]));
  return LinkSpec{rate, delay, jitter, loss};
}

// The parser's state between rows: names in order of first use and the rules as written.
struct Rows {
  std::vector<std::string> nodes;
  Rules rules;
  EndRules ends;
};

absl::StatusOr<int> NodeOf(const std::string& cell, Rows* rows) {
  if (cell == "*") return -1;
  if (!ValidNodeName(cell)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node name '", cell, "': use letters, digits, '.', '_' and '-', at most ", kMaxNameBytes,
        "; what all links of a node share is NODE,@up,RATE,,, or NODE,@down,RATE,,,"));
  }
  const auto it = std::find(rows->nodes.begin(), rows->nodes.end(), cell);
  if (it != rows->nodes.end()) return static_cast<int>(it - rows->nodes.begin());
  if (rows->nodes.size() >= static_cast<size_t>(kMaxNodes)) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxNodes, " nodes"));
  }
  rows->nodes.push_back(cell);
  return static_cast<int>(rows->nodes.size()) - 1;
}

absl::Status OnLineAlready(const std::vector<std::string>& cells, int line) {
  return absl::InvalidArgumentError(
      absl::StrCat("the pair ", cells[0], ",", cells[1], " is already on line ", line));
}

// "home,@up,20Mbit,,,": a rate alone.
absl::Status AddEnd(const std::vector<std::string>& cells, Side side, int line, Rows* rows) {
  ASSIGN_OR_RETURN(int node, NodeOf(cells[0], rows));
  ASSIGN_OR_RETURN(LinkSpec spec, ParseSpec(cells));
  if (spec != LinkSpec{spec.rate_bits_per_s}) {
    return absl::InvalidArgumentError(
        absl::StrCat("delay, jitter and loss of ", cells[0], ",", cells[1],
                     ": what all links of a node share has a rate alone; leave those cells empty"));
  }
  const auto [it, fresh] = rows->ends.emplace(std::make_pair(node, side), Rule{spec, line});
  return fresh ? absl::OkStatus() : OnLineAlready(cells, it->second.line);
}

absl::Status AddRow(const std::vector<std::string>& cells, int line, Rows* rows) {
  if (cells.size() != 6) {
    return absl::InvalidArgumentError(
        absl::StrCat(cells.size(), " cells where ", kHeader, " wants 6"));
  }
  if (const std::optional<Side> side = SideOf(cells[1])) return AddEnd(cells, *side, line, rows);
  ASSIGN_OR_RETURN(int from, NodeOf(cells[0], rows));
  ASSIGN_OR_RETURN(int to, NodeOf(cells[1], rows));
  if (from == to && from >= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link from '", cells[0], "' to itself: a node reaches itself unshaped"));
  }
  ASSIGN_OR_RETURN(LinkSpec spec, ParseSpec(cells));
  const auto [it, fresh] = rows->rules.emplace(std::make_pair(from, to), Rule{spec, line});
  return fresh ? absl::OkStatus() : OnLineAlready(cells, it->second.line);
}

absl::StatusOr<Rows> ParseRows(absl::string_view csv, absl::string_view name) {
  Rows rows;
  bool saw_header = false;
  int line = 0;
  for (absl::string_view raw : absl::StrSplit(csv, '\n')) {
    ++line;
    const absl::string_view text = absl::StripAsciiWhitespace(raw);
    if (text.empty() || text[0] == '#') continue;
    std::vector<std::string> cells = absl::StrSplit(text, ',');
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (!saw_header) {
      if (absl::StrJoin(cells, ",") != kHeader) {
        return ErrorAt(name, line, absl::StrCat("the first row must be the header ", kHeader));
      }
      saw_header = true;
      continue;
    }
    absl::Status added = AddRow(cells, line, &rows);
    if (!added.ok()) return ErrorAt(name, line, added.message());
  }
  if (!saw_header)
    return ErrorAt(name, line, absl::StrCat("no header; the first row must be ", kHeader));
  if (rows.rules.empty()) return ErrorAt(name, line, "no links");
  return rows;
}

// The rule for an ordered pair: fewest wildcards first; rows also count mirrored where the mirror
// has no own row.
absl::StatusOr<LinkSpec> Resolve(const Rows& rows, int from, int to,
                                 const std::vector<std::string>& nodes, absl::string_view name) {
  const auto rule_for = [&rows](int a, int b) -> const Rule* {
    auto it = rows.rules.find({a, b});
    if (it == rows.rules.end()) it = rows.rules.find({b, a});
    return it == rows.rules.end() ? nullptr : &it->second;
  };
  if (const Rule* exact = rule_for(from, to)) return exact->spec;
  const Rule* by_from = rule_for(from, -1);
  const Rule* by_to = rule_for(-1, to);
  if (by_from != nullptr && by_to != nullptr && by_from->spec != by_to->spec) {
    return ErrorAt(name, std::max(by_from->line, by_to->line),
                   absl::StrCat("the pair ", nodes[from], ",", nodes[to], " is covered by line ",
                                std::min(by_from->line, by_to->line),
                                " too, with other values: add a row for it"));
  }
  if (by_from != nullptr) return by_from->spec;
  if (by_to != nullptr) return by_to->spec;
  if (const Rule* any = rule_for(-1, -1)) return any->spec;
  return absl::InvalidArgumentError(absl::StrCat(name, ": no row covers the pair ", nodes[from],
                                                 ",", nodes[to],
                                                 ": add one, or a default row *,*,..."));
}

// A node's own row, else that of `*`, else unlimited.
NodeSpec EndsOf(const Rows& rows, int node) {
  NodeSpec spec;
  for (const Side side : kSides) {
    auto it = rows.ends.find({node, side});
    if (it == rows.ends.end()) it = rows.ends.find({-1, side});
    if (it != rows.ends.end()) spec.At(side) = it->second.spec.rate_bits_per_s;
  }
  return spec;
}

std::string LinksDir() {
  if (const char* dir = std::getenv("ISTHMUS_LINKS_DIR"); dir != nullptr && *dir != '\0')
    return dir;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const auto installed = self.parent_path().parent_path() / "share/isthmus/links";
    if (std::filesystem::is_directory(installed, error)) return installed.string();
  }
  return ISTHMUS_TESTNET_LINKS_DIR;
}

}  // namespace

int LinkTable::Find(absl::string_view node) const {
  const auto it = std::find(nodes.begin(), nodes.end(), node);
  return it == nodes.end() ? -1 : static_cast<int>(it - nodes.begin());
}

absl::StatusOr<LinkTable> UniformLinkTable(int num_nodes, const LinkSpec& spec,
                                           const NodeSpec& ends) {
  if (num_nodes < 1 || num_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of nodes must be 1 to ", kMaxNodes, ", not ", num_nodes));
  }
  LinkTable table;
  for (int i = 0; i < num_nodes; ++i) table.nodes.push_back(absl::StrCat("n", i));
  table.links.assign(static_cast<size_t>(num_nodes) * num_nodes, spec);
  table.ends.assign(static_cast<size_t>(num_nodes), ends);
  return table;
}

absl::StatusOr<LinkTable> ParseLinkTable(absl::string_view csv, absl::string_view name,
                                         int num_nodes) {
  if (num_nodes < 0 || num_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of nodes must be 1 to ", kMaxNodes, ", not ", num_nodes));
  }
  ASSIGN_OR_RETURN(Rows rows, ParseRows(csv, name));
  LinkTable table;
  table.nodes = rows.nodes;
  const bool named = std::any_of(rows.rules.begin(), rows.rules.end(), [](const auto& rule) {
    return rule.first.first >= 0 || rule.first.second >= 0;
  });
  if (num_nodes == 0 && !named) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " names no nodes in its links, only *: say how many there are (--nodes N)"));
  }
  if (num_nodes > 0 && static_cast<size_t>(num_nodes) < table.nodes.size()) {
    table.nodes.resize(num_nodes);
  }
  for (int i = 0; static_cast<int>(table.nodes.size()) < num_nodes; ++i) {
    std::string extra = absl::StrCat("n", i);
    if (table.Find(extra) < 0) table.nodes.push_back(std::move(extra));
  }
  const int n = static_cast<int>(table.nodes.size());
  table.links.resize(static_cast<size_t>(n) * n);
  for (int from = 0; from < n; ++from) {
    table.ends.push_back(EndsOf(rows, from));
    for (int to = 0; to < n; ++to) {
      if (from == to) continue;
      ASSIGN_OR_RETURN(LinkSpec spec, Resolve(rows, from, to, table.nodes, name));
      table.At(from, to) = spec;
    }
  }
  return table;
}

absl::StatusOr<LinkTable> LoadLinkTable(const std::string& preset_or_path, int num_nodes) {
  std::string path = preset_or_path;
  if (!absl::StrContains(path, "/") && !absl::EndsWith(path, ".csv")) {
    const std::vector<Preset> presets = ListPresets();
    const auto it = std::find_if(presets.begin(), presets.end(),
                                 [&](const Preset& p) { return p.name == preset_or_path; });
    if (presets.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "no presets found in ", LinksDir(),
          ": install deploy/testnet/links as PREFIX/share/isthmus/links beside PREFIX/bin, or set "
          "ISTHMUS_LINKS_DIR"));
    }
    if (it == presets.end()) {
      return absl::NotFoundError(absl::StrCat(
          "no preset '", preset_or_path, "'; there are: ",
          absl::StrJoin(presets, ", ",
                        [](std::string* out, const Preset& p) { absl::StrAppend(out, p.name); }),
          " (a file's name ends in .csv or has a '/')"));
    }
    path = it->path;
  }
  ASSIGN_OR_RETURN(std::string text, ReadSmallFile(path, kMaxTableBytes));
  return ParseLinkTable(text, path, num_nodes);
}

std::vector<Preset> ListPresets() {
  std::vector<Preset> presets;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(LinksDir(), error)) {
    if (entry.path().extension() != ".csv") continue;
    Preset preset{entry.path().stem().string(), entry.path().string(), ""};
    std::ifstream in(preset.path);
    std::string line;
    if (std::getline(in, line) && absl::StartsWith(line, "#")) {
      preset.summary = std::string(absl::StripAsciiWhitespace(absl::StripPrefix(line, "#")));
    }
    presets.push_back(std::move(preset));
  }
  std::sort(presets.begin(), presets.end(),
            [](const Preset& a, const Preset& b) { return a.name < b.name; });
  return presets;
}

std::optional<Side> SideOf(absl::string_view to) {
  for (const Side side : kSides) {
    if (to == SideName(side)) return side;
  }
  return std::nullopt;
}

const char* SideName(Side side) { return side == Side::kUp ? "@up" : "@down"; }

absl::StatusOr<absl::Duration> ParseDelay(absl::string_view text) {
  absl::Duration value;
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  if (!absl::ParseDuration(trimmed, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("delay '", text, "' is not a duration; write 25ms, 0.5s, 300us or 0"));
  }
  if (value < absl::ZeroDuration() || value > kMaxDelay) {
    return absl::InvalidArgumentError(absl::StrCat("delay '", text, "' is out of range (0 to ",
                                                   absl::FormatDuration(kMaxDelay), ")"));
  }
  return value;
}

absl::StatusOr<double> ParseLoss(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (rest == "0") return 0;
  double value = 0;
  if (!absl::ConsumeSuffix(&rest, "%") || !absl::SimpleAtod(rest, &value) ||
      !(value >= 0 && value <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss '", text, "' is not a percentage of packets; write 0.1% or 0"));
  }
  return value / 100;
}

std::string FormatLoss(double loss) {
  // The shortest decimal whose parse gives the same value back.
  for (int digits = 1; digits < 17; ++digits) {
    std::ostringstream out;
    out.precision(digits);
    out << loss * 100 << '%';
    absl::StatusOr<double> back = ParseLoss(out.str());
    if (back.ok() && *back == loss) return out.str();
  }
  std::ostringstream out;
  out.precision(17);
  out << loss * 100 << '%';
  return out.str();
}

std::string FormatLinkTable(const LinkTable& table) {
  std::string out = absl::StrCat(kHeader, "\n");
  const int n = static_cast<int>(table.nodes.size());
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      if (from == to) continue;
      const LinkSpec& s = table.At(from, to);
      absl::StrAppend(&out, table.nodes[from], ",", table.nodes[to], ",",
                      FormatBitRate(s.rate_bits_per_s), ",", absl::FormatDuration(s.delay), ",",
                      absl::FormatDuration(s.jitter), ",", FormatLoss(s.loss), "\n");
    }
  }
  for (int node = 0; node < n; ++node) {
    for (const Side side : kSides) {
      if (const int64_t rate = table.ends[node].At(side); rate > 0)
        absl::StrAppend(&out, table.nodes[node], ",", SideName(side), ",", FormatBitRate(rate),
                        ",,,\n");
    }
  }
  return out;
}

}  // namespace isthmus::testnet
