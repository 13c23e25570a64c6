#include "worker/indices_board.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(IndicesBoard, IndicesAreTakenOnceByStepAndMicroBatch) {
  IndicesBoard board(3);
  board.Put(7, 0, {1, 2});
  board.Put(7, 1, {3});
  board.Put(8, 0, {});
  EXPECT_THAT(*board.Take(7, 1), ElementsAre(3));
  EXPECT_THAT(*board.Take(7, 0), ElementsAre(1, 2));
  EXPECT_THAT(*board.Take(8, 0), IsEmpty());
  EXPECT_EQ(board.size(), 0u);
  for (const auto& [step, micro] : {std::pair{7, 0}, {8, 1}, {9, 0}}) {
    const absl::Status status = board.Take(step, micro).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("micro-batch " + std::to_string(micro) +
                                                         ", step " + std::to_string(step)));
  }
}

TEST(IndicesBoard, IsBounded) {
  IndicesBoard board(2);
  board.Put(1, 0, {1});
  EXPECT_DEATH(board.Put(1, 0, {1}), "check failed: first");
  board.Put(1, 1, {1});
  EXPECT_DEATH(board.Put(1, 2, {1}), "check failed: indices_.size");
  ASSERT_TRUE(board.Take(1, 0).ok());
  board.Put(1, 2, {1});
  EXPECT_EQ(board.size(), 2u);
}

TEST(IndicesBoard, TheLimitIsWhatTheScheduleHasUnderWay) {
  WorldShape shape;  // 4 micro-batches a step
  shape.stages = 3;
  for (const auto& [schedule, stage, limit] :
       {std::tuple{"gpipe", 0, 4u}, {"gpipe", 1, 4u}, {"1f1b", 0, 3u}, {"1f1b", 1, 2u}}) {
    shape.schedule = schedule;
    EXPECT_EQ(IndicesBoard::LimitOf(*SessionPlan::Make(MakePlan(shape), stage).value()), limit)
        << schedule << ", stage " << stage;
  }
}

TEST(IndicesBoard, OutletAndInletMayUseItAtOnce) {
  constexpr int kMicros = 2000;
  IndicesBoard board(kMicros);
  std::thread outlet([&] {
    for (uint32_t m = 0; m < kMicros; ++m) {
      const std::vector<uint32_t> indices = {m, m + 1};
      board.Put(1, static_cast<int>(m), indices);
    }
  });
  for (uint32_t m = 0; m < kMicros; ++m) {
    absl::StatusOr<std::vector<uint32_t>> indices;
    do {
      indices = board.Take(1, static_cast<int>(m));
    } while (!indices.ok());
    EXPECT_THAT(*indices, ElementsAre(m, m + 1));
  }
  outlet.join();
  EXPECT_EQ(board.size(), 0u);
}

}  // namespace
}  // namespace isthmus::worker
