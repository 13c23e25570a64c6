#include "proto/model/gpt2_config.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

ModelSpec Model(int layers, int hidden, int heads, int context, int vocabulary) {
  ModelSpec m;
  m.set_layers(layers);
  m.set_hidden(hidden);
  m.set_heads(heads);
  m.set_context(context);
  m.set_vocabulary(vocabulary);
  return m;
}

TEST(Gpt2Config, NamesTheShapes) {
  const std::string json = Gpt2ConfigJson(Model(2, 64, 4, 32, 256));
  EXPECT_NE(json.find("\"n_embd\": 64"), std::string::npos) << json;
  EXPECT_NE(json.find("\"vocab_size\": 256"), std::string::npos) << json;
  EXPECT_NE(json.find("\"eos_token_id\": null"), std::string::npos) << json;
  EXPECT_NE(Gpt2ConfigJson(Model(12, 768, 12, 1024, 50257)).find("\"eos_token_id\": 50256"),
            std::string::npos);
}

TEST(Gpt2Config, SaysWhetherTheHeadIsTied) {
  ModelSpec model = Model(2, 64, 4, 32, 256);
  EXPECT_NE(Gpt2ConfigJson(model).find("\"tie_word_embeddings\": true,"), std::string::npos);
  model.set_tied(false);
  EXPECT_NE(Gpt2ConfigJson(model).find("\"tie_word_embeddings\": false,"), std::string::npos);
}

TEST(Gpt2Config, HasTheNormsEpsilon) {
  ModelSpec model = Model(2, 64, 4, 32, 256);
  EXPECT_NE(Gpt2ConfigJson(model).find("\"layer_norm_epsilon\": 1e-05,"), std::string::npos);
  model.set_norm_epsilon(1.23456789e-3);
  EXPECT_NE(Gpt2ConfigJson(model).find("\"layer_norm_epsilon\": 0.00123456789,"),
            std::string::npos);
}

}  // namespace
}  // namespace isthmus
