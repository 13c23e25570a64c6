#include "proto/model/recipe.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

RecipeSpec Recipe(const char* schedule) {
  RecipeSpec r;
  r.set_steps(11);
  r.set_warmup_steps(2);
  r.set_learning_rate(1.0);
  r.set_min_learning_rate(0.2);
  r.set_schedule(schedule);
  return r;
}

TEST(LearningRate, WarmsUpFromTheFirstStep) {
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("cosine"), 0), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("cosine"), 1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("cosine"), 2), 1.0);
}

TEST(LearningRate, APhaseHasAScheduleOfItsOwn) {
  RecipeSpec late = Recipe("cosine");
  late.set_steps(late.steps() + 40);
  for (int64_t step = 0; step < 11; ++step)
    EXPECT_DOUBLE_EQ(LearningRate(late, 40, 40 + step), LearningRate(Recipe("cosine"), step));
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("linear"), 0, 4), 0.8);
}

TEST(LearningRate, EndsAtTheMinimum) {
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("cosine"), 6), 0.6);  // half of the way
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("cosine"), 10), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("cosine"), 99), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("linear"), 4), 0.8);
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("linear"), 10), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(Recipe("constant"), 10), 1.0);
}

TEST(LearningRate, OneStepAndNoWarmUp) {
  RecipeSpec r = Recipe("linear");
  r.set_steps(1);
  r.set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(r, 0), 1.0);
}

TEST(ClipScale, OnlyShrinks) {
  EXPECT_DOUBLE_EQ(ClipScale(1, 0.5), 1);
  EXPECT_DOUBLE_EQ(ClipScale(1, 4), 0.25);
  EXPECT_DOUBLE_EQ(ClipScale(1, 0), 1);
  EXPECT_DOUBLE_EQ(ClipScale(0, 100), 1);
}

}  // namespace
}  // namespace isthmus
