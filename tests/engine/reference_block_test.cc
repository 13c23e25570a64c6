#include "worker/engine/reference_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(ReferenceBlock, ASlowBlasIsNamedWithItsCure) {
  EXPECT_THAT(SlowBlasWarning(3e9), ::testing::HasSubstr("libopenblas0-pthread"));
  EXPECT_EQ(SlowBlasWarning(60e9), "");
}

}  // namespace
}  // namespace isthmus::engine
