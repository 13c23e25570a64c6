// The learning rate of each step and the factor of gradient clipping. Thread: pure functions.
#ifndef ISTHMUS_PROTO_MODEL_RECIPE_H_
#define ISTHMUS_PROTO_MODEL_RECIPE_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace isthmus {

// Step is 0-based. Warm-up: peak * (step + 1) / warmup_steps, so the first step already learns.
// Then cosine or linear from the peak down to min_learning_rate, which the last step has, or
// constant at the peak.
double LearningRate(const RecipeSpec& recipe, int64_t step);
// Of a phase that began after `phase_start` steps: the schedule is its own, from its first step to
// recipe.steps.
double LearningRate(const RecipeSpec& recipe, int64_t phase_start, int64_t step);

// min(1, clip_norm / norm); 1 where clipping is off (clip_norm 0) or the norm is 0.
double ClipScale(double clip_norm, double norm);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_RECIPE_H_
