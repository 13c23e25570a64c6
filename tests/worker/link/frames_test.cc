#include "worker/link/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "proto/codec/codec_text.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

class FramesTest : public ::testing::Test {
 protected:
  std::unique_ptr<const SessionPlan> PlanOf(const WorldShape& shape, int stage, int64_t start = 0) {
    return SessionPlan::Make(MakePlan(shape, 3, start), stage).value();
  }

  Frame GoodActivation(const SessionPlan& plan) {
    Frame frame;
    FrameHeader& h = frame.header;
    h.set_kind(FrameHeader::ACTIVATION);
    h.set_step(5);
    h.set_micro(3);  // the last one: 1 of 7 samples
    h.add_sample_ids(17);
    for (int64_t n : {1, 3, 4}) h.add_shape(n);
    h.set_codec(CodecId(plan.below()->forward()));
    frame.payload = std::string(1 * 3 * 4 * 4, 'x');
    SealFrame(plan.plan(), &frame);
    return frame;
  }
};

TEST_F(FramesTest, AGoodFramePasses) {
  const auto plan = PlanOf(WorldShape(), 1);
  const ExpectedFrame expected{FrameHeader::ACTIVATION, 5, 3};
  EXPECT_TRUE(CheckFrame(*plan, *plan->below(), expected, GoodActivation(*plan)).ok());
  EXPECT_EQ(MaxPayloadBytes(*plan, *plan->below(), expected), 48);
}

TEST_F(FramesTest, EveryFieldIsUnderTheChecksum) {
  const auto plan = PlanOf(WorldShape(), 1);
  const std::function<void(Frame*)> changes[] = {
      [](Frame* f) { f->header.set_job_id("other"); },
      [](Frame* f) { f->header.set_generation(4); },
      [](Frame* f) { f->header.set_step(6); },
      [](Frame* f) { f->header.set_micro(2); },
      [](Frame* f) { f->header.set_kind(FrameHeader::GRADIENT); },
      [](Frame* f) { f->header.set_sample_ids(0, 18); },
      [](Frame* f) { f->header.add_sample_ids(17); },
      [](Frame* f) { f->header.set_shape(0, 2); },
      [](Frame* f) { f->header.set_codec(1); },
      [](Frame* f) { f->header.set_state_version(9); },
      [](Frame* f) { f->header.set_buffer_hash(9); },
      [](Frame* f) { f->header.set_payload_bytes(47); },
      [](Frame* f) { f->header.mutable_vote(); },
      [](Frame* f) { f->header.mutable_vote()->set_norm_sq(1); },
      [](Frame* f) { f->payload[7] ^= 1; },
      [](Frame* f) { f->payload.pop_back(); },
  };
  for (const auto& change : changes) {
    Frame frame = GoodActivation(*plan);
    change(&frame);
    const absl::Status status =
        CheckFrame(*plan, *plan->below(), {FrameHeader::ACTIVATION, 5, 3}, frame);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << frame.header.ShortDebugString();
  }
}

TEST_F(FramesTest, ASealedFrameMayStillBeTheWrongOne) {
  const auto plan = PlanOf(WorldShape(), 1);
  const ExpectedFrame expected{FrameHeader::ACTIVATION, 5, 3};
  Frame frame = GoodActivation(*plan);
  frame.header.set_micro(2);
  SealFrame(plan->plan(), &frame);
  absl::Status status = CheckFrame(*plan, *plan->below(), expected, frame);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("activation of micro-batch 2, step 5 came where the "
                                          "activation of micro-batch 3, step 5 was due"));

  frame = GoodActivation(*plan);
  Plan stale = plan->plan();
  stale.set_generation(2);
  SealFrame(stale, &frame);
  status = CheckFrame(*plan, *plan->below(), expected, frame);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("generation 2 where generation 3 runs"));

  frame = GoodActivation(*plan);
  frame.header.set_codec(1);
  SealFrame(plan->plan(), &frame);
  EXPECT_EQ(CheckFrame(*plan, *plan->below(), expected, frame).code(),
            absl::StatusCode::kInvalidArgument);

  frame = GoodActivation(*plan);
  frame.header.set_shape(0, 2);
  frame.header.add_sample_ids(4);
  SealFrame(plan->plan(), &frame);
  EXPECT_EQ(CheckFrame(*plan, *plan->below(), expected, frame).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(FramesTest, ControlFramesCarryNothingElse) {
  const auto plan = PlanOf(WorldShape(), 0);
  Frame frame;
  frame.header.set_kind(FrameHeader::VOTE);
  SealFrame(plan->plan(), &frame);
  const ExpectedFrame expected{FrameHeader::VOTE, 0, 0};
  EXPECT_FALSE(CheckFrame(*plan, *plan->above(), expected, frame).ok());  // no vote in it
  frame.header.mutable_vote()->set_finite(true);
  SealFrame(plan->plan(), &frame);
  EXPECT_TRUE(CheckFrame(*plan, *plan->above(), expected, frame).ok());
  frame.payload = "x";
  SealFrame(plan->plan(), &frame);
  EXPECT_FALSE(CheckFrame(*plan, *plan->above(), expected, frame).ok());
  EXPECT_EQ(MaxPayloadBytes(*plan, *plan->above(), expected), 0);
}

std::string Sequence(FrameSequence* sequence, int most = 100) {
  std::string text;
  for (int i = 0; i < most; ++i) {
    const std::optional<ExpectedFrame> e = sequence->Next();
    if (!e.has_value()) return text + "end";
    const char* letters = "AG.VDELH.CS";
    text += std::string(1, letters[e->kind]) + std::to_string(e->step) +
            (e->kind <= 1 || e->kind == 5 ? "." + std::to_string(e->micro) : "") + " ";
  }
  return text;
}

TEST_F(FramesTest, SequencesFollowThePlan) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 2;
  shape.global_batch = 3;
  shape.eval_samples = 2;
  shape.forward = "delta(quant(3))";
  shape.check_buffers = true;
  const auto middle = PlanOf(shape, 1);
  FrameSequence below(*middle, *middle->below());
  EXPECT_EQ(Sequence(&below), "A0.0 A0.1 H0 D0 A1.0 A1.1 H1 D1 E1.0 end");
  FrameSequence above(*middle, *middle->above());
  EXPECT_EQ(Sequence(&above), "G0.0 G0.1 V0 G1.0 G1.1 V1 end");
  const auto first = PlanOf(shape, 0);
  FrameSequence tied(*first, first->group_link(2));
  EXPECT_EQ(Sequence(&tied), "C0 C1 end");
}

TEST_F(FramesTest, SequencesStartAtTheCheckpointAndEndAtAStop) {
  WorldShape shape;
  shape.steps = 50;
  shape.global_batch = 2;
  shape.eval_every = 1;
  const auto last = PlanOf(shape, 1, 7);
  FrameSequence below(*last, *last->below());
  EXPECT_EQ(Sequence(&below, 6), "A7.0 D7 E7.0 E7.1 E7.2 A8.0 ");
  EXPECT_EQ(Sequence(&below, 1), "D8 ");
  Vote stop;
  stop.set_stop(true);
  below.Decided(stop);
  EXPECT_EQ(Sequence(&below), "end");
}

// Two stages, three micro-batches: one pair of passes of the next step comes before the vote.
TEST_F(FramesTest, SequencesOfOverlappedSteps) {
  WorldShape shape;
  shape.schedule = "overlap";
  shape.steps = 4;
  shape.global_batch = 6;
  shape.checkpoint_every = 3;
  shape.eval_samples = 0;
  const auto last = PlanOf(shape, 1);
  FrameSequence below(*last, *last->below());
  EXPECT_FALSE(below.asks());
  EXPECT_EQ(Sequence(&below, 7), "A0.0 A0.1 A0.2 A1.0 A1.1 A1.2 D0 ");
  Vote drain;
  drain.set_drain(true);
  below.Decided(drain);  // step 1
  EXPECT_EQ(Sequence(&below), "D1 A2.0 A2.1 A2.2 D2 A3.0 A3.1 A3.2 D3 end");
  const auto first = PlanOf(shape, 0);
  FrameSequence above(*first, *first->above());
  EXPECT_TRUE(above.asks());
  above.Ask([](int64_t step) { return std::optional<bool>(step == 1); });
  EXPECT_EQ(Sequence(&above),
            "G0.0 G0.1 G0.2 G1.0 V0 G1.1 G1.2 V1 G2.0 G2.1 G2.2 V2 G3.0 G3.1 G3.2 V3 end");
  FrameSequence ended(*first, *first->above());
  ended.Ask([](int64_t) { return std::nullopt; });
  EXPECT_EQ(Sequence(&ended), "G0.0 G0.1 G0.2 end");
}

// An empty micro-batch whose vote says stop ends a validation pass; no other tensor has a vote.
TEST_F(FramesTest, AValidationPassMayBeLeft) {
  WorldShape shape;
  shape.eval_every = 1;
  const auto plan = PlanOf(shape, 1);
  Frame frame;
  FrameHeader& h = frame.header;
  h.set_kind(FrameHeader::EVAL_ACTIVATION);
  h.set_step(0);
  h.set_micro(1);
  for (int64_t n : {0, 3, 4}) h.add_shape(n);
  h.set_codec(CodecId(plan->below()->evaluation()));
  h.mutable_vote()->set_stop(true);
  SealFrame(plan->plan(), &frame);
  const ExpectedFrame expected{FrameHeader::EVAL_ACTIVATION, 0, 1};
  EXPECT_TRUE(CheckFrame(*plan, *plan->below(), expected, frame).ok());
  Frame activation = GoodActivation(*plan);
  activation.header.mutable_vote()->set_stop(true);
  SealFrame(plan->plan(), &activation);
  EXPECT_THAT(
      CheckFrame(*plan, *plan->below(), {FrameHeader::ACTIVATION, 5, 3}, activation).message(),
      HasSubstr("a tensor and a vote"));

  FrameSequence sequence(*plan, *plan->below());
  std::optional<ExpectedFrame> next = sequence.Next();
  while (next->kind != FrameHeader::EVAL_ACTIVATION) next = sequence.Next();
  EXPECT_EQ(next->step, 0);
  sequence.LeaveEval();
  next = sequence.Next();
  EXPECT_EQ(next->kind, FrameHeader::ACTIVATION);
  EXPECT_EQ(next->step, 1);
  sequence.LeaveEval();  // in a step it says nothing
  EXPECT_EQ(sequence.Next()->micro, 1);
}

}  // namespace
}  // namespace isthmus::worker
