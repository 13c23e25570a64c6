// Local checkpoints: what a session keeps on its hosts' disks alone, between those that are stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void RunWell(World* world) {
  for (const absl::Status& status : world->Run()) EXPECT_TRUE(status.ok()) << status;
}

// Of which every stage keeps its state.json, the last file of a part.
std::set<int64_t> KeptSteps(const World& world, const MemoryStore& store) {
  std::map<int64_t, int> parts;
  for (const auto& [name, bytes] : store.kept()) {
    int64_t step = -1;
    if (absl::SimpleAtoi(name.substr(0, name.find('/')), &step) &&
        name.substr(name.rfind('/') + 1) == "state.json")
      ++parts[step];
  }
  std::set<int64_t> steps;
  for (const auto& [step, count] : parts) {
    if (count == world.plan().ranks_size()) steps.insert(step);
  }
  return steps;
}

WorldShape Shape() {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 7;
  shape.local_every = 1;
  return shape;
}

TEST(SessionKept, EveryStepIsKeptAndTheLastOneAloneIsStored) {
  World world(MakePlan(Shape()));
  RunWell(&world);
  EXPECT_THAT(KeptSteps(world, world.store()), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(world.store().complete_steps(), ElementsAre(7));
  WorldShape shape = Shape();
  shape.local_every = 0;
  World without(MakePlan(shape));
  RunWell(&without);
  EXPECT_THAT(KeptSteps(without, without.store()), ElementsAre(7));
  EXPECT_EQ(world.Losses(), without.Losses());
}

// A resume of it finds what it finds in a stored one.
TEST(SessionKept, ItsPartsAreThoseOfAStoredOne) {
  WorldShape shape = Shape();
  World local(MakePlan(shape));
  RunWell(&local);
  shape.local_every = 0;
  shape.checkpoint_every = 1;
  World stored(MakePlan(shape));
  RunWell(&stored);
  int files = 0;
  for (const auto& [name, bytes] : stored.store().kept()) {
    if (name.find("state.json") != std::string::npos) continue;  // it names the job
    EXPECT_EQ(local.store().kept()[name], bytes) << name;
    ++files;
  }
  EXPECT_GE(files, 7 * 3 * 2);
}

TEST(SessionKept, TheStepsBetweenTwoAreAtMostAsManyAsTheJobSays) {
  WorldShape shape = Shape();
  shape.steps = 12;
  shape.local_every = 3;
  shape.checkpoint_every = 5;
  World world(MakePlan(shape));
  RunWell(&world);
  EXPECT_THAT(KeptSteps(world, world.store()), ElementsAre(3, 5, 6, 9, 10, 12));
  EXPECT_THAT(world.store().complete_steps(), ElementsAre(5, 10, 12));
}

TEST(SessionKept, StepsThatOverlapAreDrainedForThem) {
  WorldShape shape = Shape();
  shape.schedule = "overlap";
  shape.local_every = 2;
  World local(MakePlan(shape));
  RunWell(&local);
  EXPECT_THAT(KeptSteps(local, local.store()), ElementsAre(2, 4, 6, 7));
  shape.local_every = 0;
  shape.checkpoint_every = 2;
  World stored(MakePlan(shape));
  RunWell(&stored);
  EXPECT_EQ(local.Losses(), stored.Losses());
}

TEST(SessionKept, ReplicasThatMakeStepsByThemselvesKeepThemWhereTheyAgree) {
  WorldShape shape = Shape();
  shape.stages = 2;
  shape.replicas = {4, 3};
  shape.local_steps = 3;
  World world(MakePlan(shape));
  RunWell(&world);
  std::set<int64_t> steps;
  for (const auto& [name, bytes] : world.store().kept())
    steps.insert(std::stoll(name.substr(0, name.find('/'))));
  EXPECT_THAT(steps, ElementsAre(3, 6, 7));
}

// A checkpoint that is on its way for long holds up the next stored one, and no local one.
TEST(SessionKept, ASlowStoreDoesNotDelayThem) {
  WorldShape shape = Shape();
  shape.checkpoint_every = 2;
  shape.step_ms = 1200;
  MemoryStore store;
  store.CloseGate();
  World::Options options;
  options.store = &store;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 0 && step == 6 && operation == "forward") store.OpenGate();
        return StageFault{};
      });
  World world(MakePlan(shape), options);
  RunWell(&world);
  EXPECT_THAT(KeptSteps(world, store), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(store.complete_steps().front(), 2);
}

// All are of one step or there are none: where one disk refuses, the others need not write either.
TEST(SessionKept, ADiskThatRefusesOneIsLeftAloneAndTheJobGoesOn) {
  MemoryStore store;
  World::Options options;
  options.store = &store;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 1 && step == 3 && operation == "apply")
          store.set_keep_error(absl::ResourceExhaustedError("no room"));
        if (stage == 1 && step == 5 && operation == "forward") store.set_keep_error({});
        return StageFault{};
      });
  World world(MakePlan(Shape()), options);
  RunWell(&world);
  const std::set<int64_t> steps = KeptSteps(world, store);
  EXPECT_EQ(steps.count(2), 1u);
  EXPECT_EQ(steps.count(5) + steps.count(6), 0u) << "it is not tried at once again";
  EXPECT_EQ(steps.count(7), 1u) << "the last one is no local one";
  EXPECT_THAT(store.complete_steps(), ElementsAre(7));
}

// Keeps what is copied, once it is open.
class Buddy : public PartSink {
 public:
  absl::Status Put(const PutCheckpointHeader& header, const ByteSource& part) override {
    MutexLock lock(&mutex_);
    while (closed_) opened_.Wait(&mutex_);
    copies_[header.step()].insert(absl::StrCat(header.stage(), "/", header.file()));
    return header.local() ? absl::OkStatus() : absl::InternalError("it is stored");
  }
  void Open() {
    MutexLock lock(&mutex_);
    closed_ = false;
    opened_.SignalAll();
  }
  std::map<int64_t, std::set<std::string>> copies() const {
    MutexLock lock(&mutex_);
    return copies_;
  }

 private:
  mutable Mutex mutex_;
  CondVar opened_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = true;
  std::map<int64_t, std::set<std::string>> copies_ ABSL_GUARDED_BY(mutex_);
};

// The newest step that the buddies have whole is never one that the others have thrown away.
TEST(SessionKept, CopiesOfOneStepAreThereBeforeTheNextOneIsKept) {
  Buddy buddy;
  World::Options options;
  options.buddy = &buddy;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 0 && step == 5 && operation == "forward") buddy.Open();
        return StageFault{};
      });
  World world(MakePlan(Shape()), options);
  RunWell(&world);
  const std::set<int64_t> kept = KeptSteps(world, world.store());
  EXPECT_EQ(kept.count(1), 1u);
  for (int64_t step = 2; step <= 5; ++step)
    EXPECT_EQ(kept.count(step), 0u) << step << ": copies of 1 were under way";
  const auto copies = buddy.copies();
  for (const auto& [step, files] : copies) EXPECT_EQ(files.size(), 3u * 3) << step;
  EXPECT_EQ(copies.count(1), 1u);
  EXPECT_EQ(copies.count(7), 0u) << "the last one is stored";
}

// A session that ends does not wait for a copy that stands.
TEST(SessionKept, AnEndCancelsTheCopyThatIsUnderWay) {
  Buddy buddy;  // closed
  World::Options options;
  options.buddy = &buddy;
  options.cancel_copies = [&buddy] { buddy.Open(); };
  World world(MakePlan(Shape()), options);
  RunWell(&world);
  EXPECT_THAT(world.store().complete_steps(), ElementsAre(7));
}

class RefusingBuddy : public PartSink {
 public:
  absl::Status Put(const PutCheckpointHeader&, const ByteSource&) override {
    ++puts;
    return absl::ResourceExhaustedError("no room");
  }
  std::atomic<int> puts{0};
};

TEST(SessionKept, ABuddyThatRefusesOneIsLeftAloneAndTheOwnDiskIsNot) {
  RefusingBuddy buddy;
  World::Options options;
  options.buddy = &buddy;
  WorldShape shape = Shape();
  shape.steps = 40;
  World world(MakePlan(shape), options);
  RunWell(&world);
  EXPECT_EQ(buddy.puts, 3) << "one of each stage";
  EXPECT_GE(KeptSteps(world, world.store()).size(), 10u);
}

}  // namespace
}  // namespace isthmus::worker
