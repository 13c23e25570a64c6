// Where in its data a run is. Each epoch has a permutation of the training samples
// (worker/data/corpus.h) and a step takes the next recipe.global_batch of it. A position is counted
// in samples, so that a run may go on with another batch exactly where it was: nothing left out,
// nothing read twice. Thread: pure functions.
#ifndef ISTHMUS_PROTO_DATA_DATA_POSITION_H_
#define ISTHMUS_PROTO_DATA_DATA_POSITION_H_

#include <cstdint>
#include <string>

#include "proto/plan.pb.h"

namespace isthmus {

// After `steps` steps of `batch` samples. A step whose samples do not fit into what is left of an
// epoch begins the next one: the remainder is left out (no sample twice in a step).
// 0 < batch <= train_samples, or the number of samples is not known (0): then `samples` alone goes
// on.
DataPosition Advance(const DataPosition& from, int64_t train_samples, int64_t batch, int64_t steps);

// Where the step after it begins: in the next epoch where `batch` samples no longer fit.
DataPosition NextStep(const DataPosition& at, int64_t train_samples, int64_t batch);

// Before plan.start_step. A plan of an older coordinator has no position: it counts steps of its
// own batch from the first one on.
DataPosition StartOfData(const Plan& plan, int64_t train_samples);

// Samples that were consumed before `step` of `plan`, those of skipped steps among them.
int64_t SamplesBefore(const Plan& plan, int64_t step);

// The same count in the pass after `at`, whose first sample comes next.
DataPosition NewPass(const DataPosition& at);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_DATA_DATA_POSITION_H_
