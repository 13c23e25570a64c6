#include "worker/study/table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace isthmus::study {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kNone[] = "none";

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double sum = 0;
  for (double v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

// Adds `part` / count to the sums of `total`.
void AddWire(const WireCost& part, double count, WireCost* total) {
  const auto add = [count](const std::vector<FrameCost>& from, std::vector<FrameCost>* to) {
    to->resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      (*to)[i].wire_bytes += from[i].wire_bytes / count;
      (*to)[i].encode_s += from[i].encode_s / count;
      (*to)[i].decode_s += from[i].decode_s / count;
    }
  };
  add(part.up, &total->up);
  add(part.down, &total->down);
  total->tied_bytes += part.tied_bytes / count;
}

absl::StatusOr<Row> MakeRow(const std::vector<const CellRecord*>& group,
                            const std::map<uint64_t, const CellRecord*>& reference,
                            const StepShape& shape, const ComputeCost& compute) {
  Row row;
  row.setting = group.front()->setting;
  row.where = group.front()->where;
  row.seeds = static_cast<int>(group.size());
  std::vector<double> differences;
  WireCost wire;
  const double n = row.seeds;
  for (const CellRecord* r : group) {
    const double steps = static_cast<double>(std::max<int64_t>(1, r->steps));
    row.loss += r->loss / n;
    row.validation += r->validation / n;
    // An autoencoder's own tensors are smaller already: the ratio is to what none sends.
    row.raw_bytes += static_cast<double>(reference.at(r->seed)->raw_bytes) / steps / n;
    row.wire_bytes += static_cast<double>(r->wire_bytes) / steps / n;
    row.encode_s += r->encode_s / n;
    row.decode_s += r->decode_s / n;
    differences.push_back(r->loss - reference.at(r->seed)->loss);
    AddWire(r->wire, n, &wire);
  }
  row.difference = Mean(differences);
  row.deviation = Deviation(differences);
  for (double rate : kRatesMbit) {
    ASSIGN_OR_RETURN(const double seconds, StepSeconds(shape, compute, wire, rate * 1e6));
    row.step_s.push_back(seconds);
  }
  return row;
}

std::string Bytes(double bytes) {
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  if (bytes < 1024 * 1024) return absl::StrFormat("%.1f KiB", bytes / 1024);
  return absl::StrFormat("%.2f MiB", bytes / 1024 / 1024);
}

std::string Ms(double seconds) { return absl::StrFormat("%.1f", seconds * 1e3); }

std::vector<std::string> TableLine(const Row& r) {
  std::vector<std::string> line = {r.setting, r.setting == kNone ? "" : r.where};
  if (!r.note.empty()) return line;
  const bool none = r.setting == kNone;
  std::string difference = none ? "" : absl::StrFormat("%+.4f", r.difference);
  if (!none && r.seeds > 1) difference += absl::StrFormat(" ±%.4f", r.deviation);
  for (const std::string& cell :
       {absl::StrCat(r.seeds), absl::StrFormat("%.4f", r.loss), difference,
        absl::StrFormat("%.4f", r.validation), Bytes(r.wire_bytes),
        absl::StrFormat("%.2f", r.ratio()), Ms(r.encode_s), Ms(r.decode_s)})
    line.push_back(cell);
  for (double s : r.step_s) line.push_back(absl::StrFormat("%.3f", s));
  return line;
}

// Characters, not bytes: the plus-minus sign has two.
size_t Width(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

std::string Align(const std::vector<std::vector<std::string>>& lines,
                  const std::vector<std::string>& notes) {
  std::vector<size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
  }
  std::string out;
  for (size_t n = 0; n < lines.size(); ++n) {
    std::string text;
    for (size_t i = 0; i < lines[n].size(); ++i) {
      const std::string pad(widths[i] - Width(lines[n][i]), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", i < 2 ? lines[n][i] + pad : pad + lines[n][i]);
    }
    if (!notes[n].empty()) absl::StrAppend(&text, "  not run: ", notes[n]);
    text.erase(text.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, text, "\n");
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<Row>> MakeRows(const std::vector<CellRecord>& records,
                                          const StepShape& shape, const ComputeCost& compute) {
  std::map<uint64_t, const CellRecord*> reference;
  for (const CellRecord& r : records) {
    if (r.setting == kNone) reference[r.seed] = &r;
  }
  std::vector<std::pair<std::string, std::vector<const CellRecord*>>> groups;
  for (const CellRecord& r : records) {
    if (reference.count(r.seed) == 0) continue;
    const std::string name = absl::StrCat(r.setting, "\n", r.where);
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->second.push_back(&r);
  }
  std::vector<Row> rows;
  for (const auto& [name, group] : groups) {
    ASSIGN_OR_RETURN(Row row, MakeRow(group, reference, shape, compute));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Energy> MakeEnergies(const std::vector<CellRecord>& records) {
  std::vector<Energy> energies;
  for (const CellRecord& r : records) {
    for (const EnergyShare& share : r.energies) {
      auto e = std::find_if(energies.begin(), energies.end(),
                            [&](const Energy& x) { return x.what == share.what; });
      if (e == energies.end()) e = energies.insert(energies.end(), {share.what, 0, 0, 1, 0});
      e->share = (e->share * e->matrices + share.share) / (e->matrices + 1);
      ++e->matrices;
      e->least = std::min(e->least, share.share);
      e->most = std::max(e->most, share.share);
    }
  }
  return energies;
}

std::string RenderTable(const std::vector<Row>& rows, const std::vector<Energy>& energies) {
  std::vector<std::vector<std::string>> lines = {{"FORWARD / BACKWARD", "AT", "SEEDS", "LOSS",
                                                  "TO NONE", "VALID.", "WIRE/STEP", "RATIO",
                                                  "ENCODE ms", "DECODE ms"}};
  for (double rate : kRatesMbit) lines[0].push_back(absl::StrFormat("s@%.0fM", rate));
  std::vector<std::string> notes = {""};
  for (const Row& row : rows) {
    lines.push_back(TableLine(row));
    notes.push_back(row.note);
  }
  std::string out = Align(lines, notes);
  if (energies.empty()) return out;
  absl::StrAppend(&out,
                  "\nShare of the energy in the largest 5 % of the singular values, uncompressed "
                  "model after its last step:\n");
  for (const Energy& e : energies) {
    absl::StrAppend(&out,
                    absl::StrFormat("  %-20s %5.1f %%   (%d matrices, %.1f to %.1f)\n", e.what,
                                    100 * e.share, e.matrices, 100 * e.least, 100 * e.most));
  }
  return out;
}

std::string RenderCsv(const std::vector<Row>& rows) {
  std::string out =
      "setting,boundaries,seeds,loss,difference,deviation,validation_loss,raw_bytes_step,"
      "wire_bytes_step,ratio,encode_s_step,decode_s_step";
  for (double rate : kRatesMbit) absl::StrAppend(&out, absl::StrFormat(",step_s_%.0fmbit", rate));
  absl::StrAppend(&out, ",note\n");
  for (const Row& r : rows) {
    absl::StrAppend(
        &out,
        absl::StrFormat("\"%s\",%s,%d,%.6f,%.6f,%.6f,%.6f,%.0f,%.0f,%.4f,%.6f,%.6f", r.setting,
                        r.where, r.seeds, r.loss, r.difference, r.deviation, r.validation,
                        r.raw_bytes, r.wire_bytes, r.ratio(), r.encode_s, r.decode_s));
    for (size_t i = 0; i < std::size(kRatesMbit); ++i)
      absl::StrAppend(&out, i < r.step_s.size() ? absl::StrFormat(",%.6f", r.step_s[i]) : ",");
    absl::StrAppend(&out, ",\"", r.note, "\"\n");
  }
  return out;
}

std::string RenderJson(const std::vector<Row>& rows, const std::vector<Energy>& energies) {
  Json json;
  json["rows"] = Json::array();
  for (const Row& r : rows) {
    Json row = {{"setting", r.setting},
                {"boundaries", r.where},
                {"seeds", r.seeds},
                {"loss", r.loss},
                {"difference", r.difference},
                {"deviation", r.deviation},
                {"validation_loss", r.validation},
                {"raw_bytes_step", r.raw_bytes},
                {"wire_bytes_step", r.wire_bytes},
                {"ratio", r.ratio()},
                {"encode_s_step", r.encode_s},
                {"decode_s_step", r.decode_s},
                {"note", r.note}};
    for (size_t i = 0; i < r.step_s.size(); ++i)
      row["predicted_step_s"][absl::StrFormat("%.0f", kRatesMbit[i])] = r.step_s[i];
    json["rows"].push_back(std::move(row));
  }
  json["energy_shares"] = Json::array();
  for (const Energy& e : energies) {
    json["energy_shares"].push_back({{"what", e.what},
                                     {"matrices", e.matrices},
                                     {"share", e.share},
                                     {"least", e.least},
                                     {"most", e.most}});
  }
  return json.dump(2) + "\n";
}

}  // namespace isthmus::study
