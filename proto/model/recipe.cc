#include "proto/model/recipe.h"

#include <algorithm>
#include <cmath>

namespace isthmus {

double LearningRate(const RecipeSpec& recipe, int64_t step) {
  const double peak = recipe.learning_rate();
  const int64_t warmup = recipe.warmup_steps();
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (recipe.schedule() == "constant") return peak;
  const double length = static_cast<double>(std::max<int64_t>(1, recipe.steps() - 1 - warmup));
  const double part = std::min(1.0, static_cast<double>(step - warmup) / length);
  const double low = recipe.min_learning_rate();
  if (recipe.schedule() == "linear") return peak + (low - peak) * part;
  return low + 0.5 * (peak - low) * (1 + std::cos(M_PI * part));
}

double LearningRate(const RecipeSpec& recipe, int64_t phase_start, int64_t step) {
  if (phase_start == 0) return LearningRate(recipe, step);
  RecipeSpec own = recipe;
  own.set_steps(recipe.steps() - phase_start);
  return LearningRate(own, step - phase_start);
}

double ClipScale(double clip_norm, double norm) {
  if (clip_norm <= 0 || norm <= clip_norm) return 1;
  return clip_norm / norm;
}

}  // namespace isthmus
