#include "worker/link/prefetch_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/world.h"
#include "worker/link/codec_options.h"
#include "worker/link/inlet.h"

namespace isthmus::worker {
namespace {

class PrefetchOrderTest : public ::testing::Test {
 protected:
  PrefetchOrderTest() {
    shape_.stages = 3;
    shape_.steps = 9;  // of 7 samples in micro-batches of 2, 2, 2 and 1: two epochs of 4 steps
    shape_.forward = "delta(quant(3))";
    shape_.buffer_memory_bytes = 200;  // 8 samples of 24 bytes
    shape_.buffer_disk_bytes = 100000;
  }
  std::unique_ptr<PrefetchOrder> Make(int64_t train_samples, const char* directory = "/tmp",
                                      int64_t start_step = 0) {
    Plan plan = MakePlan(shape_, 1, start_step);
    plan.set_train_samples(train_samples);
    plan_ = SessionPlan::Make(plan, 1).value();
    const LinkPlan& link = *plan_->below();
    return PrefetchOrder::Make(*plan_, FrameHeader::ACTIVATION, link.forward(),
                               BoundaryCodecOptions(*plan_, link, link.forward(), true, directory));
  }
  // All ids of the steps from `step` to `end`.
  std::vector<uint32_t> Steps(int64_t step, int64_t end) {
    SampleOrder order(shape_.seed, plan_->plan().train_samples(), shape_.global_batch);
    std::vector<uint32_t> ids;
    for (; step < end; ++step) {
      const std::vector<uint32_t> more = order.Step(step);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
  }

  WorldShape shape_;
  std::unique_ptr<const SessionPlan> plan_;
};

TEST_F(PrefetchOrderTest, ForetellsTheRestOfTheStepAndTheNextOne) {
  const auto order = Make(30);
  ASSERT_NE(order, nullptr);
  EXPECT_EQ(order->First(), Steps(0, 1));
  for (int64_t step = 0; step < shape_.steps; ++step) {
    const std::vector<uint32_t> ids = Steps(step, std::min<int64_t>(step + 2, shape_.steps));
    for (int32_t micro = 0; micro < 4; ++micro) {
      const std::vector<uint32_t> after(ids.begin() + std::min(2 * micro + 2, 7), ids.end());
      EXPECT_EQ(order->After(step, micro), after) << "step " << step << ", " << micro;
    }
  }
}

TEST_F(PrefetchOrderTest, AResumedSessionBeginsWhereItIs) {
  const auto order = Make(30, "/tmp", 5);
  EXPECT_EQ(order->First(), Steps(5, 6));
}

TEST_F(PrefetchOrderTest, ForetellsNoMoreThanItsLimit) {
  shape_.global_batch = 100;
  const auto order = Make(300);
  const std::vector<uint32_t> ids = Steps(0, 1);
  EXPECT_EQ(order->First(), std::vector<uint32_t>(ids.begin(), ids.begin() + 64));
  EXPECT_EQ(order->After(0, 48).size(), 64u);  // 2 of this step, 62 of the next
  EXPECT_EQ(order->After(0, 48)[0], ids[98]);
}

TEST_F(PrefetchOrderTest, IsNotThereWhereThereIsNothingToReadAhead) {
  EXPECT_NE(Make(30), nullptr);
  EXPECT_EQ(Make(0), nullptr) << "not known how many samples";
  EXPECT_EQ(Make(30, ""), nullptr) << "no file";
  EXPECT_EQ(Make(8), nullptr) << "all of them fit in memory";
  shape_.forward = "quant(3)";
  EXPECT_EQ(Make(30), nullptr) << "no buffers";
}

}  // namespace
}  // namespace isthmus::worker
