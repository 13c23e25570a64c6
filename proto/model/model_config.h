// The config.json beside exported weights. Thread: pure function.
#ifndef ISTHMUS_PROTO_MODEL_MODEL_CONFIG_H_
#define ISTHMUS_PROTO_MODEL_MODEL_CONFIG_H_

#include <string>

#include "proto/job.pb.h"

namespace isthmus {

// model_type of an MLP. `transformers` has no such model.
inline constexpr char kMlpType[] = "isthmus-mlp";

// Of a GPT-2 that of gpt2_config.h; of an MLP its shapes, and what its values mean.
std::string ModelConfigJson(const ModelSpec& model);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_MODEL_CONFIG_H_
