#include "worker/study/grid.h"

#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"

namespace isthmus::study {
namespace {

constexpr Where kWheres[] = {Where::kEarly, Where::kLate, Where::kAll};

constexpr const char* kDefault[] = {
    "bf16 / bf16",
    "quant(8) / quant(8)",
    "quant(4) / quant(8)",
    "quant(2) / quant(4)",
    "delta(quant(4)) / quant(8)",
    "delta(quant(2)) / quant(4)",
    "predict(quant(3)) / quant(6)",
    "topk(0.1) / topk(0.1)",
    "topk(0.3) / kept",
    "/ topk(0.5)",
    "randomk(0.1)",
    "/ randomk(0.1)",
    "lowrank(8)",
    "/ lowrank(8)",
    "/ lep(lowrank(8))",
    "/ ef(sign)",
    "autoencoder(16)",
};

constexpr const char* kQuick[] = {"quant(4) / quant(8)", "topk(0.1) / topk(0.1)", "lowrank(8)",
                                  "/ lowrank(8)"};

template <typename List>
std::vector<Setting> ParseAll(const List& list) {
  std::vector<Setting> settings;
  for (const char* text : list) settings.push_back(ParseSetting(text).value());
  return settings;
}

absl::StatusOr<CodecSpec> Side(const char* name, absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return CodecSpec();
  absl::StatusOr<CodecSpec> spec = ParseCodec(text);
  if (!spec.ok()) return Annotate(spec.status(), name);
  return spec;
}

bool UsesPredict(const CodecSpec& spec) {
  return spec.kind() == CodecSpec::PREDICT || (spec.has_inner() && UsesPredict(spec.inner())) ||
         (spec.has_cold() && UsesPredict(spec.cold()));
}

}  // namespace

bool Setting::compresses() const {
  return forward.kind() != CodecSpec::NONE || backward.kind() != CodecSpec::NONE ||
         forward.zstd() || backward.zstd();
}

std::string Setting::Text() const {
  if (!compresses()) return "none";
  return absl::StrCat(FormatCodec(forward), " / ", FormatCodec(backward));
}

absl::StatusOr<Setting> ParseSetting(absl::string_view text) {
  const size_t slash = text.find('/');
  const absl::string_view forward = text.substr(0, slash);
  const absl::string_view backward =
      slash == absl::string_view::npos ? absl::string_view() : text.substr(slash + 1);
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(
        "an empty setting: write FORWARD / BACKWARD, as in 'quant(4) / quant(8)'");
  }
  if (backward.find('/') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "', column ", text.rfind('/') + 1,
                                                   ": a second '/'; a setting is FORWARD / "
                                                   "BACKWARD"));
  }
  Setting setting;
  ASSIGN_OR_RETURN(setting.forward, Side("forward", forward));
  ASSIGN_OR_RETURN(setting.backward, Side("backward", backward));
  return setting;
}

const char* WhereName(Where where) {
  return where == Where::kEarly ? "early" : where == Where::kLate ? "late" : "all";
}

absl::StatusOr<Where> ParseWhere(absl::string_view text) {
  for (Where where : kWheres) {
    if (absl::StripAsciiWhitespace(text) == WhereName(where)) return where;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no choice of boundaries; they are early, late, all"));
}

std::vector<Cell> Cells(const Grid& grid, int boundaries) {
  std::vector<Cell> cells;
  std::set<std::tuple<std::string, Where, uint64_t>> seen;
  const auto add = [&](const Setting& setting, Where where, uint64_t seed) {
    if (boundaries == 1 || !setting.compresses()) where = Where::kAll;
    if (seen.insert({setting.Text(), where, seed}).second) cells.push_back({setting, where, seed});
  };
  for (uint64_t seed : grid.seeds) {
    add(Setting(), Where::kAll, seed);
    for (const Setting& setting : grid.settings) {
      for (Where where : grid.boundaries) add(setting, where, seed);
    }
  }
  return cells;
}

std::string Obstacle(const Cell& cell, int boundaries) {
  if (cell.where == Where::kLate && boundaries > 1 && UsesPredict(cell.setting.forward)) {
    return "predict needs the token ids, which travel with predict on the boundaries before";
  }
  if (UsesPredict(cell.setting.backward) && !UsesPredict(cell.setting.forward)) {
    return "predict on the way back needs predict on the way forward, which brings the token ids";
  }
  if (NeedsIndices(cell.setting.forward)) return "kept is a backward codec: write topk(0.3) / kept";
  return std::string(BindBackward(cell.setting.forward, cell.setting.backward).status().message());
}

bool HasCodec(const Cell& cell, int boundary, int boundaries) {
  switch (cell.where) {
    case Where::kEarly:
      return boundary == 0;
    case Where::kLate:
      return boundary == boundaries - 1;
    default:
      return true;
  }
}

std::vector<Setting> DefaultSettings() { return ParseAll(kDefault); }
std::vector<Setting> QuickSettings() { return ParseAll(kQuick); }

}  // namespace isthmus::study
