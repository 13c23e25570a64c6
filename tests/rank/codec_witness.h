// Whether what crossed the boundaries of a run is what its codecs make of it: each tensor is put
// through a pair of the compress room alone, without links, frames and threads, and compared with
// what the session on the other side got. Thread: one owner.
#ifndef ISTHMUS_TESTS_RANK_CODEC_WITNESS_H_
#define ISTHMUS_TESTS_RANK_CODEC_WITNESS_H_

#include "tests/worker/world.h"

namespace isthmus::worker {

// Runs `shape` with a StageWatch and reports each difference as a failure of the test. With `lossy`
// at least one tensor of each direction has to differ from what was sent, so that a codec that is
// left out is noticed.
void ExpectTheCodecsTensors(const WorldShape& shape, bool lossy_forward, bool lossy_backward);

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_RANK_CODEC_WITNESS_H_
