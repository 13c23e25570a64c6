#include "worker/engine/reference_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/model/model_cost.h"

namespace isthmus::engine {
namespace {

TEST(ReferenceBlock, MeasuresSomethingPositive) {
  EngineOptions options;
  options.threads = 1;
  const auto block = MeasureReferenceBlock(options, absl::ZeroDuration());
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_GT(block->forward_s, 0);
  EXPECT_GT(block->backward_s, 0);
  EXPECT_GT(block->forward_flops, 1e9);
  EXPECT_GT(block->product_flops_per_s, 0);
}

TEST(ReferenceBlock, EndsEarlyWhenItIsTold) {
  EngineOptions options;
  options.threads = 1;
  int asked = 0;
  const auto block =
      MeasureReferenceBlock(options, absl::InfiniteDuration(), [&] { return ++asked == 2; });
  EXPECT_TRUE(absl::IsCancelled(block.status())) << block.status();
}

// Some 140 GFLOP, so that the launches of a block, each of some microseconds, hide behind it.
TEST(ReferenceBlock, AGpuHasALargerOne) {
  const PartCost cpu = BlockCost(ReferenceModel(false), kReferenceSamples),
                 gpu = BlockCost(ReferenceModel(true), kReferenceSamples);
  EXPECT_LT(cpu.forward_flops, 2e9);
  EXPECT_GT(gpu.forward_flops, 1e11);
  EXPECT_EQ(ReferenceModel(true).hidden() % ReferenceModel(true).heads(), 0);
  EngineOptions options{"cuda:0"};
  const auto block = MeasureReferenceBlock(options, absl::ZeroDuration());
  if (!block.ok()) GTEST_SKIP() << block.status();
  EXPECT_EQ(block->forward_flops, gpu.forward_flops);
  EXPECT_GT(block->forward_flops / block->forward_s, 1e13) << "more than launches";
}

TEST(ReferenceBlock, ASlowBlasIsNamedWithItsCure) {
  EXPECT_THAT(SlowBlasWarning(3e9), ::testing::HasSubstr("libopenblas0-pthread"));
  EXPECT_EQ(SlowBlasWarning(60e9), "");
}

}  // namespace
}  // namespace isthmus::engine
