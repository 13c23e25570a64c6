#include "worker/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"
#include "worker/checkpoint/checkpoint_writer.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CorpusPosition SomeCorpus() {
  CorpusPosition corpus;
  corpus.position.emplace().set_epoch(2);
  corpus.position->set_offset(7);
  corpus.position->set_samples(35);
  corpus.fingerprint = 0xabc;
  corpus.contents = 0xdef;
  return corpus;
}

TEST(CheckpointState, TellsWhereTheRunStands) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape(), 9), 1).value();
  const CheckpointState state =
      ParseCheckpointState(CheckpointStateJson(StateOf(*plan, 5, 2, SomeCorpus())), 5).value();
  EXPECT_EQ(state.skipped_steps, 2);
  EXPECT_EQ(state.generation, 9u);
  EXPECT_EQ(state.stage, 1);
  EXPECT_EQ(state.stages, 2);
  EXPECT_EQ(state.job->SerializeAsString(), plan->job().SerializeAsString());
  EXPECT_EQ(state.position->SerializeAsString(), SomeCorpus().position->SerializeAsString());
  EXPECT_EQ(state.corpus_fingerprint, 0xabcu);
  EXPECT_EQ(state.corpus_contents, 0xdefu);
}

// A plan in the checkpoint's pass reads the checkpoint's text; one that begins a new pass, or a
// coordinator that knows no positions, may read another one.
TEST(CheckSameText, AnotherTextInTheMiddleOfAPassIsRefused) {
  Plan plan = MakePlan(WorldShape(), 9, 5);
  const auto check = [&](uint64_t fingerprint) {
    const auto session = SessionPlan::Make(plan, 0).value();
    return CheckSameText(*session, StateOf(*session, 5, 0, SomeCorpus()), fingerprint);
  };
  EXPECT_TRUE(check(1).ok());
  *plan.mutable_data() = *SomeCorpus().position;
  EXPECT_TRUE(check(0xabc).ok());
  const absl::Status other = check(1);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("(fingerprint 0000000000000001) is not the one"));
  EXPECT_THAT(other.message(), HasSubstr("--accept-changes"));
  plan.mutable_data()->set_epoch(3);
  plan.mutable_data()->set_offset(0);
  EXPECT_TRUE(check(1).ok());
}

// The two ends of a model: what is a file of the coordinator's, and what stays on this host.
TEST(KeepCheckpoint, IsAListOfFiles) {
  for (int rank : {0, 1}) {
    const auto plan = SessionPlan::Make(MakePlan(WorldShape(), 9), rank).value();
    const auto stage = FakeStages()(plan->plan(), rank).value();
    MemoryStore store;
    const CheckpointParts parts =
        KeepCheckpoint(*plan, &store, stage.get(), StateOf(*plan, 5, 0, {}), false).value();
    EXPECT_TRUE(parts.on_disk.ok());
    std::vector<std::string> put, kept;
    for (const CheckpointPart& part : parts.parts) {
      (part.put ? put : kept).push_back(part.header.file());
      EXPECT_TRUE(part.hashed);
      const std::string bytes = ReadAll(*part.bytes, part.header.file_bytes()).value();
      EXPECT_EQ(Hash64(bytes), part.header.checksum());
      EXPECT_EQ(store.kept()[absl::StrCat("5/", rank, "/", part.header.file())], bytes);
      EXPECT_EQ(part.header.stage(), rank);
      EXPECT_EQ(part.header.stages(), 2);
      EXPECT_EQ(part.header.generation(), 9u);
    }
    EXPECT_THAT(put, ElementsAre("weights.safetensors", "optimizer.safetensors", "state.json"));
    const std::string weights = WeightsOf(*stage);
    EXPECT_EQ(store.kept()[absl::StrCat("5/", rank, "/weights.safetensors")], weights);
    if (rank == 0) {
      EXPECT_THAT(kept, ElementsAre());
    } else {
      EXPECT_THAT(kept, ElementsAre(TiedFile(Hash64(weights))));
      EXPECT_EQ(store.kept()["5/1/" + kept.front()], TiedOf(*stage));
    }
  }
}

// A disk that takes nothing: the parts are the stage's, and nothing is lost.
TEST(KeepCheckpoint, WithoutADiskThePartsAreReadFromTheStage) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape(), 9), 1).value();
  const auto stage = FakeStages()(plan->plan(), 1).value();
  MemoryStore store;
  store.set_keep_error(absl::ResourceExhaustedError("there is room for 0 bytes"));
  const CheckpointParts parts =
      KeepCheckpoint(*plan, &store, stage.get(), StateOf(*plan, 5, 0, {}), false).value();
  EXPECT_EQ(parts.on_disk.message(), "there is room for 0 bytes");
  std::vector<std::string> put;
  for (const CheckpointPart& part : parts.parts) {
    put.push_back(part.header.file());
    EXPECT_FALSE(part.hashed);
    EXPECT_TRUE(part.put);
  }
  EXPECT_THAT(put, ElementsAre("weights.safetensors", "optimizer.safetensors", "state.json"));
  EXPECT_EQ(ReadAll(*parts.parts[0].bytes, 1 << 20).value(), WeightsOf(*stage));
  EXPECT_EQ(ReadAll(*parts.parts[1].bytes, 1 << 20).value(), OptimizerOf(*stage));
}

// What the phase after each of its checkpoints starts with are that checkpoint's weights.
class PhaseStore : public MemoryStore {
 public:
  absl::StatusOr<FetchedFiles> Fetch(const FetchCheckpointRequest& request) override {
    asked.push_back(request.what());
    FetchCheckpointRequest of_it = request;
    if (request.what() == "start") of_it.set_what("weights");
    return MemoryStore::Fetch(of_it);
  }
  std::vector<std::string> asked;
};

TEST(LoadCheckpoint, APhaseBeginsWithWeightsAlone) {
  WorldShape shape;
  PhaseStore store;
  RecordingObserver observer;
  for (int i = 0; i < 2; ++i) {
    const auto plan = SessionPlan::Make(MakePlan(shape), i).value();
    const auto stage = FakeStages()(plan->plan(), i).value();
    CheckpointWriter writer(*plan, &store, &observer);
    writer.Save(
        KeepCheckpoint(*plan, &store, stage.get(), StateOf(*plan, 3, 1, {}), false).value());
    EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  }
  const auto load = [&](int64_t start) {
    Plan plan = MakePlan(shape, 2, 3);
    plan.set_phase(1);
    plan.set_phase_start(start);
    const auto session = SessionPlan::Make(plan, 0).value();
    const auto stage = FakeStages()(session->plan(), 0).value();
    store.asked.clear();
    return LoadCheckpoint(*session, &store, stage.get())->skipped_steps;
  };
  EXPECT_EQ(load(3), 0) << "steps that the phase before skipped are none of this one's";
  EXPECT_THAT(store.asked, ElementsAre("start", "state"));
  EXPECT_EQ(load(2), 1);
  EXPECT_THAT(store.asked, ElementsAre("weights", "optimizer", "state"));
}

TEST(LoadCheckpoint, TakesWhatTheStageNames) {
  WorldShape shape;
  const auto saver = SessionPlan::Make(MakePlan(shape), 0).value();
  MemoryStore store;
  RecordingObserver observer;
  for (int i = 0; i < 2; ++i) {
    const auto plan = SessionPlan::Make(MakePlan(shape), i).value();
    const auto stage = FakeStages()(plan->plan(), i).value();
    CheckpointWriter writer(*plan, &store, &observer);
    writer.Save(
        KeepCheckpoint(*plan, &store, stage.get(), StateOf(*plan, 3, 1, {}), false).value());
    EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  }
  shape.stages = 1;
  shape.seed = 99;  // its own weights would differ
  const auto plan = SessionPlan::Make(MakePlan(shape, 2, 3), 0).value();
  const auto stage = FakeStages()(plan->plan(), 0).value();
  EXPECT_EQ(LoadCheckpoint(*plan, &store, stage.get())->skipped_steps, 1);
  shape.seed = 1;
  const auto same = FakeStages()(MakePlan(shape), 0).value();
  EXPECT_EQ(WeightsOf(*stage), WeightsOf(*same));
}

}  // namespace
}  // namespace isthmus::worker
