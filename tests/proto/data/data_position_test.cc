#include "proto/data/data_position.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

DataPosition At(int64_t epoch, int64_t offset, int64_t samples) {
  DataPosition at;
  at.set_epoch(epoch);
  at.set_offset(offset);
  at.set_samples(samples);
  return at;
}

#define EXPECT_AT(position, epoch_, offset_, samples_) \
  do {                                                 \
    const DataPosition at = (position);                \
    EXPECT_EQ(at.epoch(), epoch_);                     \
    EXPECT_EQ(at.offset(), offset_);                   \
    EXPECT_EQ(at.samples(), samples_);                 \
  } while (false)

TEST(DataPosition, AStepThatDoesNotFitBeginsTheNextEpoch) {
  EXPECT_AT(Advance(At(0, 0, 0), 23, 5, 0), 0, 0, 0);
  EXPECT_AT(Advance(At(0, 0, 0), 23, 5, 4), 0, 20, 20);
  EXPECT_AT(Advance(At(0, 0, 0), 23, 5, 5), 1, 5, 25);
  EXPECT_AT(Advance(At(0, 0, 0), 23, 5, 8), 1, 20, 40);
  EXPECT_AT(Advance(At(0, 0, 0), 23, 5, 9), 2, 5, 45);
  EXPECT_AT(Advance(At(3, 20, 80), 23, 3, 1), 3, 23, 83);  // a smaller batch takes the rest as well
  EXPECT_AT(NextStep(At(0, 20, 20), 23, 5), 1, 0, 20);
  EXPECT_AT(NextStep(At(0, 18, 18), 23, 5), 0, 18, 18);
}

TEST(DataPosition, InOneGoOrStepByStep) {
  for (int64_t batch : {1, 3, 7, 23}) {
    DataPosition one_by_one = At(1, 9, 32);
    for (int64_t steps = 0; steps < 60; ++steps) {
      const DataPosition at_once = Advance(At(1, 9, 32), 23, batch, steps);
      EXPECT_EQ(at_once.SerializeAsString(), one_by_one.SerializeAsString())
          << "batch " << batch << ", " << steps << " steps";
      one_by_one = Advance(one_by_one, 23, batch, 1);
    }
  }
}

TEST(DataPosition, WhereTheTextIsUnknownOrHasShrunk) {
  EXPECT_AT(Advance(At(2, 6, 50), 0, 5, 3), 2, 6, 65);
  EXPECT_AT(Advance(At(2, 40, 90), 23, 5, 1), 3, 5, 95);
}

TEST(DataPosition, OfAPlan) {
  Plan plan;
  plan.mutable_job()->mutable_recipe()->set_global_batch(5);
  plan.set_start_step(6);
  EXPECT_AT(StartOfData(plan, 23), 1, 10, 30);  // of an older coordinator
  EXPECT_EQ(SamplesBefore(plan, 8), 40);
  *plan.mutable_data() = At(4, 2, 100);
  EXPECT_AT(StartOfData(plan, 23), 4, 2, 100);
  EXPECT_EQ(SamplesBefore(plan, 8), 110);
  EXPECT_AT(NewPass(plan.data()), 5, 0, 100);
}

}  // namespace
}  // namespace isthmus
