#include "coordinator/cli/view/summary.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {
namespace {

std::string RatioText(int64_t raw_bytes, int64_t wire_bytes) {
  return wire_bytes > 0 ? FormatFixed(Ratio(raw_bytes, wire_bytes), 2) : "-";
}

// A direction's codec and, where validation passes had another one, that.
struct Codecs {
  std::string of_steps, of_validations;
};

Codecs Split(const std::string& codec) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(codec, absl::MaxSplits(kWithValidations, 1));
  return {parts.first, parts.second};
}

nlohmann::ordered_json RatioJson(int64_t raw_bytes, int64_t wire_bytes) {
  if (wire_bytes <= 0) return nullptr;
  return Ratio(raw_bytes, wire_bytes);
}

}  // namespace

double Ratio(int64_t raw_bytes, int64_t wire_bytes) {
  return wire_bytes > 0 ? static_cast<double>(raw_bytes) / static_cast<double>(wire_bytes) : 0;
}

bool IsEnd(JobState state) {
  return state == JOB_PAUSED || state == JOB_STOPPED || state == JOB_FINISHED ||
         state == JOB_FAILED;
}

bool EndedWell(const JobStatus& status) {
  const bool kept = status.checkpoint_step() >= status.step() || status.step() == 0;
  return status.state() == JOB_FINISHED || (status.state() == JOB_STOPPED && kept);
}

Summary MakeSummary(const JobStatus& status, const std::vector<JobRecord>& records) {
  Summary summary;
  summary.status = status;
  summary.loss_last_mean = status.loss();
  summary.tokens_per_s = status.tokens_per_s();
  double loss = 0;
  size_t losses = 0;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->committed() && losses < kMeanOf && std::isfinite(record->loss())) {
      loss += record->loss();
      ++losses;
    }
  }
  if (losses > 0) summary.loss_last_mean = loss / static_cast<double>(losses);
  for (const BoundaryTotals& boundary : status.boundaries()) {
    summary.raw_bytes += boundary.raw_bytes();
    summary.wire_bytes += boundary.wire_bytes();
  }
  return summary;
}

std::string SummaryTable(const Summary& summary) {
  const JobStatus& s = summary.status;
  std::string out = absl::StrCat(
      "Job ", Printable(s.name()), " (", Printable(s.job_id()), ") ", StateName(s.state()),
      " at step ", s.step(), " of ", s.steps(),
      s.phases() == 0 ? "" : absl::StrCat(", phase ", s.phase() + 1, " of ", s.phases()),
      s.reason().empty() ? "" : ": ", Printable(s.reason()), "\n\n");
  Table figures({"", ">"});
  const auto loss = [&](double value) { return s.step() > 0 ? FormatFixed(value, 4) : "-"; };
  figures.AddRow({"loss, first step", loss(s.first_loss())});
  figures.AddRow({"loss, last step", loss(s.loss())});
  figures.AddRow({"loss, mean of the last 10", loss(summary.loss_last_mean)});
  figures.AddRow(
      {"validation loss", s.has_validation_loss() ? FormatFixed(s.validation_loss(), 4) : "-"});
  if (s.has_validation_accuracy())
    figures.AddRow({"validation accuracy", FormatPercent(s.validation_accuracy())});
  figures.AddRow({"tokens", FormatCount(static_cast<double>(s.tokens()))});
  figures.AddRow({"tokens/s", FormatFixed(summary.tokens_per_s, 0)});
  figures.AddRow({"running time", FormatSeconds(s.elapsed_s())});
  figures.AddRow({"newest checkpoint",
                  s.checkpoint_step() < 0 ? "none" : absl::StrCat("step ", s.checkpoint_step())});
  const std::string text = figures.Render();
  absl::StrAppend(&out, text.substr(text.find('\n') + 1), "\n");  // without the empty header
  if (s.boundaries().empty()) return out;
  Table bytes({"BOUNDARY", "DIRECTION", "FROM", "TO", "CODEC", ">RAW", ">WIRE", ">RATIO"});
  std::set<std::string> validations;
  int64_t from = s.boundaries(0).from_step();
  for (const BoundaryTotals& b : s.boundaries()) from = std::min(from, b.from_step());
  for (const BoundaryTotals& b : s.boundaries()) {
    Codecs codecs = Split(b.codec());
    if (b.from_step() > from) absl::StrAppend(&codecs.of_steps, " from step ", b.from_step());
    if (!codecs.of_validations.empty()) validations.insert(codecs.of_validations);
    bytes.AddRow({b.link_id(), b.forward() ? "forward" : "backward", b.from_node(), b.to_node(),
                  codecs.of_steps, FormatBytes(static_cast<double>(b.raw_bytes())),
                  FormatBytes(static_cast<double>(b.wire_bytes())),
                  RatioText(b.raw_bytes(), b.wire_bytes())});
  }
  bytes.AddRow({"all", "", "", "", "", FormatBytes(static_cast<double>(summary.raw_bytes)),
                FormatBytes(static_cast<double>(summary.wire_bytes)),
                RatioText(summary.raw_bytes, summary.wire_bytes)});
  absl::StrAppend(&out, bytes.Render());
  if (!validations.empty())
    absl::StrAppend(&out, "Validation passes are counted with forward, and went as ",
                    absl::StrJoin(validations, ", "), ".\n");
  if (s.phases() > 0) {
    absl::StrAppend(&out, "Bytes are of phase ", s.phase() + 1, " of ", s.phases(), " alone",
                    from > 0 ? absl::StrCat(", after step ", from) : "",
                    ": each phase, and each other cut of its layers, has a count of its own.\n");
  } else if (from > 0) {
    absl::StrAppend(&out, "Bytes are counted from step ", from,
                    " on, where the layers were cut anew.\n");
  }
  return out;
}

std::string SummaryJson(const Summary& summary) {
  const JobStatus& s = summary.status;
  nlohmann::ordered_json json;
  json["job_id"] = s.job_id();
  json["name"] = s.name();
  json["state"] = StateName(s.state());
  json["reason"] = s.reason();
  json["generation"] = s.generation();
  json["step"] = s.step();
  json["steps"] = s.steps();
  json["checkpoint_step"] = s.checkpoint_step();
  const auto loss = [&](double value) {
    return s.step() > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  json["loss_first"] = loss(s.first_loss());
  json["loss_last"] = loss(s.loss());
  json["loss_last_mean"] = loss(summary.loss_last_mean);
  json["validation_loss"] =
      s.has_validation_loss() ? nlohmann::ordered_json(s.validation_loss()) : nullptr;
  if (s.has_validation_accuracy()) json["validation_accuracy"] = s.validation_accuracy();
  json["tokens"] = s.tokens();
  json["tokens_per_s"] = summary.tokens_per_s;
  json["elapsed_s"] = s.elapsed_s();
  json["raw_bytes"] = summary.raw_bytes;
  json["wire_bytes"] = summary.wire_bytes;
  json["ratio"] = RatioJson(summary.raw_bytes, summary.wire_bytes);
  json["boundaries"] = nlohmann::ordered_json::array();
  for (const BoundaryTotals& b : s.boundaries()) {
    nlohmann::ordered_json boundary;
    boundary["link_id"] = b.link_id();
    boundary["direction"] = b.forward() ? "forward" : "backward";
    boundary["from"] = b.from_node();
    boundary["to"] = b.to_node();
    boundary["codec"] = Split(b.codec()).of_steps;
    if (const std::string of = Split(b.codec()).of_validations; !of.empty())
      boundary["validation_codec"] = of;
    boundary["from_step"] = b.from_step();
    boundary["raw_bytes"] = b.raw_bytes();
    boundary["wire_bytes"] = b.wire_bytes();
    boundary["ratio"] = RatioJson(b.raw_bytes(), b.wire_bytes());
    json["boundaries"].push_back(std::move(boundary));
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace isthmus::cli
