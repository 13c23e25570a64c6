// What a run reads of its data when it goes on with another batch, or with another text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/data/data_position.h"
#include "tests/worker/world.h"
#include "worker/checkpoint/checkpoint.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSamples = 60;

// Remembers which samples were read.
class ReadCorpus : public FakeCorpus {
 public:
  explicit ReadCorpus(uint64_t seed) : FakeCorpus(kSamples, 0, 3, 11, seed) {}
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override {
    MutexLock lock(&mutex_);
    read_.push_back(id);
    return FakeCorpus::Read(id, tokens, targets);
  }
  std::vector<uint32_t> read() const {
    MutexLock lock(&mutex_);
    return read_;
  }

 private:
  mutable Mutex mutex_;
  mutable std::vector<uint32_t> read_ ABSL_GUARDED_BY(mutex_);
};

CheckpointState StateAt(MemoryStore* store, int64_t step) {
  FetchCheckpointRequest request;
  request.set_job_id("job-world");
  request.set_step(step);
  request.set_what("state");
  return ParseCheckpointState(store->FetchBytes(request).value(), step).value();
}

WorldShape Shape(int steps, int batch) {
  WorldShape shape;
  shape.stages = 1;  // which reads each sample once, for tokens and targets
  shape.steps = steps;
  shape.global_batch = batch;
  shape.eval_samples = 0;
  shape.checkpoint_every = steps;
  return shape;
}

absl::Status Train(const WorldShape& shape, uint64_t generation, int64_t start_step,
                   const DataPosition& at, MemoryStore* store, const Corpus* corpus) {
  Plan plan = MakePlan(shape, generation, start_step);
  *plan.mutable_data() = at;
  World::Options options;
  options.store = store;
  options.corpus = corpus;
  return World(plan, options).Run()[0];
}

// 4 steps of 6, 2 of 12, 4 of 3 are one pass of 60: each sample once.
TEST(SessionData, AnotherBatchReadsEachSampleOfThePassOnce) {
  MemoryStore store;
  const ReadCorpus text(7);
  DataPosition at;
  int steps = 0, generation = 0;
  for (const auto& [more, batch] : {std::pair(4, 6), std::pair(2, 12), std::pair(4, 3)}) {
    const absl::Status done =
        Train(Shape(steps + more, batch), ++generation, steps, at, &store, &text);
    ASSERT_TRUE(done.ok()) << done;
    steps += more;
    const int64_t before = at.samples();
    at = *StateAt(&store, steps).position;
    EXPECT_EQ(at.samples(), before + more * batch);
    EXPECT_EQ(at.epoch(), 0);
  }
  const std::vector<uint32_t> read = text.read();
  EXPECT_EQ(read.size(), static_cast<size_t>(kSamples));
  EXPECT_EQ(std::set<uint32_t>(read.begin(), read.end()).size(), static_cast<size_t>(kSamples));
}

TEST(SessionData, AnotherTextEndsTheSessionBeforeItsFirstStep) {
  MemoryStore store;
  const ReadCorpus text(7), other(8);
  ASSERT_TRUE(Train(Shape(3, 6), 1, 0, {}, &store, &text).ok());
  const DataPosition at = *StateAt(&store, 3).position;
  const absl::Status refused = Train(Shape(5, 6), 2, 3, at, &store, &other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("is not the one that checkpoint 3 was trained on"));
  EXPECT_TRUE(other.read().empty());
  const absl::Status accepted = Train(Shape(5, 6), 3, 3, NewPass(at), &store, &other);
  EXPECT_TRUE(accepted.ok()) << accepted;
  EXPECT_EQ(StateAt(&store, 5).position->epoch(), 1);
  EXPECT_EQ(StateAt(&store, 5).position->samples(), 30);
}

}  // namespace
}  // namespace isthmus::worker
