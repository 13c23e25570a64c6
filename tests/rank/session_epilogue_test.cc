// compression.backward_when epilogue: which gradients go by the backward codec, and that a resume
// is bit-identical.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "proto/codec/codec_text.h"
#include "tests/rank/tap_links.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/world.h"
#include "worker/session_plan.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;

WorldShape Shape(const std::string& backward) {
  WorldShape shape;
  shape.stages = 3;
  shape.micro_batch = 1;  // 7 micro-batches
  shape.constant_rate = true;
  shape.eval_samples = 0;
  shape.backward = backward;
  shape.epilogue = true;
  return shape;
}

struct Ran {
  std::vector<double> losses;
  TappedFrames frames;
  std::string weights;
};

Ran RunWorld(const Plan& plan, MemoryStore* store = nullptr, MemoryStates* states = nullptr) {
  TapOpener links;
  World::Options options;
  options.links = &links;
  options.store = store;
  options.codec_states = states;
  World world(plan, options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  return {world.last().losses(), links.Frames(), world.Weights(plan.job().recipe().steps())};
}

// Micro-batches whose gradients went by `codec` over `link`, in one step.
std::vector<int> CodedIn(const TappedFrames& frames, const std::string& link, int64_t step,
                         const std::string& codec) {
  std::vector<int> micros;
  for (const auto& [name, frame] : frames) {
    if (frame.link == link && frame.kind == FrameHeader::GRADIENT && frame.step == step &&
        frame.codec == CodecId(ParseCodec(codec).value()))
      micros.push_back(frame.micro);
  }
  return micros;
}

TEST(SessionEpilogue, TheLastGradientsOfAStepAloneAreCoded) {
  for (const char* codec : {"quant(4)", "lep(lowrank(1))", "ef(topk(0.5))"}) {
    const WorldShape shape = Shape(codec);
    const Ran ran = RunWorld(MakePlan(shape));
    for (int64_t step = 0; step < shape.steps; ++step) {
      EXPECT_THAT(CodedIn(ran.frames, "b0", step, codec), ElementsAre(5, 6)) << codec;
      EXPECT_THAT(CodedIn(ran.frames, "b1", step, codec), ElementsAre(6)) << codec;
      EXPECT_THAT(CodedIn(ran.frames, "b0", step, "none"), ElementsAre(0, 1, 2, 3, 4)) << codec;
      EXPECT_THAT(CodedIn(ran.frames, "b1", step, "none"), SizeIs(6)) << codec;
    }
    WorldShape all = shape;
    all.epilogue = false;
    EXPECT_THAT(CodedIn(RunWorld(MakePlan(all)).frames, "b0", 0, codec), SizeIs(7));
  }
}

// Other schedules: what the receiver's list says.
TEST(SessionEpilogue, GpipeAndFewMicroBatches) {
  WorldShape shape = Shape("quant(4)");
  shape.schedule = "gpipe";
  EXPECT_THAT(CodedIn(RunWorld(MakePlan(shape)).frames, "b0", 0, "quant(4)"),
              ElementsAre(1, 2, 3, 4, 5, 6));
  shape = Shape("quant(4)");
  shape.micro_batch = 7;  // one micro-batch: nothing to hide behind, nothing to gain
  EXPECT_THAT(CodedIn(RunWorld(MakePlan(shape)).frames, "b0", 0, "none"), ElementsAre(0));
}

// What is not coded arrives as it is: a lossless codec for the rest changes nothing at all.
TEST(SessionEpilogue, GradientsBesideTheEpilogueAreExact) {
  WorldShape plain = Shape("none");
  plain.epilogue = false;
  const Ran exact = RunWorld(MakePlan(plain));
  const Ran same = RunWorld(MakePlan(Shape("fp16")));  // holds the fake's integers exactly
  EXPECT_EQ(same.losses, exact.losses);
  EXPECT_EQ(same.weights, exact.weights);
  EXPECT_NE(RunWorld(MakePlan(Shape("quant(2)"))).weights, exact.weights);
}

TEST(SessionEpilogue, AResumeIsBitIdentical) {
  for (const char* codec : {"lep(lowrank(1))", "ef(quant(2))", "quant(3, stochastic) | zstd"}) {
    WorldShape shape = Shape(codec);
    shape.steps = 12;
    shape.checkpoint_every = 4;
    const Ran whole = RunWorld(MakePlan(shape));
    MemoryStore store;
    MemoryStates states;
    WorldShape first = shape;
    first.steps = 8;
    const Ran before = RunWorld(MakePlan(first), &store, &states);
    const Ran after = RunWorld(MakePlan(shape, 2, 8), &store, &states);
    TappedFrames frames = before.frames;
    frames.insert(after.frames.begin(), after.frames.end());
    ASSERT_THAT(frames, SizeIs(whole.frames.size()));
    for (const auto& [name, frame] : whole.frames)
      EXPECT_EQ(frames.at(name).hash, frame.hash) << codec << ": " << name;
    EXPECT_EQ(after.weights, whole.weights) << codec;
    MemoryStates lost;  // the test can fail
    EXPECT_THAT(RunWorld(MakePlan(shape, 3, 8), &store, &lost).weights, Not(whole.weights))
        << codec;
  }
}

// Of boundaries whose gradients go by lep, what the errors were: a record a step of the stage that
// sends them.
TEST(SessionEpilogue, LazyErrorsAreInTheRecords) {
  for (const bool epilogue : {false, true}) {
    WorldShape shape = Shape("lep(lowrank(1))");
    shape.epilogue = epilogue;
    World::Options options;
    options.make_lanes = [](int) -> LaneFactory {  // as a daemon's on a CPU
      return []() -> absl::StatusOr<std::unique_ptr<DeviceLane>> { return nullptr; };
    };
    World world(MakePlan(shape), options);
    for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
    for (int stage = 0; stage < 3; ++stage) {
      for (const StepRecord& record : world.observer(stage).records()) {
        if (stage == 0) {
          EXPECT_THAT(record.lazy_errors(), SizeIs(0));
          continue;
        }
        // In the first step of an epilogue of one gradient no error has met another one yet.
        if (record.step() == 0 && epilogue) continue;
        ASSERT_THAT(record.lazy_errors(), SizeIs(1)) << stage << " step " << record.step();
        const LazyError& error = record.lazy_errors(0);
        EXPECT_EQ(error.link_id(), stage == 1 ? "b0" : "b1");
        EXPECT_LE(std::abs(error.cosine()), 1 + 1e-6);
        EXPECT_GT(error.relative_error(), 0);
        EXPECT_LE(error.relative_error(), 1 + 1e-6);
      }
    }
  }
  const WorldShape plain = Shape("lowrank(1)");
  World world(MakePlan(plain));
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(world.observer(1).records().back().lazy_errors(), SizeIs(0));
}

// Both ends derive the epilogue from the plan; one that was told otherwise is found out.
TEST(SessionEpilogue, ThePeersMustAgree) {
  const Plan plan = MakePlan(Shape("quant(4)"));
  const auto lower = SessionPlan::Make(plan, 0).value();
  const auto upper = SessionPlan::Make(plan, 1).value();
  for (int micro = 0; micro < 7; ++micro) {
    EXPECT_EQ(lower->CodesGradient(*lower->above(), micro), micro >= 5);
    EXPECT_EQ(upper->CodesGradient(*upper->below(), micro), micro >= 5);
    EXPECT_EQ(upper->CodesGradient(*upper->above(), micro), micro >= 6);
  }
}

}  // namespace
}  // namespace isthmus::worker
