// Models in memory and on disk, for the tests of the operators. Thread: values; WriteModelDir
// writes files.
#ifndef ISTHMUS_TESTS_MULTILEVEL_RANDOM_MODEL_H_
#define ISTHMUS_TESTS_MULTILEVEL_RANDOM_MODEL_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/safetensors.h"
#include "proto/job.pb.h"
#include "proto/model/gpt2_config.h"
#include "worker/multilevel/operators.h"

namespace isthmus::multilevel {

using Model = std::map<std::string, std::vector<float>>;

// Uniform in [-1, 1), by name order.
inline Model RandomModel(const Shape& shape, uint64_t seed) {
  Model model;
  int64_t at = 0;
  for (const Mix& mix : SameMixes(shape)) {
    std::vector<float>& values = model[mix.name];
    for (int64_t i = 0; i < mix.rows.result * mix.columns.result; ++i)
      values.push_back(static_cast<float>(RandomBelow(seed, 1, at++, 1 << 24)) / (1 << 23) - 1);
  }
  return model;
}

inline ReadRow ReaderOf(const Model& model) {
  return [&model](const std::string& tensor, int64_t row, absl::Span<float> values) {
    const std::vector<float>& from = model.at(tensor);
    std::copy_n(from.begin() + row * static_cast<int64_t>(values.size()), values.size(),
                values.begin());
    return absl::OkStatus();
  };
}

inline Model ApplyAll(const std::vector<Mix>& mixes, const Model& source) {
  Model out;
  for (const Mix& mix : mixes) {
    std::vector<float>& values = out[mix.name];
    const absl::Status applied = ApplyMix(mix, ReaderOf(source), [&](absl::Span<const float> row) {
      values.insert(values.end(), row.begin(), row.end());
      return absl::OkStatus();
    });
    if (!applied.ok()) return {};
  }
  return out;
}

inline ModelSpec SpecOf(const Shape& shape) {
  ModelSpec spec;
  spec.set_family("gpt2");
  spec.set_layers(static_cast<int32_t>(shape.layers));
  spec.set_hidden(static_cast<int32_t>(shape.hidden));
  spec.set_heads(static_cast<int32_t>(shape.heads));
  spec.set_context(static_cast<int32_t>(shape.context));
  spec.set_vocabulary(static_cast<int32_t>(shape.vocabulary));
  return spec;
}

// `prefix` before the names, as older files lack "transformer.".
inline std::string WeightsOf(const Shape& shape, const Model& model, bool prefix = true) {
  std::vector<SafetensorsItem> items;
  for (const Mix& mix : SameMixes(shape)) {
    const auto it = model.find(mix.name);
    if (it == model.end()) continue;
    items.push_back({prefix ? mix.name : mix.name.substr(std::string("transformer.").size()),
                     "F32",
                     mix.shape,
                     {reinterpret_cast<const char*>(it->second.data()), it->second.size() * 4}});
  }
  return WriteSafetensors(std::move(items), {{"format", "pt"}}).value();
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void WriteModelDir(const std::string& dir, const Shape& shape, const Model& model) {
  std::filesystem::create_directories(dir);
  WriteText(dir + "/config.json", Gpt2ConfigJson(SpecOf(shape)));
  WriteText(dir + "/model.safetensors", WeightsOf(shape, model));
}

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_TESTS_MULTILEVEL_RANDOM_MODEL_H_
