#include "proto/model/model_config.h"

#include "nlohmann/json.hpp"
#include "proto/model/family.h"
#include "proto/model/gpt2_config.h"

namespace isthmus {

std::string ModelConfigJson(const ModelSpec& model) {
  if (!IsMlp(model)) return Gpt2ConfigJson(model);
  nlohmann::ordered_json json;
  json["model_type"] = kMlpType;
  json["inputs"] = model.inputs();
  json["input_divisor"] = kRowValues - 1;
  json["hidden_size"] = model.hidden();
  json["num_hidden_layers"] = model.layers();
  json["hidden_act"] = "relu";
  json["num_labels"] = model.classes();
  json["weight_shape"] = {"in", "out"};
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

}  // namespace isthmus
