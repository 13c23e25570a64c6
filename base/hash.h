// XXH3-64: checksums of payloads and files, hashes of delta buffers. Not for secrets. Thread: pure
// functions; Hasher has one owner.
#ifndef ISTHMUS_BASE_HASH_H_
#define ISTHMUS_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

namespace isthmus {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t Hash64(absl::string_view text, uint64_t seed = 0) {
  return Hash64(text.data(), text.size(), seed);
}

class Hasher {
 public:
  Hasher();
  ~Hasher();
  void Update(const void* data, size_t bytes);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_HASH_H_
