#include "worker/session_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> LinksOf(const SessionPlan& plan) {
  std::vector<std::string> ids;
  for (const LinkPlan* link : plan.links()) ids.push_back(link->id());
  return ids;
}

TEST(SessionPlan, SeesItsLinksAndGroups) {
  WorldShape shape;
  shape.stages = 3;
  const auto first = SessionPlan::Make(MakePlan(shape), 0).value();
  EXPECT_TRUE(first->embeds() && first->reads_data() && !first->has_head());
  EXPECT_EQ(first->below(), nullptr);
  EXPECT_EQ(first->above()->id(), "b0");
  EXPECT_THAT(LinksOf(*first), ElementsAre("b0", "tied"));
  EXPECT_THAT(first->groups(), ElementsAre(0));
  EXPECT_EQ(first->group_link(2).id(), "tied");
  const auto middle = SessionPlan::Make(MakePlan(shape), 1).value();
  EXPECT_FALSE(middle->reads_data());
  EXPECT_THAT(LinksOf(*middle), ElementsAre("b1", "b0")) << "from the top down, as all open them";
  EXPECT_EQ(middle->index_of(*middle->above()), 1);
  EXPECT_THAT(middle->groups(), IsEmpty());
  EXPECT_EQ(middle->DescribeLink(*middle->above()), "link b1 with stage 2 (node-2, 10.0.0.3:7071)");
  shape.stages = 1;
  const auto only = SessionPlan::Make(MakePlan(shape), 0).value();
  EXPECT_TRUE(only->embeds() && only->has_head());
  EXPECT_THAT(LinksOf(*only), IsEmpty());
}

TEST(SessionPlan, KnowsWhetherAPhaseBegins) {
  Plan plan = MakePlan(WorldShape(), 2, 3);  // from checkpoint 3
  EXPECT_FALSE(SessionPlan::Make(plan, 0).value()->begins_phase());
  EXPECT_TRUE(SessionPlan::Make(plan, 0).value()->goes_on());
  plan.set_phase(1);
  plan.set_phase_start(3);
  EXPECT_TRUE(SessionPlan::Make(plan, 0).value()->begins_phase());
  EXPECT_FALSE(SessionPlan::Make(plan, 0).value()->goes_on());
  plan.set_phase_start(2);
  EXPECT_FALSE(SessionPlan::Make(plan, 0).value()->begins_phase());
  EXPECT_TRUE(SessionPlan::Make(plan, 0).value()->goes_on());
  plan.set_phase_start(4);
  EXPECT_THAT(SessionPlan::Make(plan, 0).status().message(),
              HasSubstr("it starts at step 3 of phase 2, which begins after 4"));
  plan.set_phase_start(3);
  plan.set_from_checkpoint(false);
  EXPECT_FALSE(SessionPlan::Make(plan, 0).ok());
}

TEST(SessionPlan, CountsMicroBatches) {
  const auto plan =
      SessionPlan::Make(MakePlan(WorldShape()), 0).value();  // 7 samples, 2 a micro-batch
  EXPECT_EQ(plan->micros(), 4);
  EXPECT_EQ(plan->samples(0), 2);
  EXPECT_EQ(plan->samples(3), 1);
  EXPECT_EQ(plan->eval_micros(), 3);
  EXPECT_EQ(plan->tokens_per_step(), 21);
}

TEST(SessionPlan, KnowsWhenToEvaluateAndSave) {
  WorldShape shape;
  shape.steps = 5;
  shape.eval_every = 2;
  shape.checkpoint_every = 3;
  const auto plan = SessionPlan::Make(MakePlan(shape), 0).value();
  std::string evals, saves;
  for (int step = 0; step < 5; ++step) {
    evals += plan->EvalAfter(step) ? "E" : ".";
    saves += plan->CheckpointAfter(step) ? "S" : ".";
  }
  EXPECT_EQ(evals, ".E.EE");  // and at the end
  EXPECT_EQ(saves, "..S..");  // the end is the vote's
}

TEST(SessionPlan, DeadlinesAllowForWhatComesBetween) {
  WorldShape shape;
  shape.eval_every = 3;
  shape.step_ms = 100;
  Plan made = MakePlan(shape);
  made.mutable_deadlines()->set_first_step_ms(500);
  made.mutable_deadlines()->set_drain_ms(1000);
  const auto plan = SessionPlan::Make(made, 0).value();
  EXPECT_EQ(plan->timeout(0), absl::Milliseconds(500));
  EXPECT_EQ(plan->timeout(1), absl::Milliseconds(100));
  EXPECT_EQ(plan->timeout(2),
            absl::Milliseconds(175));  // 3 validation micro-batches beside 4 of training
  EXPECT_EQ(plan->timeout(3), absl::Milliseconds(175));
  EXPECT_EQ(plan->timeout(4), absl::Milliseconds(100));
  made.set_start_step(4);
  made.set_from_checkpoint(true);
  EXPECT_EQ(SessionPlan::Make(made, 0).value()->timeout(4), absl::Milliseconds(1500));
}

TEST(SessionPlan, RefusesWhatCannotRun) {
  const std::pair<const char*, std::function<void(Plan*)>> cases[] = {
      {"a deadline is not set", [](Plan* p) { p->mutable_deadlines()->clear_step_ms(); }},
      {"it starts at step 7 of 6", [](Plan* p) { p->set_start_step(7); }},
      {"stage 0 has no link above", [](Plan* p) { p->mutable_links()->DeleteSubrange(0, 1); }},
      {"tied group of stage 0 is missing", [](Plan* p) { p->clear_groups(); }},
      {"there is no link to rank 0 for tied", [](Plan* p) { p->mutable_links()->RemoveLast(); }},
      {"boundary b0 joins ranks 0 and 2", [](Plan* p) { p->mutable_links(0)->set_upper(2); }},
      {"boundary b0 joins ranks 0 and 0", [](Plan* p) { p->mutable_links(0)->set_upper(0); }},
      {"stage 0 holds layers 0 to 0", [](Plan* p) { p->mutable_ranks(0)->set_end_layer(0); }},
      {"group tied: the plan has 2 ranks, none is 5",
       [](Plan* p) { p->mutable_groups(0)->set_ranks(1, 5); }},
      {"group tied: rank 0 is in it twice", [](Plan* p) { p->mutable_groups(0)->set_ranks(1, 0); }},
      {"group tied: its tensors have no size", [](Plan* p) { p->mutable_groups(0)->clear_rows(); }},
      {"the codec delta(quant(3)) can't be used in a group",
       [](Plan* p) {
         *p->mutable_groups(0)->mutable_contribution() = ParseCodec("delta(quant(3))").value();
       }},
      {"evaluation codec of b0 keeps state",
       [](Plan* p) {
         *p->mutable_links(0)->mutable_evaluation() = ParseCodec("delta(quant(3))").value();
       }},
      {"b0: ", [](Plan* p) { p->mutable_links(0)->mutable_forward()->set_kind(CodecSpec::QUANT); }},
      {"predict on b0 needs token ids",
       [](Plan* p) {
         *p->mutable_links(0)->mutable_backward() = ParseCodec("predict(quant(3))").value();
       }},
      {"the autoencoder of b0 is not on its forward side",
       [](Plan* p) {
         *p->mutable_links(0)->mutable_backward() = ParseCodec("autoencoder(2)").value();
       }},
      {"b0: kept sends gradients at the indices that the forward codec kept, and none keeps none",
       [](Plan* p) { *p->mutable_links(0)->mutable_backward() = ParseCodec("kept").value(); }},
      {"the kept of b0 is not on its backward side",
       [](Plan* p) { *p->mutable_links(0)->mutable_evaluation() = ParseCodec("kept").value(); }},
      {"the kept of b0 is not on its backward side",
       [](Plan* p) { *p->mutable_links(0)->mutable_forward() = ParseCodec("kept").value(); }},
      {"b0: kept is not bound to the forward codec topk(0.5)",
       [](Plan* p) {
         *p->mutable_links(0)->mutable_forward() = ParseCodec("topk(0.5)").value();
         *p->mutable_links(0)->mutable_backward() = ParseCodec("kept").value();
       }},
      {"the codec kept can't be used in a group",
       [](Plan* p) { *p->mutable_groups(0)->mutable_contribution() = ParseCodec("kept").value(); }},
      {"is sent and not received", [](Plan* p) { p->mutable_ranks(1)->clear_eval(); }},
      {"validation lists hold 3",
       [](Plan* p) { p->mutable_job()->mutable_recipe()->set_eval_samples(7); }},
      {"the plan can't be run",
       [](Plan* p) { p->mutable_ranks(1)->mutable_train()->RemoveLast(); }},
      {"the batch has no size",
       [](Plan* p) { p->mutable_job()->mutable_recipe()->set_micro_batch(0); }},
      {"the model has no size", [](Plan* p) { p->mutable_job()->mutable_model()->clear_hidden(); }},
  };
  for (const auto& [message, change] : cases) {
    Plan plan = MakePlan(WorldShape());
    change(&plan);
    const absl::Status status = SessionPlan::Make(plan, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_FALSE(SessionPlan::Make(MakePlan(WorldShape()), 2).ok());
  EXPECT_FALSE(SessionPlan::Make(MakePlan(WorldShape()), -1).ok());
}

TEST(SessionPlan, AnEpilogueHasACodecThatMayMissGradients) {
  Plan plan = MakePlan(WorldShape());
  LinkPlan* link = plan.mutable_links(0);
  *link->mutable_forward() = ParseCodec("topk(0.5)").value();
  *link->mutable_backward() = BindBackward(link->forward(), ParseCodec("kept").value()).value();
  EXPECT_TRUE(SessionPlan::Make(plan, 0).ok());
  link->set_epilogue(true);
  EXPECT_THAT(std::string(SessionPlan::Make(plan, 0).status().message()),
              HasSubstr("b0: kept can't code the gradients of an epilogue alone"));
}

}  // namespace
}  // namespace isthmus::worker
