// Chooses tokens by a model's logits. The same seed gives the same text. Thread: pure functions,
// but for the decoder that Generate drives.
#ifndef ISTHMUS_WORKER_GENERATE_SAMPLER_H_
#define ISTHMUS_WORKER_GENERATE_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/generate/decoder.h"

namespace isthmus::generate {

struct SamplerOptions {
  double temperature = 0.8;  // above 0; less is closer to the likeliest token
  int64_t top_k = 200;       // of so many likeliest tokens; 0: of all
  uint64_t seed = 1;
  bool greedy = false;  // always the likeliest token, the lowest id of equal ones
};

// The `index`-th token of a text. DataLoss: a logit is not finite.
absl::StatusOr<int32_t> PickToken(absl::Span<const float> logits, const SamplerOptions& options,
                                  int64_t index);

struct GenerateOptions {
  int64_t tokens = 200;  // at most so many
  SamplerOptions sampling;
  std::optional<int32_t> end;  // the token that ends a text; it is not emitted
};

// Continues `prompt`, which has a token. `emit` gets each token as it is chosen and says whether to
// go on. Where the decoder's context is full, it goes on from the last half of what it has seen.
absl::Status Generate(Decoder* decoder, std::vector<int32_t> prompt, const GenerateOptions& options,
                      const std::function<bool(int32_t)>& emit);

}  // namespace isthmus::generate

#endif  // ISTHMUS_WORKER_GENERATE_SAMPLER_H_
