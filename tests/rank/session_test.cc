// Ranks as threads with a stage of exact arithmetic: whatever the cut and the schedule, the result
// is that of one stage, bit for bit.
#include "worker/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void RunWell(World* world) {
  for (const absl::Status& status : world->Run()) EXPECT_TRUE(status.ok()) << status;
}

struct Outcome {
  std::vector<double> losses, norms, validation;
  std::string weights;
};

Outcome RunWorld(const WorldShape& shape) {
  World world(MakePlan(shape));
  RunWell(&world);
  Outcome outcome;
  outcome.losses = world.last().losses();
  for (const StepRecord& r : world.observer(0).records())
    outcome.norms.push_back(r.gradient_norm());
  for (const StepRecord& r : world.last().records()) {
    if (r.has_validation_loss()) outcome.validation.push_back(r.validation_loss());
  }
  outcome.weights = world.Weights(shape.steps);
  return outcome;
}

void ExpectSame(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  EXPECT_EQ(a.validation, b.validation) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

class AnyCut : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(AnyCut, EqualsOneStage) {
  WorldShape shape;
  shape.eval_every = 2;
  shape.stages = 1;
  const Outcome one = RunWorld(shape);
  ASSERT_THAT(one.losses, SizeIs(shape.steps));
  ASSERT_THAT(one.validation, SizeIs(3));
  std::tie(shape.stages, shape.schedule) = GetParam();
  ExpectSame(RunWorld(shape), one, "first run");
  ExpectSame(RunWorld(shape), one, "second run");
}

INSTANTIATE_TEST_SUITE_P(Stages, AnyCut,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
                                            ::testing::Values("1f1b", "gpipe")));

TEST(Session, TheFakeNoticesAnotherSeed) {
  WorldShape shape;
  const Outcome one = RunWorld(shape);
  shape.seed = 2;
  EXPECT_NE(RunWorld(shape).losses, one.losses);
}

// F60: fewer micro-batches than stages.
TEST(Session, OneMicroBatchAndEightStages) {
  WorldShape shape;
  shape.global_batch = shape.micro_batch = 3;
  shape.stages = 1;
  const Outcome one = RunWorld(shape);
  shape.stages = 8;
  for (const char* schedule : {"1f1b", "gpipe"}) {
    shape.schedule = schedule;
    ExpectSame(RunWorld(shape), one, schedule);
  }
}

// The step's gradient is that of the mean over its tokens, however they are cut into micro-batches.
TEST(Session, MicroBatchSizeChangesNothing) {
  WorldShape shape;
  shape.micro_batch = 7;
  const Outcome whole = RunWorld(shape);
  for (int micro_batch : {1, 2, 3, 4, 6}) {
    shape.micro_batch = micro_batch;
    ExpectSame(RunWorld(shape), whole, absl::StrCat("micro-batch ", micro_batch));
  }
}

// F62: both directions full at once, with the smallest queues and windows there are.
TEST(Session, BothDirectionsSaturatedDoNotDeadlock) {
  WorldShape shape;
  shape.queue_limit = 1;
  shape.global_batch = 20;
  shape.micro_batch = 1;
  shape.steps = 4;
  std::vector<double> losses;
  for (int stages : {1, 2, 4}) {
    shape.stages = stages;
    MemoryLinkOptions link_options;
    link_options.window_bytes = 1;  // one frame at a time
    MemoryLinkHub hub(link_options);
    World::Options options;
    options.links = &hub;
    World world(MakePlan(shape), options);
    RunWell(&world);
    if (stages == 1) losses = world.last().losses();
    EXPECT_EQ(world.last().losses(), losses) << stages;
  }
}

TEST(Session, RecordsAndEventsTellTheWholeStory) {
  WorldShape shape;
  shape.stages = 3;
  shape.checkpoint_every = 4;
  World world(MakePlan(shape));
  RunWell(&world);
  for (int stage = 0; stage < 3; ++stage) {
    const std::vector<StepRecord> records = world.observer(stage).records();
    ASSERT_THAT(records, SizeIs(shape.steps));
    for (int step = 0; step < shape.steps; ++step) {
      const StepRecord& r = records[step];
      EXPECT_EQ(r.step(), step);
      EXPECT_EQ(r.rank(), stage);
      EXPECT_EQ(r.has_loss(), stage == 2);
      EXPECT_TRUE(r.committed());
      EXPECT_EQ(r.tokens(), 7 * 3);
      EXPECT_GE(r.step_s(), r.compute_s());
      EXPECT_EQ(r.directions_size(), 2);  // a boundary and the tied link, or two boundaries
    }
    std::vector<int> states;
    std::vector<int64_t> saved;
    for (const SessionEvent& e : world.observer(stage).events()) {
      if (e.state() == SessionEvent::PREPARED) {
        EXPECT_EQ(e.corpus_fingerprint(), stage == 1 ? 0u : 1007u);
      }
      if (e.state() == SessionEvent::CHECKPOINTED) {
        saved.push_back(e.step());
      } else {
        states.push_back(e.state());
      }
    }
    EXPECT_THAT(states,
                ElementsAre(SessionEvent::PREPARED, SessionEvent::RUNNING, SessionEvent::FINISHED));
    EXPECT_THAT(saved, ElementsAre(4, 6));
    EXPECT_EQ(world.session(stage).step(), shape.steps);
    EXPECT_GT(world.session(stage).progress(), 6 * 7);
  }
}

TEST(Session, BytesAreCountedAtTheFrame) {
  const WorldShape shape;
  World world(MakePlan(shape));
  RunWell(&world);
  int64_t raw = 0, wire = 0, tied = 0;
  for (const StepRecord& r : world.observer(0).records()) {
    for (const DirectionBytes& d : r.directions()) {
      if (d.link_id() == "tied") tied += d.raw_bytes();
      if (d.link_id() != "b0") continue;
      EXPECT_TRUE(d.forward());
      raw += d.raw_bytes();
      wire += d.wire_bytes();
    }
  }
  const int64_t samples = 6 * 7 + shape.eval_samples;
  int64_t tied_down = 0;
  for (const StepRecord& r : world.observer(shape.stages - 1).records()) {
    for (const DirectionBytes& d : r.directions())
      tied_down += d.link_id() == "tied" ? d.raw_bytes() : 0;
  }
  EXPECT_EQ(tied, tied_down);
  EXPECT_EQ(raw, samples * 3 * 4 * 4);
  EXPECT_GT(wire, raw);  // headers are counted
  EXPECT_LT(wire, raw + 6 * 5 * 200);
}

// They landed in a later step's record where they were still queued: those of a validation, above
// all, and the first stage's tied gradient.
TEST(Session, BytesOfAStepAreInItsRecord) {
  WorldShape shape;
  shape.steps = 30;
  shape.eval_every = 2;
  World world(MakePlan(shape));
  RunWell(&world);
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::vector<StepRecord> records = world.observer(stage).records();
    ASSERT_THAT(records, SizeIs(shape.steps));
    for (int64_t step = 0; step < shape.steps; ++step) {
      EXPECT_EQ(records[step].step(), step) << "in order";
      const int64_t samples = 7 + (step % 2 == 1 && stage == 0 ? shape.eval_samples : 0);
      for (const DirectionBytes& d : records[step].directions()) {
        if (d.link_id() == "tied") {
          EXPECT_EQ(d.raw_bytes(), records[0].directions(1).raw_bytes()) << step;
        } else {
          EXPECT_EQ(d.raw_bytes(), samples * 3 * 4 * 4) << "stage " << stage << " step " << step;
          EXPECT_GT(d.wire_bytes(), d.raw_bytes()) << "stage " << stage << " step " << step;
        }
      }
    }
  }
}

TEST(Session, FewerValidationSamplesThanAskedFor) {
  WorldShape shape;
  shape.eval_samples = 20;  // the corpus has 9
  shape.stages = 1;
  const Outcome one = RunWorld(shape);
  ASSERT_THAT(one.validation, SizeIs(1));
  shape.eval_samples = 9;
  EXPECT_EQ(RunWorld(shape).validation, one.validation);
  shape.eval_samples = 20;
  shape.stages = 4;
  ExpectSame(RunWorld(shape), one, "4 stages");
}

TEST(Session, NoValidationSamplesAtAll) {
  WorldShape shape;
  shape.stages = 3;
  FakeCorpus corpus(23, 0, shape.context, shape.vocabulary);
  World::Options options;
  options.corpus = &corpus;
  World world(MakePlan(shape), options);
  RunWell(&world);
  for (const StepRecord& r : world.last().records()) EXPECT_FALSE(r.has_validation_loss());
}

// F59: a validation pass leaves no trace in training.
TEST(Session, EvaluationChangesNothing) {
  WorldShape shape;
  shape.stages = 3;
  shape.eval_samples = 0;
  const Outcome without = RunWorld(shape);
  EXPECT_THAT(without.validation, IsEmpty());
  shape.eval_samples = 5;
  shape.eval_every = 1;
  Outcome with = RunWorld(shape);
  EXPECT_THAT(with.validation, SizeIs(shape.steps));
  with.validation.clear();
  ExpectSame(with, without, "evaluation every step");
}

TEST(Session, ResumesOnAnotherCut) {
  WorldShape shape;
  shape.steps = 12;
  shape.checkpoint_every = 5;
  MemoryStore store;
  World::Options options;
  options.store = &store;
  World whole(MakePlan(shape), options);
  RunWell(&whole);
  const std::vector<double> losses = whole.last().losses();
  const std::string weights = whole.Weights(12);
  ASSERT_THAT(store.complete_steps(), ElementsAre(5, 10, 12));
  for (int stages : {1, 2, 3, 8}) {
    shape.stages = stages;
    for (int64_t start : {5, 10}) {
      MemoryStore copy = store;
      options.store = &copy;
      World again(MakePlan(shape, 2, start), options);
      RunWell(&again);
      EXPECT_EQ(again.last().losses(), std::vector<double>(losses.begin() + start, losses.end()))
          << stages << " stages from " << start;
      EXPECT_EQ(again.Weights(12), weights) << stages << " stages from " << start;
    }
  }
}

TEST(Session, AMissingCheckpointIsNamed) {
  World world(MakePlan(WorldShape(), 2, 3));
  for (const absl::Status& status : world.Run()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("checkpoint 3"));
  }
}

TEST(Session, TiedGradientInFp16) {
  WorldShape shape;
  shape.stages = 3;
  const Outcome exact = RunWorld(shape);
  shape.tied = "fp16";  // holds the fake's integers exactly
  ExpectSame(RunWorld(shape), exact, "fp16");
}

}  // namespace
}  // namespace isthmus::worker
