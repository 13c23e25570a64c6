// The backward codec of a plan that takes over from the forward codec of its boundary.
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "proto/model/model_cost.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Three stages; `mbit` of every link, a fast one of a rack.
PlannerInput KeptInput(double mbit) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.generation = 3;
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(3);
  for (const char* name : {"lab", "home", "office"}) *in.topology.add_nodes() = MakeNode(name, 20);
  JoinAll(&in.topology, mbit, mbit > 1000 ? 0.01 : 20);
  in.job.mutable_compression()->set_forward("topk(0.25)");
  in.job.mutable_compression()->set_backward("kept");
  return in;
}

// Most micro-batches that a stage has sent up and not had back, by its action list.
int UnderWay(const RankPlan& stage) {
  int now = 0, most = 0;
  for (const Action& action : stage.train()) {
    if (action.op() == Action::SEND && action.what() == FrameHeader::ACTIVATION)
      most = std::max(most, ++now);
    if (action.op() == Action::RECV && action.what() == FrameHeader::GRADIENT) --now;
  }
  return most;
}

// Most whose activations a stage keeps.
int Held(const RankPlan& stage) {
  int now = 0, most = 0;
  for (const Action& action : stage.train()) {
    if (action.op() == Action::FWD) most = std::max(most, ++now);
    if (action.op() == Action::BWD) --now;
  }
  return most;
}

int64_t BytesWithoutIndices(const JobSpec& job, const RankPlan& stage, int stages) {
  const NodeInfo on_cpu;
  const int own = MicrosInFlight(job.strategy().schedule(), stages, stage.stage(), Micros(job));
  const auto bytes = [&](int micros) {
    return StageMemoryBytes(job.model(), stage.first_layer(), stage.end_layer(),
                            job.recipe().micro_batch(), micros);
  };
  return StageBytes(job, stages, stage.stage(), stage.first_layer(), stage.end_layer(), on_cpu) -
         bytes(own) + bytes(Held(stage));
}

// 1f1b's own count on fast links, more on slow ones, all with gpipe: the memory of both ends of
// each boundary has the indices of what the stage below has under way.
TEST(BoundCodec, TheIndicesOfAKeptAreInTheMemoryOfBothEnds) {
  const int64_t each = 4 * 4 * 128 * 64;  // bytes x samples x positions x kept of 256
  for (const auto& [schedule, mbit] :
       std::vector<std::pair<std::string, double>>{{"1f1b", 10000}, {"1f1b", 20}, {"gpipe", 20}}) {
    PlannerInput in = KeptInput(mbit);
    in.job.mutable_strategy()->set_schedule(schedule);
    const absl::StatusOr<PlannedJob> planned = MakePlan(in);
    ASSERT_TRUE(planned.ok()) << planned.status();
    const Plan& plan = planned->plan;
    ASSERT_EQ(plan.ranks_size(), 3);
    const int b0 = UnderWay(plan.ranks(0)), b1 = UnderWay(plan.ranks(1));
    EXPECT_EQ(b0, schedule == "gpipe" ? 8 : mbit > 1000 ? 3 : 5) << "3 are 1f1b's own";
    const int64_t indices[] = {b0 * each, (b0 + b1) * each, b1 * each};
    for (const RankPlan& stage : plan.ranks()) {
      EXPECT_EQ(stage.memory_bytes(),
                BytesWithoutIndices(in.job, stage, 3) + indices[stage.stage()])
          << schedule << " " << mbit << " Mbit/s, stage " << stage.stage();
    }
    EXPECT_THAT(plan.explanation(),
                Contains(HasSubstr(absl::StrCat(
                    "indices: b0's of topk(0.25), which kept needs, take ", FormatBytes(b0 * each),
                    " at each end (", b0, " micro-batches under way x 128 KiB); b1's"))));
  }
  PlannerInput other = KeptInput(20);
  other.job.mutable_compression()->set_backward("topk(0.25)");
  EXPECT_THAT(MakePlan(other)->plan.explanation(), Not(Contains(HasSubstr("indices: "))));
}

void FixStages(JobSpec* job) {
  for (const char* name : {"lab", "home", "office"}) job->mutable_strategy()->add_nodes(name);
  for (int i = 0; i < 3; ++i) job->mutable_strategy()->add_layers_per_stage(2);
}

// ef keeps what it lost of every sample of a step, lep of one micro-batch, each at its sender.
TEST(CodecMemory, ResidualsAreInTheMemoryOfTheSender) {
  PlannerInput in = KeptInput(10000);
  FixStages(&in.job);
  const auto codecs = [&](const char* forward, const char* backward) {
    in.job.mutable_compression()->set_forward(forward);
    in.job.mutable_compression()->set_backward(backward);
    return MakePlan(in);
  };
  const Plan without = codecs("quant(4)", "quant(4)")->plan;
  const Plan with = codecs("ef(quant(4))", "lep(quant(4))")->plan;
  const int64_t sample = 4 * 128 * 256;
  const int64_t more[] = {32 * sample, 32 * sample + 4 * sample, 4 * sample};
  for (int s = 0; s < 3; ++s)
    EXPECT_EQ(with.ranks(s).memory_bytes() - without.ranks(s).memory_bytes(), more[s]) << s;
  EXPECT_THAT(with.explanation(),
              Contains(HasSubstr("residuals: of ef(quant(4)) on boundary b0, 4.00 MiB on lab; of "
                                 "lep(quant(4)) on boundary b0, 512 KiB on home; of ef")));
  EXPECT_THAT(without.explanation(), Not(Contains(HasSubstr("residuals: "))));
  in.topology.mutable_nodes(0)->set_memory_bytes(with.ranks(0).memory_bytes());
  EXPECT_TRUE(MakePlan(in).ok()) << MakePlan(in).status();
  in.topology.mutable_nodes(0)->set_memory_bytes(with.ranks(0).memory_bytes() - 1);
  const absl::Status refused = MakePlan(in).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("memory: the residuals of ef(quant(4)) on boundary b0 "
                                           "need 4.00 MiB on daemon lab"));
}

TEST(BoundCodec, IndicesThatDoNotFitAreRefused) {
  PlannerInput in = KeptInput(10000);
  FixStages(&in.job);
  in.job.mutable_strategy()->set_schedule("gpipe");
  const int64_t need = MakePlan(in)->plan.ranks(1).memory_bytes();
  in.topology.mutable_nodes(1)->set_memory_bytes(need);
  EXPECT_TRUE(MakePlan(in).ok()) << MakePlan(in).status();
  in.topology.mutable_nodes(1)->set_memory_bytes(need - 1);
  const absl::Status refused = MakePlan(in).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("memory: the indices that kept on boundary b1 needs of "
                                           "the activations under way take 1.00 MiB"));
}

// The stage above holds the indices of what the one below has under way beyond 1f1b's own count.
TEST(BoundCodec, MoreUnderWayAreHeldBackByTheMemoryOfTheStageAbove) {
  PlannerInput in = KeptInput(20);
  FixStages(&in.job);
  const Plan free = MakePlan(in)->plan;
  in.topology.mutable_nodes(2)->set_memory_bytes(free.ranks(2).memory_bytes() - 1);
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(UnderWay(planned->plan.ranks(1)), UnderWay(free.ranks(1)) - 1);
  EXPECT_LE(planned->plan.ranks(2).memory_bytes(), in.topology.nodes(2).memory_bytes());
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("(the memory of office carries no more)")));
}

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
              Contains(HasSubstr("kept(quant(8)) at the indices of topk(0.25, global) as the job "
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
