#include "coordinator/cli/model/gpt2_import.h"

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file/read_file.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "proto/model/tensor_names.h"

namespace isthmus::cli {
namespace {

constexpr size_t kMaxListed = 10;
constexpr char kEmbedding[] = "transformer.wte.weight";
constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;  // config.json, or the index of shards

absl::StatusOr<nlohmann::json> ReadJson(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxJsonBytes));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  return json;
}

// What config.json says, against what Isthmus trains. A key that is not there has the value that
// transformers gives it.
class ConfigCheck {
 public:
  ConfigCheck(const nlohmann::json& config, const ModelSpec& model)
      : config_(config), model_(model) {}

  std::vector<std::string> Errors() {
    Text("model_type", {"gpt2"});
    Text("activation_function", {"gelu_new", "gelu_pytorch_tanh"});  // two names of one function
    Whole("n_layer", model_.layers(), "model.layers");
    Whole("n_embd", model_.hidden(), "model.hidden");
    Whole("n_head", model_.heads(), "model.heads");
    Whole("vocab_size", model_.vocabulary(), "model.vocabulary");
    Head();
    Flag("scale_attn_weights", true);
    Flag("scale_attn_by_inverse_layer_idx", false);
    Flag("add_cross_attention", false);
    // reorder_and_upcast_attn is the same function, computed in F32: as it is here.
    Inner();
    Positions();
    NormEpsilon();
    return std::move(errors_);
  }

  double norm_epsilon() const { return norm_epsilon_; }
  bool tied() const { return tied_; }

  // "attn_pdrop 0.1, resid_pdrop 0.1": dropout that a training in transformers would have.
  std::string Dropout() const {
    std::vector<std::string> out;
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
      const auto it = config_.find(key);
      if (it != config_.end() && it->is_number() && it->get<double>() != 0)
        out.push_back(absl::StrCat(key, " ", it->get<double>()));
    }
    return absl::StrJoin(out, ", ");
  }

 private:
  using Json = nlohmann::json;

  const Json* Find(const char* key) const {  // null: not there
    const auto it = config_.find(key);
    return it == config_.end() || it->is_null() ? nullptr : &*it;
  }

  template <typename... Args>
  void Add(const Args&... args) {
    errors_.push_back(absl::StrCat(args...));
  }

  void Whole(const char* key, int64_t wanted, const char* field) {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_number_integer()) {
      Add("config.json has no whole number '", key, "'");
    } else if (value->get<int64_t>() != wanted) {
      Add(key, " is ", value->get<int64_t>(), ", but ", field, " is ", wanted);
    }
  }

  void Text(const char* key, const std::vector<std::string>& wanted) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    for (const std::string& text : wanted) {
      if (*value == text) return;
    }
    Add(key, " is ", value->dump(), "; only \"", absl::StrJoin(wanted, "\" or \""),
        "\" can be trained");
  }

  void Flag(const char* key, bool wanted) {
    const Json* value = Find(key);
    if (value != nullptr && *value != wanted)
      Add(key, " is ", value->dump(), "; only ", wanted ? "true" : "false", " can be trained");
  }

  void Head() {
    const Json* value = Find("tie_word_embeddings");
    tied_ = value == nullptr || *value != false;
    if (!tied_ && IsTied(model_))
      Add("tie_word_embeddings is false: the model has a head of its own. Set model.tied: false");
  }

  void Inner() {
    const Json* inner = Find("n_inner");
    if (inner != nullptr && *inner != 4 * int64_t{model_.hidden()})
      Add("n_inner is ", inner->dump(), "; only 4 x hidden can be trained");
  }

  void Positions() {
    const Json* positions = Find("n_positions");
    if (positions == nullptr || !positions->is_number_integer()) {
      Add("config.json has no whole number 'n_positions'");
    } else if (positions->get<int64_t>() < model_.context()) {
      Add("n_positions is ", positions->get<int64_t>(), ", less than model.context (",
          model_.context(), ")");
    }
  }

  void NormEpsilon() {
    const Json* value = Find("layer_norm_epsilon");
    norm_epsilon_ = isthmus::NormEpsilon(ModelSpec());  // the same as that of transformers
    if (value != nullptr && value->is_number()) norm_epsilon_ = value->get<double>();
    const bool good = value == nullptr || value->is_number();
    if (!good || !(norm_epsilon_ >= kMinNormEpsilon && norm_epsilon_ <= kMaxNormEpsilon)) {
      Add("layer_norm_epsilon is ", value->dump(), "; only ", kMinNormEpsilon, " to ",
          kMaxNormEpsilon, " can be trained");
    } else if (model_.has_norm_epsilon() && model_.norm_epsilon() != norm_epsilon_) {
      Add("layer_norm_epsilon is ", Json(norm_epsilon_).dump(), ", but model.norm_epsilon is ",
          Json(model_.norm_epsilon()).dump(), ": leave it out of the job file");
    }
  }

  const Json& config_;
  const ModelSpec& model_;
  std::vector<std::string> errors_;
  double norm_epsilon_ = 0;
  bool tied_ = true;
};

// `own_head`: of lm_head.weight too.
std::map<std::string, std::vector<int64_t>> ExpectedTensors(const ModelSpec& model, bool own_head) {
  const int64_t h = model.hidden();
  std::map<std::string, std::vector<int64_t>> out = {
      {kEmbedding, {model.vocabulary(), h}},
      {"transformer.wpe.weight", {model.context(), h}},
      {"transformer.ln_f.weight", {h}},
      {"transformer.ln_f.bias", {h}}};
  if (own_head) out[kHeadTensor] = {model.vocabulary(), h};
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

std::string Shape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckShape(const std::string& name, const SafetensorsPlace& place,
                        const std::vector<int64_t>& wanted) {
  const bool longer_context = name == "transformer.wpe.weight" && place.shape.size() == 2 &&
                              place.shape[1] == wanted[1] && place.shape[0] > wanted[0];
  if (place.shape == wanted || longer_context) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has the shape ", Shape(place.shape), ", the job needs ", Shape(wanted)));
}

absl::Status Problems(const std::string& dir, std::vector<std::string> errors) {
  const size_t more = errors.size() > kMaxListed ? errors.size() - kMaxListed : 0;
  errors.resize(errors.size() - more);
  return absl::InvalidArgumentError(absl::StrCat(
      "model.init_from: the model in ", dir, " can't start this job:\n  ",
      absl::StrJoin(errors, "\n  "), more > 0 ? absl::StrCat("\n  and ", more, " more") : ""));
}

// "wte.weight" and "transformer.wte.weight" are the same tensor.
std::string FullName(const std::string& name) {
  if (absl::StartsWith(name, "transformer.") || name == kHeadTensor) return name;
  return absl::StrCat("transformer.", name);
}

struct Found {  // a tensor, and where
  std::shared_ptr<const RandomAccessFile> file;
  SafetensorsPlace place;
};

// Where config.json ties them, a head that differs would be lost: fine where it is equal.
absl::Status CheckHead(const Found& head, const Found& embedding) {
  const auto own = [](const std::string& how) {
    return absl::InvalidArgumentError(absl::StrCat(
        kHeadTensor, " ", how, "; config.json says that the two are tied. Set tie_word_embeddings ",
        "to false there and model.tied: false in the job, or tie them (model.tie_weights()) and ",
        "save the model again"));
  };
  if (head.place.shape != embedding.place.shape)
    return own(absl::StrCat("has the shape ", Shape(head.place.shape), ", wte.weight ",
                            Shape(embedding.place.shape)));
  int64_t elements = 1;
  for (int64_t n : head.place.shape) elements *= n;
  ASSIGN_OR_RETURN(const Difference d, CompareTensors(*head.file, head.place, *embedding.file,
                                                      embedding.place, elements));
  if (d.count == 0) return absl::OkStatus();
  return own(absl::StrCat("differs from wte.weight in ", d.count, " of ", elements,
                          " elements (the first: ", d.a, " instead of ", d.b, ")"));
}

// Of a tensor that the job does not need.
enum class Spare { kMask, kHead, kUnknown };
Spare KindOf(const std::string& full) {
  if (absl::EndsWith(full, ".attn.bias") || absl::EndsWith(full, ".attn.masked_bias"))
    return Spare::kMask;
  return full == kHeadTensor ? Spare::kHead : Spare::kUnknown;
}

class Importer {
 public:
  // `tied`: as the model's config.json says.
  Importer(const std::string& dir, const ModelSpec& model, bool tied)
      : dir_(dir),
        wanted_(ExpectedTensors(model, !tied)),
        missing_(wanted_),
        unties_(tied && !IsTied(model)) {}

  absl::Status Take(const std::string& path) {
    absl::StatusOr<RandomAccessFile> opened = RandomAccessFile::Open(path);
    if (absl::IsFailedPrecondition(opened.status()))
      return absl::InvalidArgumentError(
          absl::StrCat("can't read ", path, ": it is not a regular file"));
    if (!opened.ok())
      return absl::NotFoundError(absl::StrCat("can't read: ", opened.status().message()));
    const auto file = std::make_shared<const RandomAccessFile>(*std::move(opened));
    const auto places = ReadSafetensorsPlaces(*file);
    if (!places.ok()) return Annotate(places.status(), path);
    for (const auto& [name, place] : *places) TakeOne(name, {file, place});
    return absl::OkStatus();
  }

  absl::StatusOr<ImportedGpt2> Finish() {
    for (const auto& [name, shape] : missing_) errors_.push_back(absl::StrCat(name, " is missing"));
    if (head_.has_value() && embedding_.has_value()) {
      const absl::Status tied = CheckHead(*head_, *embedding_);
      if (!tied.ok()) errors_.emplace_back(tied.message());
    }
    if (!errors_.empty()) return Problems(dir_, std::move(errors_));
    ImportedGpt2 out;
    if (unties_) {
      RETURN_IF_ERROR(
          weights_.Add(kHeadTensor, wanted_.at(kEmbedding), embedding_->file, embedding_->place));
      out.warnings.push_back(absl::StrCat("the head of the model in ", dir_,
                                          " is tied to its embedding; with model.tied: false it "
                                          "begins as a copy and learns by itself"));
    }
    if (!left_out_.empty()) {
      const size_t more = left_out_.size() > kMaxListed ? left_out_.size() - kMaxListed : 0;
      left_out_.resize(left_out_.size() - more);
      out.warnings.push_back(absl::StrCat(
          "the model in ", dir_, " has tensors that a GPT-2 has not; they are left out: ",
          absl::StrJoin(left_out_, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : ""));
    }
    RETURN_IF_ERROR(weights_.Seal());
    out.weights = std::move(weights_);
    return out;
  }

 private:
  void TakeOne(const std::string& name, const Found& found) {
    const std::string full = FullName(name);
    const auto it = wanted_.find(full);
    if (it == wanted_.end()) {
      const Spare kind = KindOf(full);
      if (kind == Spare::kHead) head_ = found;
      if (kind == Spare::kUnknown) left_out_.push_back(name);
      return;
    }
    if (missing_.erase(full) == 0) {
      errors_.push_back(absl::StrCat(full, " is there twice"));
      return;
    }
    if (full == kEmbedding) embedding_ = found;
    absl::Status taken = CheckShape(full, found.place, it->second);
    if (taken.ok()) taken = weights_.Add(full, it->second, found.file, found.place);
    if (!taken.ok()) errors_.emplace_back(taken.message());
  }

  const std::string dir_;
  const std::map<std::string, std::vector<int64_t>> wanted_;
  std::map<std::string, std::vector<int64_t>> missing_;
  const bool unties_;  // the job has a head of its own, the model has none
  WeightStream weights_;
  std::optional<Found> head_, embedding_;
  std::vector<std::string> left_out_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::StatusOr<ImportedGpt2> ReadGpt2(const std::string& dir, const ModelSpec& model) {
  ASSIGN_OR_RETURN(const nlohmann::json config, ReadJson(dir + "/config.json"));
  ConfigCheck check(config, model);
  std::vector<std::string> errors = check.Errors();
  if (!errors.empty()) return Problems(dir, std::move(errors));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, WeightFiles(dir));
  Importer importer(dir, model, check.tied());
  for (const std::string& path : paths) RETURN_IF_ERROR(importer.Take(path));
  ASSIGN_OR_RETURN(ImportedGpt2 out, importer.Finish());
  out.norm_epsilon = check.norm_epsilon();
  if (config["n_positions"].get<int64_t>() > model.context()) {
    out.warnings.push_back(
        absl::StrCat("the model in ", dir, " has ", config["n_positions"].get<int64_t>(),
                     " positions; the first ", model.context(), " are kept (model.context)"));
  }
  if (const std::string dropout = check.Dropout(); !dropout.empty()) {
    out.warnings.push_back(absl::StrCat("config.json in ", dir, " names dropout for training (",
                                        dropout, "); Isthmus trains without dropout"));
  }
  return out;
}

}  // namespace isthmus::cli
