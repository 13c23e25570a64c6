// What CheckpointStore lets go, and what it never does.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "coordinator/store/checkpoint_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/store/checkpoint_store_fixture.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CheckpointStoreTest, TheLastKAreKept) {
  auto store = Open();
  for (int64_t step : {10, 20, 30, 40}) PutAll(store.get(), step, step);
  store->Trim("job-1", 2);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(30, 40));
  EXPECT_FALSE(fs::exists(JobDir() + "/step-00000020"));
  EXPECT_FALSE(fs::exists(JobDir() + "/removed-20"));
  EXPECT_THAT(Open()->Steps("job-1"), ElementsAre(30, 40));
}

TEST_F(CheckpointStoreTest, WhatAKillLeftOfAnOldCheckpointGoesAtTheNextStart) {
  auto store = Open();
  for (int64_t step : {10, 20}) PutAll(store.get(), step, step);
  store.reset();
  fs::rename(JobDir() + "/step-00000010", JobDir() + "/removed-10");
  fs::remove(JobDir() + "/removed-10/manifest.json");
  EXPECT_THAT(Open()->Steps("job-1"), ElementsAre(20));
  EXPECT_FALSE(fs::exists(JobDir() + "/removed-10"));
}

// A run that went on from step 20 of {10, 20, 30, 40}: what it stores is the newest, whatever the
// steps of the run before.
TEST_F(CheckpointStoreTest, ARunThatWentOnFromAnOlderOneIsTheNewer) {
  auto store = Open();
  for (int64_t step : {10, 20, 30, 40}) PutAll(store.get(), step, 1, 1);
  EXPECT_EQ(store->Head("job-1", 1, 40), 40);
  EXPECT_EQ(store->Head("job-1", 2, 20), 20) << "generation 2 has stored nothing yet";
  EXPECT_EQ(store->Head("job-1", 2, 25), 40) << "there is no checkpoint 25";
  EXPECT_EQ(store->Head("none", 2, 25), -1);
  PutAll(store.get(), 25, 2, 2);
  EXPECT_EQ(store->Newest("job-1"), 25);
  EXPECT_EQ(store->Head("job-1", 2, 20), 25);
  EXPECT_EQ(store->Head("job-1", 1, 40), 25) << "stored after the last word of the job";
  store->Trim("job-1", 4);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(10, 20, 25, 40)) << "30 is left behind";
  store->Trim("job-1", 2);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(20, 25));
  store->Trim("job-1", 0);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(25));
}

// Of a killed run they stayed until the coordinator's next start.
TEST_F(CheckpointStoreTest, PartsThatCannotBecomeWholeGo) {
  auto store = Open();
  const auto partial = [&](int64_t step, uint64_t generation) {
    return fs::exists(absl::StrCat(JobDir(), "/partial-000000", step, "-g", generation, "-of2"));
  };
  for (const char* file : kFiles) Put(store.get(), 20, 0, file, 1).value();
  Put(store.get(), 20, 1, kFiles[0], 1).value();
  Put(store.get(), 30, 0, kFiles[0], 1).value();
  EXPECT_TRUE(partial(20, 1)) << "stage 0 has done its part; stage 1 may";
  Put(store.get(), 30, 1, kFiles[0], 1).value();
  EXPECT_FALSE(partial(20, 1)) << "stage 1 has given it up";
  EXPECT_TRUE(partial(30, 1));
  store->DropPartials("job-1", 1);
  EXPECT_TRUE(partial(30, 1));
  store->DropPartials("job-1", 2);
  EXPECT_FALSE(partial(30, 1)) << "generation 2 has begun";
  Put(store.get(), 40, 0, kFiles[0], 1).value();
  PutAll(store.get(), 50, 1);
  EXPECT_FALSE(partial(40, 1)) << "a later one is whole";
  EXPECT_EQ(Value(store.get(), 50, "h.0.w").value(), 1);
}

TEST_F(CheckpointStoreTest, AJobIsRemovedWithAllItHas) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  Put(store.get(), 20, 0, kFiles[0], 1).value();
  fs::create_directories(scratch_.path() + "/checkpoints/other-7");
  EXPECT_THAT(store->Jobs(), ElementsAre("job-1", "other-7"));
  FetchCheckpointRequest request;
  request.set_job_id("job-1");
  request.set_step(10);
  request.set_what("weights");
  int64_t step = 0;
  auto reader = store->Read(request, nullptr, &step).value();
  const absl::Status refused = store->RemoveJob("job-1").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("are being read (1 transfer)"));
  reader.reset();
  EXPECT_GT(store->RemoveJob("job-1").value(), 400);
  EXPECT_THAT(store->Jobs(), ElementsAre("other-7"));
  EXPECT_THAT(store->Steps("job-1"), IsEmpty());
  EXPECT_EQ(store->RemoveJob("job-1").value(), 0);
  EXPECT_FALSE(store->RemoveJob("../checkpoints").ok());
  PutAll(store.get(), 30, 2);
  EXPECT_EQ(Value(store.get(), -1, "h.0.w").value(), 2);
}

// A child removes a job and dies at the n-th point between two steps of it: it is there with all it
// has, or it is gone.
TEST_F(CheckpointStoreTest, AKillWhileAJobIsRemovedLeavesItWholeOrNotAtAll) {
  bool gone = false;
  int deaths = 0;
  for (int n = 0; !gone; ++n) {
    PutAll(Open().get(), 10, 1);
    PutAll(Open().get(), 20, 1);
    const pid_t child = ::fork();
    if (child == 0) {
      int left = n;
      CheckpointOptions options;
      options.fault = [&left](const char*) {
        if (left-- == 0) ::_exit(9);
      };
      ::_exit(Open(options)->RemoveJob("job-1").ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_NE(WEXITSTATUS(status), 1);
    gone = WEXITSTATUS(status) == 0;
    deaths += !gone;
    auto store = Open();
    EXPECT_THAT(store->Steps("job-1"), IsEmpty()) << "from the first point on";
    EXPECT_THAT(store->Jobs(), IsEmpty());
    EXPECT_EQ(store->SetAsideBefore().count("job-1"), gone ? 0u : 1u);
    EXPECT_TRUE(gone || fs::is_empty(scratch_.path() + "/checkpoints/.removing-job-1"));
    EXPECT_EQ(store->highest().job_number, gone ? 0u : 1u) << "its id is never used again";
    store->Forget("job-1");
    EXPECT_THAT(store->SetAsideBefore(), IsEmpty());
    ASSERT_LT(n, 20);
  }
  EXPECT_GE(deaths, 4) << "set aside, each checkpoint, empty";
}

TEST_F(CheckpointStoreTest, WhatIsLeftOfARemovalIsNamedAndGoesWithTheNextOne) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  ASSERT_TRUE(store->SetAside("job-1").ok());
  PutAll(store.get(), 20, 1);  // a part that came late
  store->Forget("job-1");
  EXPECT_EQ(store->SetAsideBefore().count("job-1"), 1u) << "not while there is something in it";
  EXPECT_GT(store->RemoveJob("job-1").value(), 400);
  EXPECT_THAT(store->SetAsideBefore(), IsEmpty());
  EXPECT_FALSE(fs::exists(JobDir()));
}

TEST_F(CheckpointStoreTest, RetentionNeverRemovesTheLastSoundOneNorOneThatIsRead) {
  auto store = Open();
  for (int64_t step : {10, 20, 30, 40}) PutAll(store.get(), step, 1);
  fs::resize_file(JobDir() + "/step-00000040/stage-000/weights.safetensors", 3);
  fs::remove(JobDir() + "/step-00000030/stage-001/state.json");
  FetchCheckpointRequest request;
  request.set_job_id("job-1");
  request.set_step(10);
  request.set_what("weights");
  int64_t step = 0;
  auto reader = store->Read(request, nullptr, &step).value();
  store->Trim("job-1", 1);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(10, 20, 30, 40)) << "20 is the newest sound one";
  reader.reset();
  store->Trim("job-1", 1);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(20, 30, 40));
}

}  // namespace
}  // namespace isthmus::coordinator
