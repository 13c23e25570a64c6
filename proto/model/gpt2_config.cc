#include "proto/model/gpt2_config.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/job/job_defaults.h"

namespace isthmus {

std::string Gpt2ConfigJson(const ModelSpec& model) {
  // Only the tokenizer of the original GPT-2 has an end-of-text token that we know of: its last id.
  constexpr int kGpt2Vocabulary = 50257;
  const std::string end =
      model.vocabulary() == kGpt2Vocabulary ? absl::StrCat(kGpt2Vocabulary - 1) : "null";
  return absl::StrCat(
      "{\n"
      "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
      "  \"model_type\": \"gpt2\",\n"
      "  \"activation_function\": \"gelu_new\",\n"
      "  \"vocab_size\": ",
      model.vocabulary(),
      ",\n"
      "  \"n_positions\": ",
      model.context(),
      ",\n"
      "  \"n_ctx\": ",
      model.context(),
      ",\n"
      "  \"n_embd\": ",
      model.hidden(),
      ",\n"
      "  \"n_layer\": ",
      model.layers(),
      ",\n"
      "  \"n_head\": ",
      model.heads(),
      ",\n"
      "  \"n_inner\": null,\n"
      "  \"layer_norm_epsilon\": ",
      nlohmann::json(NormEpsilon(model)).dump(),  // as many digits as it has
      ",\n"
      "  \"initializer_range\": 0.02,\n"
      "  \"attn_pdrop\": 0.0,\n"
      "  \"embd_pdrop\": 0.0,\n"
      "  \"resid_pdrop\": 0.0,\n"
      "  \"scale_attn_weights\": true,\n"
      "  \"tie_word_embeddings\": ",
      IsTied(model) ? "true" : "false",
      ",\n"
      "  \"bos_token_id\": ",
      end,
      ",\n"
      "  \"eos_token_id\": ",
      end,
      ",\n"
      "  \"torch_dtype\": \"float32\"\n"
      "}\n");
}

}  // namespace isthmus
