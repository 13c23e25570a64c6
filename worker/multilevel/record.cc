#include "worker/multilevel/record.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::multilevel {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> HistoryOf(const ordered_json& config) {
  const auto it = config.find(kRecordKey);
  if (it == config.end() || it->is_null()) return ordered_json::array();
  bool sound = it->is_array();
  for (const ordered_json& entry : *it)
    sound = sound && entry.is_object() && entry.value("operation", ordered_json()).is_string();
  if (sound) return *it;
  return absl::InvalidArgumentError(
      absl::StrCat("'", kRecordKey, "' is no list of operations; remove it to go on without it"));
}

ordered_json Entry(const Operation& operation) {
  ordered_json entry = {{"operation", OperatorName(operation.kind)}};
  if (operation.kind == Operator::kInterpolate) {
    entry["alpha"] = operation.alpha;
    return entry;
  }
  const Mapping& m = operation.mapping;
  entry["width_factor"] = m.width_factor;
  entry["depth_factor"] = m.depth_factor;
  entry["width_groups"] = GroupsName(m.width);
  entry["depth_groups"] = GroupsName(m.depth);
  entry["tied"] = TiedName(m.tied);
  return entry;
}

absl::StatusOr<Mapping> MappingOf(const ordered_json& entry) {
  const auto text = [&](const char* key) {
    const ordered_json value = entry.value(key, ordered_json());
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  const ordered_json width = entry.value("width_factor", ordered_json()),
                     depth = entry.value("depth_factor", ordered_json());
  const auto width_groups = GroupsOf(text("width_groups")),
             depth_groups = GroupsOf(text("depth_groups"));
  const auto tied = TiedOf(text("tied"));
  if (!width.is_number_integer() || !depth.is_number_integer() || !width_groups || !depth_groups ||
      !tied) {
    return absl::InvalidArgumentError(absl::StrCat("'", kRecordKey, "' has a coalesce without ",
                                                   "factors and schemes; remove it and name them"));
  }
  return Mapping{width.get<int64_t>(), depth.get<int64_t>(), *width_groups, *depth_groups, *tied};
}

}  // namespace

std::string OperatorName(Operator kind) {
  return kind == Operator::kCoalesce     ? "coalesce"
         : kind == Operator::kDecoalesce ? "decoalesce"
                                         : "interpolate";
}

std::string GroupsName(Groups groups) {
  return groups == Groups::kStrided ? "strided" : "adjacent";
}

std::string TiedName(Tied tied) { return tied == Tied::kFinalNorm ? "final-norm" : "embedding"; }

std::optional<Groups> GroupsOf(absl::string_view name) {
  for (const Groups groups : {Groups::kStrided, Groups::kAdjacent}) {
    if (name == GroupsName(groups)) return groups;
  }
  return std::nullopt;
}

std::optional<Tied> TiedOf(absl::string_view name) {
  for (const Tied tied : {Tied::kFinalNorm, Tied::kEmbedding}) {
    if (name == TiedName(tied)) return tied;
  }
  return std::nullopt;
}

absl::StatusOr<Recorded> RecordOperation(const std::string& config_json, const Shape& shape,
                                         const Operation& operation) {
  ordered_json config = ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError("config.json is not a JSON object");
  ASSIGN_OR_RETURN(ordered_json history, HistoryOf(config));
  history.push_back(Entry(operation));
  config["n_layer"] = shape.layers;
  config["n_embd"] = shape.hidden;
  config["n_head"] = shape.heads;
  if (config.contains("n_inner") && !config["n_inner"].is_null())
    config["n_inner"] = 4 * shape.hidden;
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = "float32";
  config[kRecordKey] = history;
  return Recorded{config.dump(2, ' ', true, ordered_json::error_handler_t::replace) + "\n",
                  history.dump(-1, ' ', true, ordered_json::error_handler_t::replace)};
}

absl::StatusOr<std::optional<Mapping>> CoalesceToUndo(const std::string& config_json) {
  const ordered_json config = ordered_json::parse(config_json, nullptr, false);
  if (!config.is_object()) return absl::InvalidArgumentError("config.json is not a JSON object");
  ASSIGN_OR_RETURN(const ordered_json history, HistoryOf(config));
  std::vector<const ordered_json*> open;
  for (const ordered_json& entry : history) {
    const std::string name = entry["operation"].get<std::string>();
    if (name == OperatorName(Operator::kCoalesce)) open.push_back(&entry);
    if (name == OperatorName(Operator::kDecoalesce) && !open.empty()) open.pop_back();
  }
  if (open.empty()) return std::optional<Mapping>();
  ASSIGN_OR_RETURN(const Mapping mapping, MappingOf(*open.back()));
  return std::optional<Mapping>(mapping);
}

}  // namespace isthmus::multilevel
