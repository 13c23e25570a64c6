// A language model that is asked token by token. The engine implements it with LibTorch; tests have
// a fake. Thread: one owner.
#ifndef ISTHMUS_WORKER_GENERATE_DECODER_H_
#define ISTHMUS_WORKER_GENERATE_DECODER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace isthmus::generate {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // The most tokens it can have seen.
  virtual int64_t context() const = 0;
  // Tokens seen since the start or Clear.
  virtual int64_t seen() const = 0;
  // Sees `tokens`, at least one, after those it has seen; the logits of the token that follows, one
  // for each of the vocabulary. InvalidArgument: more than context(), or beyond the vocabulary.
  virtual absl::StatusOr<std::vector<float>> Append(absl::Span<const int32_t> tokens) = 0;
  virtual void Clear() = 0;
};

}  // namespace isthmus::generate

#endif  // ISTHMUS_WORKER_GENERATE_DECODER_H_
