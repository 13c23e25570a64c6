#include "worker/multilevel/model_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "proto/model/tokenizer_file_names.h"
#include "worker/generate/model_dir.h"

namespace isthmus::multilevel {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMaxJsonBytes = 16 << 20;
constexpr char kPrefix[] = "transformer.";
constexpr char kHead[] = "lm_head.weight";

// The files that hold the weights, by the one name or by the index of shards.
absl::StatusOr<std::set<std::string>> WeightFiles(const std::string& dir) {
  const std::string single = dir + "/model.safetensors", index_path = single + ".index.json";
  std::error_code error;
  if (fs::exists(single, error)) return std::set<std::string>{single};
  if (!fs::exists(index_path, error)) {
    return absl::NotFoundError(absl::StrCat(
        dir, " has no model.safetensors (and no model.safetensors.index.json); pickled weights ",
        "are not read: save the model with save_pretrained(DIR, safe_serialization=True)"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(index_path, kMaxJsonBytes));
  const json index = json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> files;
  const json map = index.is_object() ? index.value("weight_map", json()) : json();
  for (const auto& item : map.items()) {
    const std::string name = item.value().is_string() ? item.value().get<std::string>() : "";
    if (name.empty() || absl::StrContains(name, '/'))
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": weight_map names something that is no file beside it"));
    files.insert(absl::StrCat(dir, "/", name));
  }
  if (files.empty() || files.size() > kMaxShards)
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map names ", files.size(),
                                                   " files; 1 to ", kMaxShards, " are read"));
  return files;
}

std::string FullName(const std::string& name) {
  return absl::StartsWith(name, kPrefix) || name == kHead ? name : kPrefix + name;
}

// Masks that older versions of transformers wrote.
bool IsMask(const std::string& name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias");
}

std::string Printed(const std::string& name) {  // names come from outside
  return json(name.substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<ModelFiles> ModelFiles::Open(const std::string& dir) {
  ModelFiles out;
  out.dir_ = dir;
  const std::string path = dir + "/config.json";
  ASSIGN_OR_RETURN(out.config_, ReadSmallFile(path, kMaxJsonBytes));
  const absl::StatusOr<generate::ModelConfig> config = generate::ParseConfig(out.config_);
  if (!config.ok()) return Annotate(config.status(), path);
  if (json::parse(out.config_).value("tie_word_embeddings", json(true)) == json(false))
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tie_word_embeddings is false; only a tied head is mapped"));
  const ModelSpec& model = config->model;
  out.shape_ = {model.layers(), model.hidden(), model.heads(), model.vocabulary(), model.context()};
  out.norm_epsilon_ = model.norm_epsilon();
  ASSIGN_OR_RETURN(const std::set<std::string> files, WeightFiles(dir));
  for (const std::string& file : files) RETURN_IF_ERROR(out.TakeFile(file));
  RETURN_IF_ERROR(out.CheckTensors());
  RETURN_IF_ERROR(out.CheckHead());
  return out;
}

absl::Status ModelFiles::TakeFile(const std::string& path) {
  absl::StatusOr<RandomAccessFile> opened = RandomAccessFile::Open(path);
  if (!opened.ok())
    return absl::InvalidArgumentError(absl::StrCat("can't read: ", opened.status().message()));
  const auto file = std::make_shared<const RandomAccessFile>(*std::move(opened));
  auto places = ReadSafetensorsPlaces(*file);
  if (!places.ok()) return Annotate(places.status(), path);
  for (auto& [name, place] : *places) {
    if (IsMask(name)) continue;
    if (!tensors_.emplace(FullName(name), Place{file, std::move(place)}).second)
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the tensor ", Printed(name), " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status ModelFiles::CheckTensors() {
  std::set<std::string> known = {kHead};
  for (const Mix& mix : SameMixes(shape_)) {
    known.insert(mix.name);
    const auto it = tensors_.find(mix.name);
    if (it == tensors_.end())
      return absl::NotFoundError(absl::StrCat(dir_, ": tensor ", mix.name, " is missing"));
    const SafetensorsPlace& place = it->second.at;
    const std::string where = absl::StrCat(it->second.file->path(), ": tensor ", mix.name);
    if (place.shape != mix.shape)
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is [", absl::StrJoin(place.shape, ", "),
                       "], and the model that config.json describes has [",
                       absl::StrJoin(mix.shape, ", "), "]"));
    if (place.dtype != "F32" && place.dtype != "F16" && place.dtype != "BF16")
      return absl::InvalidArgumentError(absl::StrCat(where, " has type ", Printed(place.dtype),
                                                     "; convert it to F32, F16 or BF16"));
  }
  for (const auto& [name, place] : tensors_) {
    if (known.count(name) == 0)
      return absl::InvalidArgumentError(absl::StrCat(place.file->path(), ": the tensor ",
                                                     Printed(name), " is none of a GPT-2 of ",
                                                     shape_.layers, " layers"));
  }
  return absl::OkStatus();
}

// A head in the file has to be the embedding again: only a tied one is mapped.
absl::Status ModelFiles::CheckHead() {
  const auto head = tensors_.find(kHead);
  if (head == tensors_.end()) return absl::OkStatus();
  const Place& embedding = tensors_.at("transformer.wte.weight");
  const std::string where = absl::StrCat(head->second.file->path(), ": ", kHead);
  const std::string& type = head->second.at.dtype;
  if (head->second.at.shape != embedding.at.shape ||
      (type != "F32" && type != "F16" && type != "BF16"))
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has another shape or type than the embedding it is tied to"));
  std::vector<float> a(shape_.hidden), b(shape_.hidden);
  for (int64_t row = 0; row < shape_.vocabulary; ++row) {
    RETURN_IF_ERROR(Read(head->second, row * shape_.hidden, absl::MakeSpan(a)));
    RETURN_IF_ERROR(Read(embedding, row * shape_.hidden, absl::MakeSpan(b)));
    if (a != b)
      return absl::InvalidArgumentError(absl::StrCat(where, " differs from wte.weight in row ", row,
                                                     ": only a tied head is mapped"));
  }
  return absl::OkStatus();
}

absl::Status ModelFiles::Read(const Place& place, int64_t first, absl::Span<float> values) const {
  const bool wide = place.at.dtype == "F32";
  const int64_t element = wide ? 4 : 2;
  if (wide)
    return place.file->ReadAt(place.at.at + first * element, values.size() * 4,
                              reinterpret_cast<char*>(values.data()));
  std::string bytes(values.size() * 2, '\0');
  RETURN_IF_ERROR(place.file->ReadAt(place.at.at + first * element, bytes.size(), bytes.data()));
  const auto count = static_cast<int64_t>(values.size());
  ASSIGN_OR_RETURN(const std::vector<float> floats,
                   ToFloats(SafetensorsEntry{place.at.dtype, {count}, bytes}));
  std::copy(floats.begin(), floats.end(), values.begin());
  return absl::OkStatus();
}

absl::Status ModelFiles::ReadRow(const std::string& tensor, int64_t row,
                                 absl::Span<float> values) const {
  const auto it = tensors_.find(tensor);
  if (it == tensors_.end()) return absl::InternalError(absl::StrCat(dir_, ": no tensor ", tensor));
  const Place& place = it->second;
  RETURN_IF_ERROR(Read(place, row * static_cast<int64_t>(values.size()), values));
  return Annotate(CheckFinite(tensor, row, values), place.file->path());
}

absl::StatusOr<std::map<std::string, std::string>> ModelFiles::OtherFiles() const {
  std::vector<std::string> names(std::begin(kTokenizerFileNames), std::end(kTokenizerFileNames));
  names.emplace_back("generation_config.json");
  std::map<std::string, std::string> out;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(dir_, "/", name);
    std::error_code error;
    if (!fs::is_regular_file(path, error)) continue;
    ASSIGN_OR_RETURN(out[name], ReadSmallFile(path, kMaxTokenizerBytes));
  }
  return out;
}

}  // namespace isthmus::multilevel
