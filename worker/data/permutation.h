// A permutation of [0, count) that is computed place by place: no memory and no time before the
// first one, however large `count` is. A Feistel network over the next even power of two; what
// falls outside of [0, count) is put through it again until it lies inside. Part of the order of
// samples, so of every checkpoint: it may not change. Thread: pure functions.
#ifndef ISTHMUS_WORKER_DATA_PERMUTATION_H_
#define ISTHMUS_WORKER_DATA_PERMUTATION_H_

#include <cstdint>

namespace isthmus::worker {

// What stands at `place` of the permutation (seed, stream), 0 <= place < count <= 2^62.
uint64_t PermutedAt(uint64_t seed, uint64_t stream, uint64_t count, uint64_t place);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_DATA_PERMUTATION_H_
