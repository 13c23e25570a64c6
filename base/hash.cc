#include "base/hash.h"

#include <xxhash.h>

namespace isthmus {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh); }
Hasher::~Hasher() = default;
void Hasher::Update(const void* data, size_t bytes) {
  XXH3_64bits_update(state_->xxh, data, bytes);
}
uint64_t Hasher::Digest() const { return XXH3_64bits_digest(state_->xxh); }

}  // namespace isthmus
