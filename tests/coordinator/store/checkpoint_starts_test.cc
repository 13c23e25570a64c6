// What the next phase of a job starts with, as a part of the checkpoint that ended the one before.
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/store/checkpoint_store_fixture.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointStartsTest : public CheckpointStoreTest {
 protected:
  static absl::Status Make(CheckpointStore* store, int64_t step, float value,
                           const std::string& made = "coalesce", uint64_t generation = 1) {
    ASSIGN_OR_RETURN(const std::string dir, store->BeginStart("job-1"));
    const std::string weights = dir + "/model.safetensors";
    std::ofstream(weights, std::ios::binary) << Tensor("small", value);
    CheckpointManifest start;
    start.job_id = "job-1";
    start.step = step;
    start.generation = generation;
    start.made = made;
    return store->FinishStart(start, weights);
  }
  std::string Start(int64_t step) { return absl::StrCat(JobDir(), "/", StepName(step), "/start"); }
};

TEST_F(CheckpointStartsTest, IsReadByItsOwnName) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  EXPECT_EQ(store->HasStart("job-1", 10, "coalesce").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Value(store.get(), 10, "small", "start").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Make(store.get(), 10, 7).ok());
  EXPECT_TRUE(store->HasStart("job-1", 10, "coalesce").ok());
  EXPECT_EQ(store->HasStart("job-1", 10, "decoalesce").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Value(store.get(), 10, "small", "start").value(), 7);
  EXPECT_EQ(Value(store.get(), 10, "h.0.w").value(), 1) << "the checkpoint is what it was";
  EXPECT_EQ(Value(store.get(), 10, "h.0.w", "start").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store->Verify("job-1", 10, nullptr).ok());
  ASSERT_TRUE(Make(store.get(), 10, 8, "otherwise").ok());
  EXPECT_EQ(Value(Open().get(), 10, "small", "start").value(), 8)
      << "made anew, and over a restart";
}

TEST_F(CheckpointStartsTest, GoesWithItsCheckpoint) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  ASSERT_TRUE(Make(store.get(), 10, 7).ok());
  PutAll(store.get(), 10, 2, 2);  // trained again by a later generation
  EXPECT_EQ(store->GenerationOf("job-1", 10), 2u);
  EXPECT_EQ(store->HasStart("job-1", 10, "coalesce").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Make(store.get(), 10, 7).code(), absl::StatusCode::kFailedPrecondition)
      << "of the checkpoint that was";
  EXPECT_EQ(Make(store.get(), 20, 7).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->GenerationOf("job-1", 20), 0u);
}

TEST_F(CheckpointStartsTest, DamageIsSeenAndIsNotTheCheckpoints) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  ASSERT_TRUE(Make(store.get(), 10, 7).ok());
  std::ofstream(Start(10) + "/weights.safetensors", std::ios::app) << "x";
  EXPECT_THAT(std::string(store->HasStart("job-1", 10, "coalesce").message()),
              HasSubstr("weights.safetensors is damaged"));
  EXPECT_EQ(Value(store.get(), 10, "small", "start").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store->Verify("job-1", 10, nullptr).ok());
  ASSERT_TRUE(Make(store.get(), 10, 7).ok());
  EXPECT_TRUE(store->HasStart("job-1", 10, "coalesce").ok());
  fs::remove(Start(10) + "/manifest.json");
  EXPECT_EQ(store->HasStart("job-1", 10, "coalesce").code(), absl::StatusCode::kNotFound);
}

// `isthmus checkpoints JOB --verify` called such a checkpoint sound.
TEST_F(CheckpointStartsTest, AVerifiedListReadsIt) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  ASSERT_TRUE(Make(store.get(), 10, 7).ok());
  const auto damage = [&](bool verify) {
    const auto list = store->List("job-1", {1, 0}, verify, nullptr);
    EXPECT_TRUE(list.ok() && list->size() == 1) << list.status();
    return list.ok() && list->size() == 1 ? list->front().damage() : "no list";
  };
  EXPECT_EQ(damage(true), "");
  std::ofstream(Start(10) + "/weights.safetensors", std::ios::app) << "x";
  EXPECT_EQ(damage(false), "") << "its sizes are not looked at without --verify";
  EXPECT_THAT(damage(true), HasSubstr("start, which the next phase begins with: "));
  EXPECT_THAT(damage(true), HasSubstr("weights.safetensors is damaged"));
  EXPECT_THAT(damage(true), HasSubstr("--resume --step 10) makes it anew"));
  EXPECT_EQ(store->DamageOf("job-1", 10), "") << "retention counts the checkpoint as sound";
  ASSERT_TRUE(Make(store.get(), 10, 7).ok());
  EXPECT_EQ(damage(true), "");
}

TEST_F(CheckpointStartsTest, AProcessKilledAtAnyInstantLeavesAllOrNothing) {
  for (const char* point : {"start written", "start published"}) {
    auto plain = Open();
    PutAll(plain.get(), 10, 1);
    plain.reset();
    struct Killed {};
    CheckpointOptions options;
    options.fault = [point](const char* at) {
      if (std::string(at) == point) throw Killed();
    };
    EXPECT_THROW(Make(Open(options).get(), 10, 7).IgnoreError(), Killed);
    auto store = Open();
    EXPECT_EQ(store->HasStart("job-1", 10, "coalesce").ok(),
              std::string(point) == "start published");
    EXPECT_FALSE(fs::exists(JobDir() + "/making-start"));
    EXPECT_TRUE(store->Verify("job-1", 10, nullptr).ok());
    fs::remove_all(Start(10));
  }
}

TEST_F(CheckpointStartsTest, WhatALaterPhaseNeedsIsKept) {
  auto store = Open();
  for (int64_t step : {10, 20, 30, 40, 50}) PutAll(store.get(), step, step);
  store->Trim("job-1", 2, {10, 40});
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(10, 40, 50));
  store->Trim("job-1", 2);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(40, 50));
}

}  // namespace
}  // namespace isthmus::coordinator
