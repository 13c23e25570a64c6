#include "coordinator/store/checkpoint_store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/store/checkpoint_store_fixture.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CheckpointStoreTest, WholeOnlyWhenEveryStageIsThere) {
  auto store = Open();
  for (int s = 0; s < kStages; ++s) {
    for (const char* file : kFiles) {
      const bool last = s == kStages - 1 && file == kFiles[2];
      EXPECT_EQ(store->Newest("job-1"), -1);
      EXPECT_EQ(Put(store.get(), 100, s, file, 1).value(), last);
    }
  }
  EXPECT_EQ(store->Newest("job-1"), 100);
  EXPECT_TRUE(fs::exists(JobDir() + "/step-00000100/manifest.json"));
  EXPECT_EQ(Value(store.get(), -1, "h.0.w").value(), 1);
  EXPECT_EQ(Value(store.get(), 100, "h.1.w").value(), 1);
  EXPECT_EQ(Value(store.get(), 100, "h.1.w.exp_avg", "optimizer").value(), 1);
  EXPECT_EQ(Value(store.get(), 100, "h.7.w").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Value(store.get(), 7, "h.0.w").status().message()),
              HasSubstr("there are those of steps 100"));
  FetchCheckpointRequest all;
  all.set_job_id("job-1");
  all.set_step(-1);
  all.set_what("weights");
  int64_t step = 0;
  EXPECT_EQ(ParseSafetensors(Fetch(store.get(), all, &step).value()).value().size(), 2u);
  EXPECT_EQ(step, 100);
  all.set_what("state");
  EXPECT_EQ(Fetch(store.get(), all, &step).value(), "{\"value\": 1}");
  all.set_what("../../etc/passwd");
  EXPECT_FALSE(Fetch(store.get(), all, &step).ok());
}

TEST_F(CheckpointStoreTest, APartSentAgainIsTaken) {
  auto store = Open();
  EXPECT_FALSE(Put(store.get(), 5, 0, kFiles[0], 1).value());
  EXPECT_FALSE(Put(store.get(), 5, 0, kFiles[0], 1).value());
  PutAll(store.get(), 5, 1);
  EXPECT_TRUE(Put(store.get(), 5, 1, kFiles[0], 1).value()) << "its answer was lost";
  EXPECT_FALSE(fs::exists(JobDir() + "/partial-00000005-g1-of2"));
}

// Of one that is here already the header is enough, however much of the rest is missing.
TEST_F(CheckpointStoreTest, APartThatIsHereNeedsNoBytes) {
  auto store = Open();
  EXPECT_FALSE(Put(store.get(), 5, 0, kFiles[0], 1).value());
  const std::string same = Contents(kFiles[0], 0, 1), other = Contents(kFiles[0], 0, 2);
  auto part = store->Begin(Header(5, 0, kFiles[0], same)).value();
  EXPECT_TRUE(part->is_here());
  EXPECT_FALSE(part->Finish().value()) << "stage 1 has put nothing";
  part = store->Begin(Header(5, 0, kFiles[0], other)).value();
  EXPECT_FALSE(part->is_here());
  EXPECT_EQ(part->Finish().status().code(), absl::StatusCode::kDataLoss);
  PutAll(store.get(), 5, 1);
  part = store->Begin(Header(5, 0, kFiles[0], same)).value();
  EXPECT_TRUE(part->is_here());
  EXPECT_TRUE(part->Finish().value());
}

// Once the last part was seen in place by one stage's call while another's still synced the
// directory: it was gone from under it.
TEST_F(CheckpointStoreTest, AllStagesPutAtOnce) {
  auto store = Open();
  for (int64_t step = 1; step <= 40; ++step) {
    std::vector<std::thread> stages;
    for (int stage = 0; stage < kStages; ++stage) {
      for (const char* file : kFiles) {
        stages.emplace_back([&store, step, stage, file] {
          const auto put = Put(store.get(), step, stage, file, 1);
          EXPECT_TRUE(put.ok()) << "step " << step << ", stage " << stage << ", " << file << ": "
                                << put.status();
        });
      }
    }
    for (std::thread& t : stages) t.join();
    ASSERT_EQ(store->Newest("job-1"), step);
  }
}

// Autoencoders: there when they are asked for, missed by nobody, no part of an export.
TEST_F(CheckpointStoreTest, OwnTensorsAreOptionalAndNotInAnUnlistedFetch) {
  auto store = Open();
  const float data[1] = {5};
  const absl::string_view bytes(reinterpret_cast<const char*>(data), sizeof(data));
  const std::string own = "isthmus.boundary.1.encoder.weight";
  for (int s = 0; s < kStages; ++s) {
    for (const std::string file : kFiles) {
      std::string text = Contents(file, s, 1);
      if (s == 0 && file == kFiles[0])
        text =
            WriteSafetensors({{own, "F32", {1}, bytes}, {"h.0.w", "F32", {1}, bytes}}, {}).value();
      auto part = store->Begin(Header(5, s, file, text));
      ASSERT_TRUE(part.ok() && (*part)->Append(text).ok() && (*part)->Finish().ok());
    }
  }
  EXPECT_EQ(Value(store.get(), 5, own).value(), 5);
  FetchCheckpointRequest request;
  request.set_job_id("job-1");
  request.set_step(5);
  request.set_what("weights");
  int64_t step = 0;
  EXPECT_EQ(ParseSafetensors(*Fetch(store.get(), request, &step))->count(own), 0u);
  EXPECT_EQ(ParseSafetensors(*Fetch(store.get(), request, &step))->count("h.0.w"), 1u);
  request.add_tensors("isthmus.boundary.2.encoder.weight");
  request.add_tensors("h.0.w");
  EXPECT_EQ(ParseSafetensors(*Fetch(store.get(), request, &step))->size(), 1u);
}

// Local steps: whole once every replica's moments are there. A replica gets its own, and those of
// the first one where there are none.
TEST_F(CheckpointStoreTest, ReplicasHaveMomentsOfTheirOwn) {
  auto store = Open();
  const auto put = [&](int stage, int replica, const std::string& file, float value) {
    const std::string bytes = Contents(file, stage, value);
    PutCheckpointHeader header = Header(7, stage, file, bytes);
    header.set_replica(replica);
    header.set_replicas(2);
    auto part = store->Begin(header);
    if (!part.ok()) return absl::StatusOr<bool>(part.status());
    if (const absl::Status taken = (*part)->Append(bytes); !taken.ok())
      return absl::StatusOr<bool>(taken);
    return (*part)->Finish();
  };
  EXPECT_EQ(put(0, 1, kFiles[0], 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(0, 2, kFiles[1], 2).status().code(), absl::StatusCode::kInvalidArgument);
  for (int stage : {0, 1}) {
    for (const char* file : kFiles) EXPECT_FALSE(put(stage, 0, file, 1).value());
  }
  store = Open();  // what was acknowledged is there
  EXPECT_FALSE(put(0, 1, kFiles[1], 2).value());
  EXPECT_FALSE(put(0, 1, kFiles[2], 2).value());
  EXPECT_FALSE(put(1, 1, kFiles[1], 2).value());
  EXPECT_EQ(store->Newest("job-1"), -1);
  EXPECT_TRUE(put(1, 1, kFiles[2], 2).value());
  EXPECT_EQ(store->Newest("job-1"), 7);
  EXPECT_TRUE(put(1, 1, kFiles[2], 2).value()) << "sent again";

  FetchCheckpointRequest request;
  request.set_job_id("job-1");
  request.set_step(7);
  const auto fetch = [&](const std::string& what, int replica) {
    request.set_what(what);
    request.set_replica(replica);
    int64_t step = 0;
    return Fetch(store.get(), request, &step).value();
  };
  const auto value = [&](const std::string& bytes, const std::string& tensor) {
    return ToFloats(ParseSafetensors(bytes).value().at(tensor)).value()[0];
  };
  for (int replica : {0, 1, 2, 9}) {
    EXPECT_EQ(value(fetch("optimizer", replica), "h.0.w.exp_avg"), replica == 1 ? 2 : 1);
    EXPECT_EQ(value(fetch("optimizer", replica), "h.1.w.exp_avg"), replica == 1 ? 2 : 1);
    EXPECT_EQ(value(fetch("weights", replica), "h.1.w"), 1);
    EXPECT_EQ(fetch("state", replica), replica == 1 ? "{\"value\": 2}" : "{\"value\": 1}");
  }
  LocalPart part;
  part.set_generation(1);
  part.set_stages(kStages);
  part.set_file(kFiles[1]);
  part.set_replica(1);
  const std::string own = Contents(kFiles[1], 0, 2);
  part.set_bytes(static_cast<int64_t>(own.size()));
  part.set_checksum(Hash64(own));
  EXPECT_TRUE(store->Has("job-1", 7, part));
  part.set_replica(0);
  EXPECT_FALSE(store->Has("job-1", 7, part)) << "another replica's are not the same";
  EXPECT_TRUE(store->Verify("job-1", 7, nullptr).ok());
}

// A replica that begins a later checkpoint has given up its own unfinished part of the one before.
TEST_F(CheckpointStoreTest, AReplicaGivesUpItsOwn) {
  auto store = Open();
  const auto begin = [&](int64_t step, int replica, const std::string& file) {
    const std::string bytes = Contents(file, 0, 1);
    PutCheckpointHeader header = Header(step, 0, file, bytes);
    header.set_replica(replica);
    header.set_replicas(2);
    auto part = store->Begin(header).value();
    EXPECT_TRUE(part->Append(bytes).ok());
    return part->Finish().status();
  };
  for (const char* file : kFiles) ASSERT_TRUE(begin(10, 0, file).ok());
  ASSERT_TRUE(begin(20, 0, kFiles[0]).ok());
  EXPECT_TRUE(fs::exists(JobDir() + "/partial-00000010-g1-of2")) << "the first one's is whole";
  ASSERT_TRUE(begin(20, 1, kFiles[1]).ok());
  EXPECT_FALSE(fs::exists(JobDir() + "/partial-00000010-g1-of2"));
}

TEST_F(CheckpointStoreTest, AnUploadIsWeightsAlone) {
  auto store = Open();
  EXPECT_TRUE(Put(store.get(), 0, 0, kFiles[0], 3, 0).value());
  EXPECT_EQ(Value(store.get(), 0, "h.0.w").value(), 3);
}

TEST_F(CheckpointStoreTest, TheSameStepOfANewGenerationReplaces) {
  auto store = Open();
  PutAll(store.get(), 10, 1, 1);
  PutAll(store.get(), 10, 2, 2);
  EXPECT_EQ(Value(store.get(), 10, "h.0.w").value(), 2);
  EXPECT_EQ(Value(Open().get(), 10, "h.1.w").value(), 2);
}

TEST_F(CheckpointStoreTest, BrokenPartsAreRefused) {
  auto store = Open();
  const std::string bytes = Contents(kFiles[0], 0, 1);
  auto part = store->Begin(Header(1, 0, kFiles[0], bytes)).value();
  EXPECT_EQ(part->Append(bytes + "more").code(), absl::StatusCode::kDataLoss);
  part = store->Begin(Header(1, 0, kFiles[0], bytes)).value();
  ASSERT_TRUE(part->Append(bytes.substr(1)).ok());
  EXPECT_EQ(part->Finish().status().code(), absl::StatusCode::kDataLoss);
  std::string damaged = bytes;
  damaged[3] ^= 1;
  part = store->Begin(Header(1, 0, kFiles[0], bytes)).value();
  ASSERT_TRUE(part->Append(damaged).ok());
  EXPECT_THAT(std::string(part->Finish().status().message()), HasSubstr("checksum"));
  part.reset();
  for (auto change : {+[](PutCheckpointHeader* h) { h->set_job_id("../x"); },
                      +[](PutCheckpointHeader* h) { h->set_job_id(""); },
                      +[](PutCheckpointHeader* h) { h->set_file("../../passwd"); },
                      +[](PutCheckpointHeader* h) { h->set_stage(2); },
                      +[](PutCheckpointHeader* h) { h->set_stages(100000); },
                      +[](PutCheckpointHeader* h) { h->set_step(-1); },
                      +[](PutCheckpointHeader* h) { h->set_file_bytes(-1); }}) {
    PutCheckpointHeader h = Header(1, 0, kFiles[0], bytes);
    change(&h);
    EXPECT_EQ(store->Begin(h).status().code(), absl::StatusCode::kInvalidArgument)
        << h.ShortDebugString();
  }
  PutCheckpointHeader huge = Header(1, 0, kFiles[0], bytes);
  huge.set_file_bytes(int64_t{1} << 60);
  EXPECT_EQ(store->Begin(huge).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Newest("job-1"), -1);
}

// Each try has a temporary file of its own: with its name the same trouble was another one each
// time.
TEST_F(CheckpointStoreTest, TheSameTroubleHasTheSameWordsAtTheNextTry) {
  const auto store = Open();
  const std::string bytes = "abc";
  std::vector<std::string> words;
  for (int i = 0; i < 2; ++i) {
    const auto part = store->Begin(Header(1, 0, kFiles[0], bytes)).value();
    ASSERT_TRUE(part->Append(bytes).ok());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch_.path())) {
      if (entry.path().string().find(".tmp") != std::string::npos)  // in the way of the file
        std::filesystem::create_directories(entry.path().parent_path() / kFiles[0] / "x");
    }
    words.emplace_back(part->Finish().status().message());
  }
  EXPECT_THAT(words[0], ::testing::HasSubstr("checkpoints: renaming to "));
  EXPECT_EQ(words[0], words[1]);
}

// A child saves checkpoint 20 over a whole 10 and dies at the n-th point between two steps of
// saving.
TEST_F(CheckpointStoreTest, KillWhileSavingLeavesThePreviousOneWhole) {
  PutAll(Open().get(), 10, 1);
  bool published = false;
  int deaths = 0;
  for (int n = 0; !published; ++n) {
    const pid_t child = ::fork();
    if (child == 0) {
      int left = n;
      CheckpointOptions options;
      options.fault = [&left](const char*) {
        if (left-- == 0) ::_exit(9);
      };
      auto store = Open(options);
      ::_exit(PutAll(store.get(), 20, 2) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    deaths += WEXITSTATUS(status) == 9;
    auto store = Open();
    EXPECT_EQ(Value(store.get(), 10, "h.0.w").value(), 1) << "point " << n;
    EXPECT_EQ(Value(store.get(), 10, "h.1.w.exp_avg", "optimizer").value(), 1);
    if (store->Newest("job-1") == 20) {
      EXPECT_EQ(Value(store.get(), 20, "h.0.w").value(), 2);
      EXPECT_EQ(Value(store.get(), 20, "h.1.w").value(), 2);
      published = true;
    }
    for (const auto& entry : fs::recursive_directory_iterator(JobDir())) {
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
    }
    if (!published) store->DropPartials({});
    ASSERT_LT(n, 50);
  }
  EXPECT_GE(deaths, 2 * 6) << "two points a part";
}

TEST_F(CheckpointStoreTest, AcknowledgedPartsSurviveAKillOfTheCoordinator) {
  {
    auto store = Open();
    for (const char* file : kFiles) EXPECT_FALSE(Put(store.get(), 20, 0, file, 2).value());
  }
  auto store = Open();
  store->DropPartials({{"job-1", 1}});
  bool complete = false;
  for (const char* file : kFiles) complete = Put(store.get(), 20, 1, file, 2).value();
  EXPECT_TRUE(complete);
  EXPECT_EQ(Value(store.get(), 20, "h.0.w").value(), 2);
  Put(store.get(), 30, 0, kFiles[0], 3).value();
  store->DropPartials({{"job-1", 2}, {"other", 1}});
  EXPECT_FALSE(fs::exists(JobDir() + "/partial-00000030-g1-of2"));
}

TEST_F(CheckpointStoreTest, ADirectoryWithoutItsManifestIsLeftOut) {
  PutAll(Open().get(), 10, 1);
  fs::remove(JobDir() + "/step-00000010/manifest.json");
  EXPECT_THAT(Open()->Steps("job-1"), IsEmpty());
}

TEST_F(CheckpointStoreTest, KnowsTheHighestNumbersThatItsDirectoriesHave) {
  EXPECT_EQ(Open()->highest().generation, 0u);
  EXPECT_EQ(Open()->highest().job_number, 0u);
  const std::string root = scratch_.path() + "/checkpoints";
  for (const char* other : {"bible-12", "no-number", "7", "x-99999999999999999999", "Not-an-id-90"})
    fs::create_directories(absl::StrCat(root, "/", other));
  PutAll(Open().get(), 10, 1, 5);
  EXPECT_EQ(Open()->highest().generation, 5u);
  EXPECT_EQ(Open()->highest().job_number, 12u);
  Put(Open().get(), 20, 0, kFiles[0], 2, 31).value();
  EXPECT_EQ(Open()->highest().generation, 31u) << "of parts, too";
}

}  // namespace
}  // namespace isthmus::coordinator
