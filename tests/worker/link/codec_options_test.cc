#include "worker/link/codec_options.h"

#include <gtest/gtest.h>

#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

// What stages on this daemon's host are going to take is no room for delta buffers.
TEST(CodecOptions, DeltaBuffersLeaveACardToTheStagesOfItsHost) {
  WorldShape shape;
  shape.stages = 3;
  Plan plan = MakePlan(shape);
  for (int r : {0, 1, 2}) plan.mutable_ranks(r)->set_memory_bytes(1000 << r);
  plan.mutable_ranks(2)->set_address("10.0.0.2:7072");  // beside rank 1
  const auto session = SessionPlan::Make(plan, 1).value();
  EXPECT_EQ(DeviceBufferBytes(*session, 2000 + 4000 + 800), 200);
  EXPECT_EQ(DeviceBufferBytes(*session, 2000 + 4000), 1) << "0 would be the codec's own choice";
  EXPECT_EQ(DeviceBufferBytes(*session, compress::Device::kCpu), 0);
}

}  // namespace
}  // namespace isthmus::worker
