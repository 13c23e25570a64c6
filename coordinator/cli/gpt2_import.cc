#include "coordinator/cli/gpt2_import.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/safetensors.h"
#include "base/status.h"

namespace isthmus::cli {
namespace {

constexpr size_t kMaxListed = 10;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;  // opening a pipe would wait for its writer
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
    return absl::InvalidArgumentError(absl::StrCat("can't read ", path, ": it is not a file"));
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in)
    return absl::NotFoundError(absl::StrCat("can't open ", path, ": ", std::strerror(errno)));
  std::string bytes(static_cast<size_t>(std::max<std::streamoff>(in.tellg(), 0)), '\0');
  in.seekg(0);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!in)
    return absl::NotFoundError(absl::StrCat("can't read ", path, ": ", std::strerror(errno)));
  return bytes;
}

absl::StatusOr<nlohmann::json> ReadJson(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  return json;
}

// Differences between config.json and what Isthmus trains.
std::vector<std::string> CheckConfig(const nlohmann::json& config, const ModelSpec& model) {
  std::vector<std::string> errors;
  const auto check = [&](const char* key, int64_t wanted, const char* field) {
    const auto it = config.find(key);
    if (it == config.end() || !it->is_number_integer()) {
      errors.push_back(absl::StrCat("config.json has no whole number '", key, "'"));
    } else if (it->get<int64_t>() != wanted) {
      errors.push_back(
          absl::StrCat(key, " is ", it->get<int64_t>(), ", but ", field, " is ", wanted));
    }
  };
  const auto text = [&](const char* key, const char* wanted) {
    const auto it = config.find(key);
    if (it != config.end() && !it->is_null() && *it != wanted) {
      errors.push_back(
          absl::StrCat(key, " is ", it->dump(), "; only \"", wanted, "\" can be trained"));
    }
  };
  const auto flag = [&](const char* key, bool wanted) {
    const auto it = config.find(key);
    if (it != config.end() && it->is_boolean() && it->get<bool>() != wanted) {
      errors.push_back(absl::StrCat(key, " is ", wanted ? "false" : "true", "; only ",
                                    wanted ? "true" : "false", " can be trained"));
    }
  };
  text("model_type", "gpt2");
  text("activation_function", "gelu_new");
  check("n_layer", model.layers(), "model.layers");
  check("n_embd", model.hidden(), "model.hidden");
  check("n_head", model.heads(), "model.heads");
  check("vocab_size", model.vocabulary(), "model.vocabulary");
  flag("tie_word_embeddings", true);
  flag("scale_attn_weights", true);
  flag("scale_attn_by_inverse_layer_idx", false);
  const auto inner = config.find("n_inner");
  if (inner != config.end() && inner->is_number_integer() &&
      inner->get<int64_t>() != 4 * int64_t{model.hidden()}) {
    errors.push_back(
        absl::StrCat("n_inner is ", inner->get<int64_t>(), "; only 4 x hidden can be trained"));
  }
  const auto positions = config.find("n_positions");
  if (positions == config.end() || !positions->is_number_integer()) {
    errors.push_back("config.json has no whole number 'n_positions'");
  } else if (positions->get<int64_t>() < model.context()) {
    errors.push_back(absl::StrCat("n_positions is ", positions->get<int64_t>(),
                                  ", less than model.context (", model.context(), ")"));
  }
  return errors;
}

std::map<std::string, std::vector<int64_t>> ExpectedTensors(const ModelSpec& model) {
  const int64_t h = model.hidden();
  std::map<std::string, std::vector<int64_t>> out = {
      {"transformer.wte.weight", {model.vocabulary(), h}},
      {"transformer.wpe.weight", {model.context(), h}},
      {"transformer.ln_f.weight", {h}},
      {"transformer.ln_f.bias", {h}}};
  for (int layer = 0; layer < model.layers(); ++layer) {
    const std::string block = absl::StrCat("transformer.h.", layer, ".");
    for (const char* norm : {"ln_1", "ln_2"}) {
      out[absl::StrCat(block, norm, ".weight")] = {h};
      out[absl::StrCat(block, norm, ".bias")] = {h};
    }
    const auto linear = [&](const char* name, int64_t in, int64_t width) {
      out[absl::StrCat(block, name, ".weight")] = {in, width};
      out[absl::StrCat(block, name, ".bias")] = {width};
    };
    linear("attn.c_attn", h, 3 * h);
    linear("attn.c_proj", h, h);
    linear("mlp.c_fc", h, 4 * h);
    linear("mlp.c_proj", 4 * h, h);
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> WeightFiles(const std::string& dir) {
  const std::string single = dir + "/model.safetensors";
  std::error_code error;
  if (std::filesystem::exists(single, error)) return std::vector<std::string>{single};
  const std::string index_path = single + ".index.json";
  if (!std::filesystem::exists(index_path, error)) {
    return absl::NotFoundError(
        absl::StrCat(dir,
                     " has no model.safetensors (and no model.safetensors.index.json); pickled "
                     "weights are not read: ",
                     "save the model with save_pretrained(DIR, safe_serialization=True)"));
  }
  ASSIGN_OR_RETURN(const nlohmann::json index, ReadJson(index_path));
  std::set<std::string> names;
  const auto map = index.find("weight_map");
  if (map != index.end() && map->is_object()) {
    for (const auto& item : map->items()) {
      if (!item.value().is_string()) continue;
      const std::string name = item.value().get<std::string>();
      if (absl::StrContains(name, '/'))
        return absl::InvalidArgumentError(
            absl::StrCat(index_path, ": '", name, "' is not a file beside it"));
      names.insert(name);
    }
  }
  if (names.empty() || names.size() > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map names ", names.size(),
                                                   " files; 1 to ", kMaxShards, " are read"));
  }
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(absl::StrCat(dir, "/", name));
  return paths;
}

absl::string_view AsBytes(const std::vector<float>& floats) {
  return {reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)};
}

std::string Shape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// One tensor, checked and as F32. `converted` owns what had to be converted.
absl::StatusOr<SafetensorsItem> TakeTensor(const std::string& name, const SafetensorsEntry& entry,
                                           const std::vector<int64_t>& wanted,
                                           std::deque<std::vector<float>>* converted) {
  const bool longer_context = name == "transformer.wpe.weight" && entry.shape.size() == 2 &&
                              entry.shape[1] == wanted[1] && entry.shape[0] > wanted[0];
  if (entry.shape != wanted && !longer_context) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has the shape ", Shape(entry.shape),
                                                   ", the job needs ", Shape(wanted)));
  }
  SafetensorsItem item{name, "F32", wanted, entry.data};
  if (entry.dtype != "F32") {
    absl::StatusOr<std::vector<float>> floats = ToFloats(entry);
    if (!floats.ok()) return Annotate(floats.status(), name);
    converted->push_back(*std::move(floats));
    item.data = AsBytes(converted->back());
  }
  size_t bytes = sizeof(float);
  for (int64_t n : wanted) bytes *= static_cast<size_t>(n);
  item.data = item.data.substr(0, bytes);  // of wpe: the first positions
  for (size_t at = 0; at < bytes; at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, item.data.data() + at, sizeof(value));
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": element ", at / sizeof(float), " is ",
                                                     value, ": the model can't be trained"));
    }
  }
  return item;
}

absl::Status Problems(const std::string& dir, std::vector<std::string> errors) {
  const size_t more = errors.size() > kMaxListed ? errors.size() - kMaxListed : 0;
  errors.resize(errors.size() - more);
  return absl::InvalidArgumentError(absl::StrCat(
      "model.init_from: the model in ", dir, " can't start this job:\n  ",
      absl::StrJoin(errors, "\n  "), more > 0 ? absl::StrCat("\n  and ", more, " more") : ""));
}

}  // namespace

absl::StatusOr<ImportedGpt2> ReadGpt2(const std::string& dir, const ModelSpec& model) {
  ASSIGN_OR_RETURN(const nlohmann::json config, ReadJson(dir + "/config.json"));
  std::vector<std::string> errors = CheckConfig(config, model);
  if (!errors.empty()) return Problems(dir, std::move(errors));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, WeightFiles(dir));

  ImportedGpt2 out;
  std::deque<std::string> files;  // what the views point into
  std::deque<std::vector<float>> converted;
  std::vector<SafetensorsItem> items;
  std::map<std::string, std::vector<int64_t>> wanted = ExpectedTensors(model);
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
    files.push_back(std::move(bytes));
    auto parsed = ParseSafetensors(files.back());
    if (!parsed.ok()) return Annotate(parsed.status(), path);
    for (const auto& [name, entry] : *parsed) {
      const std::string full =
          absl::StartsWith(name, "transformer.") ? name : absl::StrCat("transformer.", name);
      const auto it = wanted.find(full);
      if (it == wanted.end()) continue;  // attention masks, a tied lm_head, parts of other heads
      absl::StatusOr<SafetensorsItem> item = TakeTensor(full, entry, it->second, &converted);
      if (!item.ok()) {
        errors.emplace_back(item.status().message());
      } else {
        items.push_back(*std::move(item));
      }
      wanted.erase(it);
    }
  }
  for (const auto& [name, shape] : wanted) errors.push_back(absl::StrCat(name, " is missing"));
  if (!errors.empty()) return Problems(dir, std::move(errors));
  if (config["n_positions"].get<int64_t>() > model.context()) {
    out.warnings.push_back(
        absl::StrCat("the model in ", dir, " has ", config["n_positions"].get<int64_t>(),
                     " positions; the first ", model.context(), " are kept (model.context)"));
  }
  ASSIGN_OR_RETURN(out.weights, WriteSafetensors(std::move(items), {{"format", "pt"}}));
  return out;
}

}  // namespace isthmus::cli
