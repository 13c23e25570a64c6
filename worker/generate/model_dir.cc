#include "worker/generate/model_dir.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file/random_access_file.h"
#include "base/file/read_file.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/data/data_files.h"
#include "proto/model/model_config.h"
#include "proto/model/model_cost.h"

namespace isthmus::generate {
namespace {

using nlohmann::json;

constexpr int64_t kMaxJsonBytes = 16 << 20;

// The most bytes that the tensors of such a model take: fp32, with a head of its own, and the masks
// that older versions of transformers wrote.
int64_t MostTensorBytes(const ModelSpec& m) {
  ModelSpec own_head = m;
  own_head.set_tied(false);
  const int64_t parameters = ParameterCount(own_head);
  const int64_t mask = int64_t{m.context()} * m.context() + 1;
  return 4 * (parameters + m.layers() * mask);
}

// Once its header and its length say that it can be this model: it may be large.
absl::StatusOr<std::shared_ptr<const ByteSource>> OpenWeights(const std::string& path,
                                                              const ModelSpec& model) {
  absl::StatusOr<RandomAccessFile> file = RandomAccessFile::Open(path);
  if (!file.ok())
    return absl::InvalidArgumentError(absl::StrCat("can't read: ", file.status().message()));
  const auto places = ReadSafetensorsPlaces(*file);
  if (!places.ok()) return Annotate(places.status(), path);
  int64_t bytes = 0;
  for (const auto& [name, place] : *places) bytes += place.bytes;
  if (bytes > MostTensorBytes(model)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds tensors of ", bytes, " bytes, and the model that config.json ",
                     "describes has at most ", MostTensorBytes(model), ": it is another model's"));
  }
  return std::make_shared<const RandomAccessFile>(*std::move(file));
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
  if (config.value("model_type", json()) == kMlpType)
    return absl::InvalidArgumentError(
        "it is of a classifier of rows (model.family mlp), which is no GPT-2");
  Config c(config);
  ModelConfig out;
  ModelSpec& m = out.model;
  m.set_family("gpt2");
  m.set_layers(c.Number("n_layer", 1, 4096));
  m.set_hidden(c.Number("n_embd", 1, 1 << 16));
  m.set_heads(c.Number("n_head", 1, 1 << 10));
  m.set_context(c.Number("n_positions", 1, 1 << 16));
  m.set_vocabulary(c.Number("vocab_size", 2, kMaxVocabulary));
  m.set_tied(config.value("tie_word_embeddings", json(true)) != json(false));
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
  ASSIGN_OR_RETURN(const std::string config, ReadSmallFile(dir + "/config.json", kMaxJsonBytes));
  absl::StatusOr<ModelConfig> parsed = ParseConfig(config);
  if (!parsed.ok()) return Annotate(parsed.status(), dir + "/config.json");
  out.config = *std::move(parsed);
  if (const auto generation = ReadSmallFile(dir + "/generation_config.json", kMaxJsonBytes);
      generation.ok()) {
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
  ASSIGN_OR_RETURN(out.weights, OpenWeights(weights, out.config.model));
  return out;
}

}  // namespace isthmus::generate
