#include "worker/generate/model_dir.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace isthmus::generate {
namespace {

using nlohmann::json;

constexpr int64_t kMaxVocabulary = 1 << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat("can't read ", path, ": ", error.message()));
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in) return absl::NotFoundError(absl::StrCat("can't read ", path));
  return text;
}

// What config.json says, with every complaint kept.
class Config {
 public:
  explicit Config(const json& config) : config_(config) {}

  int32_t Number(const char* key, int64_t least, int64_t most) {
    const auto it = config_.find(key);
    if (it == config_.end() || !it->is_number_integer() || it->get<int64_t>() < least ||
        it->get<int64_t>() > most) {
      errors_.push_back(
          absl::StrCat("it has no '", key, "' that is a whole number from ", least, " to ", most));
      return static_cast<int32_t>(least);
    }
    return it->get<int32_t>();
  }
  void Must(const char* key, const json& wanted) {
    const auto it = config_.find(key);
    if (it != config_.end() && !it->is_null() && *it != wanted)
      errors_.push_back(absl::StrCat(key, " is ", it->dump(), "; only ", wanted.dump(), " is run"));
  }
  std::vector<std::string>* errors() { return &errors_; }

 private:
  const json& config_;
  std::vector<std::string> errors_;
};

std::optional<int32_t> EndToken(const json& file, int64_t vocabulary) {
  const json end = file.is_object() ? file.value("eos_token_id", json()) : json();
  if (!end.is_number_unsigned() || end.get<int64_t>() >= vocabulary) return std::nullopt;
  return end.get<int32_t>();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(absl::string_view config_json) {
  const json config = json::parse(config_json.begin(), config_json.end(), nullptr, false);
  if (!config.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  Config c(config);
  ModelConfig out;
  ModelSpec& m = out.model;
  m.set_family("gpt2");
  m.set_layers(c.Number("n_layer", 1, 4096));
  m.set_hidden(c.Number("n_embd", 1, 1 << 20));
  m.set_heads(c.Number("n_head", 1, 1 << 16));
  m.set_context(c.Number("n_positions", 1, 1 << 24));
  m.set_vocabulary(c.Number("vocab_size", 2, kMaxVocabulary));
  c.Must("model_type", "gpt2");
  c.Must("activation_function", "gelu_new");
  c.Must("scale_attn_weights", true);
  c.Must("scale_attn_by_inverse_layer_idx", false);
  c.Must("n_inner", 4 * int64_t{m.hidden()});
  if (m.hidden() % m.heads() != 0) c.errors()->push_back("n_embd is no multiple of n_head");
  const json epsilon = config.value("layer_norm_epsilon", json(1e-5));
  if (epsilon.is_number() && epsilon.get<double>() > 0) {
    m.set_norm_epsilon(epsilon.get<double>());
  } else {
    c.errors()->push_back(absl::StrCat("layer_norm_epsilon is ", epsilon.dump()));
  }
  if (!c.errors()->empty()) return absl::InvalidArgumentError(absl::StrJoin(*c.errors(), "; "));
  out.end = EndToken(config, m.vocabulary());
  return out;
}

absl::StatusOr<ModelDir> ReadModelDir(const std::string& dir) {
  ModelDir out;
  ASSIGN_OR_RETURN(const std::string config, ReadFile(dir + "/config.json"));
  absl::StatusOr<ModelConfig> parsed = ParseConfig(config);
  if (!parsed.ok()) return Annotate(parsed.status(), dir + "/config.json");
  out.config = *std::move(parsed);
  if (const auto generation = ReadFile(dir + "/generation_config.json"); generation.ok()) {
    const json file = json::parse(*generation, nullptr, false);
    const auto end = EndToken(file, out.config.model.vocabulary());
    if (end.has_value()) out.config.end = end;
  }
  std::error_code error;
  const std::string weights = dir + "/model.safetensors";
  if (!std::filesystem::exists(weights, error))
    return absl::NotFoundError(absl::StrCat(
        dir,
        " has no model.safetensors; weights in several files or pickled ones are not read: "
        "save the model with save_pretrained(DIR, safe_serialization=True, "
        "max_shard_size=\"100GB\")"));
  ASSIGN_OR_RETURN(out.weights, ReadFile(weights));
  return out;
}

}  // namespace isthmus::generate
