// Counter-based random numbers: the value at (seed, stream, index) is a pure function of the three,
// the same on every host. Used for weights, sample order and stochastic rounding. Thread: pure
// functions.
#ifndef ISTHMUS_BASE_RNG_H_
#define ISTHMUS_BASE_RNG_H_

#include <cstdint>

namespace isthmus {

// SplitMix64's finaliser.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t index) {
  return Mix64(Mix64(Mix64(seed) ^ stream) ^ index);
}

// Uniform in [0, 1) with 53 bits.
constexpr double RandomUniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return static_cast<double>(RandomBits(seed, stream, index) >> 11) * 0x1.0p-53;
}

// Uniform in [0, n), n > 0, without modulo bias worth naming (n < 2^32).
constexpr uint64_t RandomBelow(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
  return static_cast<uint64_t>(
      (static_cast<unsigned __int128>(RandomBits(seed, stream, index)) * n) >> 64);
}

}  // namespace isthmus

#endif  // ISTHMUS_BASE_RNG_H_
