// Whole checkpoints, read: damaged ones, those in another's place, what is listed.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/safetensors.h"
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

TEST_F(CheckpointStoreTest, ADamagedFileIsNeverHandedOut) {
  auto store = Open();
  PutAll(store.get(), 10, 1);
  const std::string dir = JobDir() + "/step-00000010/";
  const auto refused = [&](const std::string& what, const std::string& path) {
    const absl::Status status = Value(store.get(), 10, "h.0.w", what).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr("No other checkpoint is sound"));
  };
  for (const std::string what : {"weights", "optimizer", "state"}) {
    const std::string path =
        "stage-000/" + (what == "state" ? "state.json" : what + ".safetensors");
    const std::string good = ReadAll(dir + path);
    std::string flipped = good;
    flipped.back() ^= 1;  // valid safetensors still, other numbers
    for (const std::string& bad : {flipped, good.substr(0, good.size() / 2), std::string()}) {
      ASSERT_TRUE(WriteFileDurably(dir + path, bad).ok());
      refused(what, path);
    }
    ASSERT_TRUE(WriteFileDurably(dir + path, good).ok());
  }
  EXPECT_EQ(Value(store.get(), 10, "h.0.w").value(), 1);
  for (const char* manifest : {"", "[]", "null", "{}", "{\"files\": 7}", "{\"files\": {}}"}) {
    ASSERT_TRUE(WriteFileDurably(dir + "manifest.json", manifest).ok());
    refused("weights", "manifest.json");
  }
}

TEST_F(CheckpointStoreTest, ADamagedOneSaysWhichOthersAreSound) {
  auto store = Open();
  for (int64_t step : {10, 20, 30, 40}) PutAll(store.get(), step, 1);
  const auto damage = [&](const std::string& step, const std::string& file) {
    const std::string path = JobDir() + "/step-000000" + step + "/" + file;
    std::string bytes = ReadAll(path);
    bytes.back() ^= 1;
    ASSERT_TRUE(WriteFileDurably(path, bytes).ok());
  };
  damage("40", "stage-001/optimizer.safetensors");
  damage("20", "stage-000/weights.safetensors");
  EXPECT_TRUE(Value(store.get(), 40, "h.0.w").ok()) << "another file of it";
  const absl::Status status = Value(store.get(), 40, "h.1.w.exp_avg", "optimizer").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* words :
       {"step 40 of job job-1", "stage-001/optimizer.safetensors is damaged: its ",
        "Sound are those of steps 30, 10", "--resume --step 30"})
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  EXPECT_EQ(store->Verify("job-1", 40, nullptr).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store->Verify("job-1", 30, nullptr).ok());
  EXPECT_EQ(store->Verify("job-1", 35, nullptr).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Verify("job-1", 30, [] { return true; }).code(), absl::StatusCode::kCancelled);

  auto fresh = Open();  // knows nothing yet
  const auto names = [](const std::vector<CheckpointInfo>& list) {
    std::string text;
    for (const CheckpointInfo& c : list)
      absl::StrAppend(&text, c.step(), c.damage().empty() ? " " : "! ");
    return text;
  };
  EXPECT_EQ(names(fresh->List("job-1", {}, false, nullptr).value()), "40 30 20 10 ");
  EXPECT_EQ(names(fresh->List("job-1", {}, true, nullptr).value()), "40! 30 20! 10 ");
  EXPECT_GT(fresh->List("job-1", {}, false, nullptr)->at(0).bytes(), 100);
  EXPECT_EQ(fresh->List("job-1", {}, true, [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
}

// What a resume does not take by itself looked like all others in the list.
TEST_F(CheckpointStoreTest, ThoseOfARunThatWasLeftAreMarked) {
  auto store = Open();
  for (int64_t step : {10, 20, 30}) PutAll(store.get(), step, 1, 1);
  const auto left = [&](const CheckpointStore::Run& run) {
    std::vector<int64_t> steps;
    for (const CheckpointInfo& c : store->List("job-1", run, false, nullptr).value())
      if (c.left_behind()) steps.push_back(c.step());
    return steps;
  };
  EXPECT_THAT(left({1, 0}), IsEmpty());
  EXPECT_THAT(left({2, 10}), ElementsAre(30, 20)) << "a run that has stored nothing yet";
  PutAll(store.get(), 15, 1, 2);
  PutAll(store.get(), 25, 1, 2);
  EXPECT_THAT(left({2, 10}), ElementsAre(30, 20));
  EXPECT_THAT(left({}), ElementsAre(30, 20)) << "by what is stored alone";
  EXPECT_THAT(left({3, 25}), ElementsAre(30, 20));
}

TEST_F(CheckpointStoreTest, AnAnswerGoesOnThoughItsFilesAreRemoved) {
  auto store = Open();
  PutAll(store.get(), 10, 4);
  FetchCheckpointRequest request;
  request.set_job_id("job-1");
  request.set_step(-1);
  request.set_what("weights");
  int64_t step = 0;
  auto reader = store->Read(request, nullptr, &step).value();
  fs::remove_all(JobDir());
  std::string all, piece;
  do {
    ASSERT_TRUE(reader->Read(50, &piece).ok());
    all += piece;
  } while (!piece.empty());
  const auto parsed = ParseSafetensors(all);
  EXPECT_EQ(ToFloats(parsed->at("h.1.w")).value()[0], 4);
}

// One that was copied or renamed by hand is never taken by itself, and is refused in words.
TEST_F(CheckpointStoreTest, OneInTheWrongPlaceIsRefusedInWords) {
  {
    auto store = Open();
    for (int64_t step : {10, 20}) PutAll(store.get(), step, step);
  }
  fs::create_directories(scratch_.path() + "/checkpoints/other-2");
  const auto copy = [&](const std::string& from, const std::string& to) {
    fs::copy(JobDir() + from, scratch_.path() + "/checkpoints" + to, fs::copy_options::recursive);
  };
  copy("/step-00000020", "/job-1/step-00000030");
  copy("/step-00000020", "/other-2/step-00000020");
  auto store = Open();
  EXPECT_EQ(store->Newest("job-1"), 20);
  EXPECT_EQ(store->Head("job-1", 1, 10), 20);
  EXPECT_EQ(store->Head("job-1", 2, 30), 30) << "the one that was asked for";
  const auto refused = [&](const std::string& job, int64_t step, const std::string& words) {
    const absl::Status status = store->Verify(job, step, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    FetchCheckpointRequest request;
    request.set_job_id(job);
    request.set_step(step);
    request.set_what("weights");
    EXPECT_EQ(Fetch(store.get(), request, &step).status(), status);
  };
  refused("job-1", 30,
          "the checkpoint of step 30 of job job-1 can't be used: manifest.json is that of "
          "checkpoint 20 of job job-1: the directory was copied or renamed by hand");
  refused("job-1", 30, "Sound are those of steps 20, 10");
  refused("other-2", 20, "is that of checkpoint 20 of job job-1");
  EXPECT_EQ(store->Newest("other-2"), 20)
      << "nothing else is there: to be refused, not passed over";
  const auto list = store->List("job-1", {}, false, nullptr).value();
  ASSERT_EQ(list.size(), 3u);
  for (const CheckpointInfo& c : list) {
    EXPECT_EQ(c.damage().empty(), c.step() != 30) << c.ShortDebugString();
    EXPECT_FALSE(c.left_behind()) << c.ShortDebugString();
  }
  store->Trim("job-1", 1);
  EXPECT_THAT(store->Steps("job-1"), ElementsAre(20, 30)) << "somebody's copy stays";
  LocalPart part;
  part.set_generation(1);
  part.set_stages(2);
  part.set_file("state.json");
  const std::string state = Contents("state.json", 0, 20);
  part.set_bytes(static_cast<int64_t>(state.size()));
  part.set_checksum(Hash64(state));
  EXPECT_TRUE(store->Has("job-1", 20, part));
  EXPECT_FALSE(store->Has("job-1", 30, part));
  PutAll(store.get(), 30, 30);
  EXPECT_EQ(Value(store.get(), 30, "h.0.w").value(), 30) << "stored anew it is in its place";
}

// While the coordinator runs, too: two that changed places.
TEST_F(CheckpointStoreTest, OneThatWasReplacedByHandIsRefused) {
  auto store = Open();
  PutAll(store.get(), 10, 1, 1);
  PutAll(store.get(), 20, 2, 2);
  fs::rename(JobDir() + "/step-00000010", JobDir() + "/aside");
  fs::rename(JobDir() + "/step-00000020", JobDir() + "/step-00000010");
  EXPECT_THAT(std::string(store->Verify("job-1", 10, nullptr).message()),
              HasSubstr("is that of checkpoint 20"));
  fs::remove_all(JobDir() + "/step-00000010");
  fs::rename(JobDir() + "/aside", JobDir() + "/step-00000010");
  EXPECT_TRUE(store->Verify("job-1", 10, nullptr).ok()) << "put back";
  EXPECT_THAT(std::string(store->Verify("job-1", 20, nullptr).message()),
              HasSubstr("manifest.json is damaged: opening"));
  EXPECT_THAT(store->Steps("none"), IsEmpty());
}

}  // namespace
}  // namespace isthmus::coordinator
