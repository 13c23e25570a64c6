// The config.json beside exported weights: what `transformers` needs to load them as
// GPT2LMHeadModel. Thread: pure function.
#ifndef ISTHMUS_PROTO_MODEL_GPT2_CONFIG_H_
#define ISTHMUS_PROTO_MODEL_GPT2_CONFIG_H_

#include <string>

#include "proto/job.pb.h"

namespace isthmus {

std::string Gpt2ConfigJson(const ModelSpec& model);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_GPT2_CONFIG_H_
