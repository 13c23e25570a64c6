// The recorder over a store that can refuse: nothing that was true is lost, and who waits is told.
#include "coordinator/service/recorder.h"

#include <memory>
#include <thread>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/refusing_store.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;

class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest() : store_(Store::Open(scratch_.path()).value()) {}

  std::unique_ptr<Recorder> Make(absl::Duration every = absl::Milliseconds(1)) {
    return std::make_unique<Recorder>(&cores_, &store_, every, [this](const StoreBatch& batch) {
      for (const StoredJob& job : batch.jobs) stored_.push_back(job.id);
      made_room_.insert(made_room_.end(), batch.made_room.begin(), batch.made_room.end());
    });
  }
  void Add(const std::string& name, uint64_t number = 1) {
    JobSpec spec;
    spec.set_name(name);
    MutexLock lock(&cores_.mutex);
    ASSERT_TRUE(cores_.jobs.Add(name + "-1", number, spec, false, 77).ok());
  }
  std::vector<std::string> Jobs() {
    std::vector<std::string> ids;
    const StoreContents contents = store_.Load().value();
    for (const StoredJob& job : contents.jobs) ids.push_back(job.id);
    return ids;
  }

  TempDirectory scratch_;
  RefusingStore store_;
  Cores cores_{{}, {}, {}, {}};
  std::vector<std::string> stored_, made_room_;  // the recorder's thread
};

TEST_F(RecorderTest, SyncReturnsWhenWhatIsTrueIsOnDisk) {
  const auto recorder = Make(absl::Hours(1));
  recorder->Start();
  Add("bible");
  ASSERT_TRUE(recorder->Sync().ok());
  EXPECT_THAT(Jobs(), ElementsAre("bible-1"));
  recorder->Stop();
  EXPECT_THAT(stored_, ElementsAre("bible-1"));
}

TEST_F(RecorderTest, WhatTheDiskRefusesComesFirstWhenItTakesWritesAgain) {
  store_.full = true;
  const auto recorder = Make();
  Add("bible");
  recorder->Start();
  while (store_.refused < 3) std::this_thread::yield();
  Add("psalms");
  EXPECT_THAT(Jobs(), ElementsAre());
  store_.full = false;
  while (Jobs().size() < 2) std::this_thread::yield();
  recorder->Stop();
  EXPECT_THAT(stored_, ElementsAre("bible-1", "psalms-1"));
}

TEST_F(RecorderTest, StopWritesOnceMoreAndSendsAwayWhoWaits) {
  store_.full = true;
  const auto recorder = Make(absl::Hours(1));
  Add("bible");
  absl::Status waited;
  recorder->Start();
  std::thread waits([&] { waited = recorder->Sync(); });
  while (store_.refused == 0) std::this_thread::yield();
  store_.full = false;
  recorder->Stop();
  waits.join();
  EXPECT_TRUE(waited.ok() || absl::IsUnavailable(waited)) << waited;
  EXPECT_THAT(Jobs(), ElementsAre("bible-1"));
  EXPECT_TRUE(absl::IsUnavailable(recorder->Sync()));
}

TEST_F(RecorderTest, AJobThatMadeRoomIsToldApartFromOneThatWasRemoved) {
  const auto recorder = Make();
  for (int i = 0; i < kMaxJobs; ++i) {
    Add(absl::StrCat("job", i), i + 1);
    MutexLock lock(&cores_.mutex);
    ASSERT_TRUE(cores_.jobs.Stop(absl::StrCat("job", i, "-1"), true, SteadyNow()).ok());
  }
  {
    MutexLock lock(&cores_.mutex);
    ASSERT_TRUE(cores_.jobs.BeginRemove("job5-1").ok());
    cores_.jobs.EndRemove("job5-1", true);
  }
  Add("late", kMaxJobs + 1);
  Add("later", kMaxJobs + 2);
  recorder->Start();
  ASSERT_TRUE(recorder->Sync().ok());
  recorder->Stop();
  EXPECT_THAT(made_room_, ElementsAre("job0-1"));
  EXPECT_EQ(Jobs().size(), static_cast<size_t>(kMaxJobs));
}

TEST_F(RecorderTest, LoadBringsJobsAndDaemonsBack) {
  {
    const auto recorder = Make();
    Add("bible");
    isthmus::Register request;
    request.mutable_node()->set_id("n0");
    request.mutable_node()->set_name("lab");
    request.mutable_node()->set_address("h:1");
    MutexLock lock(&cores_.mutex);
    ASSERT_EQ(cores_.members.Register(request, 1, SteadyNow(), SteadyNow()).kind,
              RegisterDecision::kAccepted);
    recorder->Start();
  }
  const auto files = CheckpointStore::Open(scratch_.path() + "/checkpoints").value();
  Cores after{{}, {}, {}, {}};
  Recorder recorder(&after, &store_, absl::Hours(1), [](const StoreBatch&) {});
  ASSERT_TRUE(recorder.Load(files.get()).ok());
  MutexLock lock(&after.mutex);
  ASSERT_NE(after.jobs.Find("bible-1"), nullptr);
  ASSERT_NE(after.members.Find("n0"), nullptr);
  EXPECT_FALSE(after.members.Find("n0")->alive());
}

}  // namespace
}  // namespace isthmus::coordinator
