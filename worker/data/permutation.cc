#include "worker/data/permutation.h"

#include <cassert>

#include "base/rng.h"

namespace isthmus::worker {
namespace {

constexpr uint64_t kRounds = 8;

// Half of the bits of the smallest 2^(2n), n > 0, that is no less than `count`.
int HalfBits(uint64_t count) {
  int half = 1;
  while (half < 31 && uint64_t{1} << (2 * half) < count) ++half;
  return half;
}

uint64_t Feistel(uint64_t seed, uint64_t stream, int half, uint64_t value) {
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t left = value >> half, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (RandomBits(seed, stream, round << 32 | right) & mask);
    left = right;
    right = mixed;
  }
  return left << half | right;
}

}  // namespace

uint64_t PermutedAt(uint64_t seed, uint64_t stream, uint64_t count, uint64_t place) {
  assert(place < count && count <= uint64_t{1} << 62);
  const int half = HalfBits(count);
  // A permutation of the larger range: from a place in [0, count) its cycle comes back into it.
  do {
    place = Feistel(seed, stream, half, place);
  } while (place >= count);
  return place;
}

}  // namespace isthmus::worker
