#include "proto/model/model_config.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/model/gpt2_config.h"

namespace isthmus {
namespace {

TEST(ModelConfig, AnMlpSaysItsFamilyAndShapes) {
  ModelSpec model;
  model.set_family("mlp");
  model.set_layers(2);
  model.set_hidden(64);
  model.set_inputs(784);
  model.set_classes(10);
  const nlohmann::json json = nlohmann::json::parse(ModelConfigJson(model));
  EXPECT_EQ(json["model_type"], kMlpType);
  EXPECT_EQ(json["inputs"], 784);
  EXPECT_EQ(json["input_divisor"], 255);
  EXPECT_EQ(json["hidden_size"], 64);
  EXPECT_EQ(json["num_hidden_layers"], 2);
  EXPECT_EQ(json["num_labels"], 10);
}

TEST(ModelConfig, AGpt2HasThatOfTransformers) {
  ModelSpec model;
  model.set_layers(2);
  EXPECT_EQ(ModelConfigJson(model), Gpt2ConfigJson(model));
}

}  // namespace
}  // namespace isthmus
