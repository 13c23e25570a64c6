// A GPT-2 of two layers as Hugging Face would ship it, for tests. Thread: pure functions;
// WriteSmallGpt2 writes files.
#ifndef ISTHMUS_TESTS_CLI_MODEL_SMALL_GPT2_H_
#define ISTHMUS_TESTS_CLI_MODEL_SMALL_GPT2_H_

#include <fstream>
#include <list>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "proto/job.pb.h"
#include "proto/model/gpt2_config.h"

namespace isthmus::cli {

inline ModelSpec SmallGpt2Model() {
  ModelSpec model;
  model.set_family("gpt2");
  model.set_layers(2);
  model.set_hidden(8);
  model.set_heads(2);
  model.set_context(4);
  model.set_vocabulary(256);
  return model;
}

// Each tensor holds its number in the list below, with `prefix` before its name. `positions`: rows
// of wpe.
inline std::string SmallGpt2Weights(const std::string& prefix, const std::string& dtype = "F32",
                                    int64_t positions = 4) {
  const int64_t h = 8;
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"wte.weight", {256, h}},
      {"wpe.weight", {positions, h}},
      {"ln_f.weight", {h}},
      {"ln_f.bias", {h}}};
  for (const std::string block : {"h.0.", "h.1."}) {
    tensors.insert(tensors.end(),
                   {{block + "ln_1.weight", {h}},
                    {block + "ln_1.bias", {h}},
                    {block + "attn.c_attn.weight", {h, 3 * h}},
                    {block + "attn.c_attn.bias", {3 * h}},
                    {block + "attn.c_proj.weight", {h, h}},
                    {block + "attn.c_proj.bias", {h}},
                    {block + "ln_2.weight", {h}},
                    {block + "ln_2.bias", {h}},
                    {block + "mlp.c_fc.weight", {h, 4 * h}},
                    {block + "mlp.c_fc.bias", {4 * h}},
                    {block + "mlp.c_proj.weight", {4 * h, h}},
                    {block + "mlp.c_proj.bias", {h}},
                    {block + "attn.bias", {1, 1, 4, 4}}});  // a mask that old exports carry
  }
  std::list<std::string> data;
  std::vector<SafetensorsItem> items;
  float value = 0;
  for (const auto& [name, shape] : tensors) {
    size_t count = 1;
    for (int64_t n : shape) count *= static_cast<size_t>(n);
    value += 1;
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      const auto* raw = reinterpret_cast<const char*>(&value);
      dtype == "BF16" ? bytes.append(raw + 2, 2) : bytes.append(raw, 4);
    }
    data.push_back(std::move(bytes));
    items.push_back({prefix + name, dtype, shape, data.back()});
  }
  return WriteSafetensors(std::move(items), {}).value();
}

inline void WriteSmallGpt2(const std::string& dir, const std::string& prefix) {
  std::ofstream(dir + "/config.json") << Gpt2ConfigJson(SmallGpt2Model());
  std::ofstream(dir + "/model.safetensors", std::ios::binary) << SmallGpt2Weights(prefix);
}

}  // namespace isthmus::cli

#endif  // ISTHMUS_TESTS_CLI_MODEL_SMALL_GPT2_H_
