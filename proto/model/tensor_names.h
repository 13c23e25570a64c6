// Names of tensors that more than one room knows: the head of its own that an untied GPT-2 has, and
// those of a checkpoint that a GPT-2 of `transformers` has not: the autoencoders at
// the boundaries, the outer momentum of local steps. A checkpoint may lack them (the cut moved, the
// codec is new): they start anew then. An export leaves them out. Thread: pure functions.
#ifndef ISTHMUS_PROTO_MODEL_TENSOR_NAMES_H_
#define ISTHMUS_PROTO_MODEL_TENSOR_NAMES_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace isthmus {

inline constexpr char kHeadTensor[] = "lm_head.weight";

inline constexpr char kOwnTensorPrefix[] = "isthmus.";

inline bool IsOwnTensor(absl::string_view name) { return absl::StartsWith(name, kOwnTensorPrefix); }

// Of the outer optimiser of local steps (worker/stage.h), in the optimiser's file of a checkpoint.
inline std::string OuterMomentumName(const std::string& tensor) {
  return absl::StrCat(kOwnTensorPrefix, tensor, ".outer_momentum");
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_TENSOR_NAMES_H_
