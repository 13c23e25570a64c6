// The backward codec of a plan that takes over from the forward codec of its boundary.
#include "coordinator/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec_text.h"
#include "tests/coordinator/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(BoundCodec, KeptIsBoundToTheForwardCodecOfItsBoundary) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.generation = 3;
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(2);
  for (const char* name : {"lab", "home"}) *in.topology.add_nodes() = MakeNode(name, 20);
  JoinAll(&in.topology, 5, 20);
  in.job.mutable_compression()->set_forward("topk(0.25, global)");
  in.job.mutable_compression()->set_backward("kept(quant(8))");
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const CodecSpec& backward = planned->plan.links(0).backward();
  EXPECT_EQ(backward.ratio(), 0.25);
  EXPECT_TRUE(backward.global());
  EXPECT_EQ(FormatCodec(backward), "kept(quant(8))");
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("kept(quant(8)) at the places of topk(0.25, global) as the job "
                                 "says")));
  in.job.mutable_compression()->set_forward("quant(4)");
  const absl::Status refused = MakePlan(in).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("compression.backward"));
  in.job.mutable_compression()->set_forward("auto");
  EXPECT_THAT(MakePlan(in).status().message(), HasSubstr("compression.forward is 'auto'"));
}

}  // namespace
}  // namespace isthmus::coordinator
