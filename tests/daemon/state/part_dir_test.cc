#include "daemon/state/part_dir.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

namespace fs = std::filesystem;

class PartDirTest : public testing::Test {
 protected:
  std::string root() const { return directory_.path() + "/checkpoints"; }
  PartDir Dir(int64_t max_bytes = 0) {
    return PartDir(root(), {max_bytes, {directory_.path() + "/codec-state"}, 0});
  }
  static PutCheckpointHeader Header(const std::string& job, int64_t step, uint64_t generation,
                                    const std::string& bytes,
                                    const std::string& file = "weights.safetensors") {
    PutCheckpointHeader header;
    header.set_job_id(job);
    header.set_step(step);
    header.set_generation(generation);
    header.set_stage(1);
    header.set_stages(3);
    header.set_file(file);
    header.set_checksum(Hash64(bytes));
    return header;
  }
  static absl::Status Keep(PartDir* dir, const std::string& job, int64_t step, uint64_t generation,
                           const std::string& bytes) {
    return Keep(dir, Header(job, step, generation, bytes), bytes);
  }
  static absl::Status Keep(PartDir* dir, const PutCheckpointHeader& header,
                           const std::string& bytes) {
    const auto kept = dir->Keep(header, MemorySource(bytes));
    if (!kept.ok()) return kept.status();
    EXPECT_EQ(kept->checksum, Hash64(bytes));
    EXPECT_EQ(ReadAll(*kept->bytes, 1 << 20).value(), bytes);
    return absl::OkStatus();
  }

  static void KeepWhole(PartDir* dir, int64_t step, uint64_t generation, int stage = 1,
                        bool local = false) {
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
      PutCheckpointHeader header = Header("job", step, generation, "abc", file);
      header.set_stage(stage);
      header.set_local(local);
      if (stage != 1) header.set_to_node_id("me");
      ASSERT_TRUE(Keep(dir, header, "abc").ok());
    }
  }

  TempDirectory directory_;
};

TEST_F(PartDirTest, KeepsAndReads) {
  PartDir dir = Dir();
  EXPECT_TRUE(dir.Parts("job", 10).empty());
  ASSERT_TRUE(Keep(&dir, "job", 10, 4, "abc").ok());
  ASSERT_TRUE(Keep(&dir, Header("job", 10, 4, "{}", "state.json"), "{}").ok());
  const std::vector<LocalPart> parts = dir.Parts("job", 10);
  ASSERT_EQ(parts.size(), 2u);
  for (const LocalPart& part : parts) {
    EXPECT_EQ(part.generation(), 4u);
    EXPECT_EQ(part.stage(), 1);
    EXPECT_EQ(part.stages(), 3);
    const std::string bytes = part.file() == "state.json" ? "{}" : "abc";
    EXPECT_EQ(part.bytes(), static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(part.checksum(), Hash64(bytes));
    const auto opened = Dir().Open("job", 10, part);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(ReadAll(**opened, 100).value(), bytes) << "by the next process, too";
  }
  EXPECT_TRUE(dir.Parts("job", 11).empty());
  EXPECT_TRUE(dir.Parts("other", 10).empty());
}

TEST_F(PartDirTest, TellsWhichCheckpointsAreWholeHere) {
  PartDir dir = Dir();
  EXPECT_EQ(dir.Whole().parts_size(), 0);
  const auto keep_all = [&](const std::string& job, int64_t step) {
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
      EXPECT_EQ(dir.Whole().ShortDebugString().find(absl::StrCat("step: ", step, " ")),
                std::string::npos)
          << "not before all of its files are there";
      ASSERT_TRUE(Keep(&dir, Header(job, step, 4, "abc", file), "abc").ok());
    }
  };
  keep_all("job", 10);
  ASSERT_EQ(dir.Whole().parts_size(), 1);
  const KeptPart part = dir.Whole().parts(0);
  EXPECT_EQ(part.job_id(), "job");
  EXPECT_EQ(part.step(), 10);
  EXPECT_EQ(part.generation(), 4u);
  EXPECT_EQ(part.stage(), 1);
  EXPECT_EQ(part.stages(), 3);
  EXPECT_EQ(Dir().Whole().ShortDebugString(), dir.Whole().ShortDebugString()) << "the next process";
  keep_all("job", 20);
  keep_all("other", 30);
  EXPECT_EQ(dir.Whole().parts_size(), 3);
  dir.Begin("job", 10);
  EXPECT_EQ(dir.Whole().parts_size(), 2);
  dir.Remove("other");
  dir.Remove("..");
  ASSERT_EQ(dir.Whole().parts_size(), 1);
  EXPECT_FALSE(fs::exists(root() + "/other"));
  for (const auto& file : fs::recursive_directory_iterator(root()))
    if (file.is_regular_file()) fs::resize_file(file.path(), 2);
  EXPECT_TRUE(dir.Parts("job", 10).empty());
  EXPECT_EQ(dir.Whole().parts_size(), 0) << "what is damaged is not offered";
}

// Local steps: a further replica has moments and a state, and says whose they are.
TEST_F(PartDirTest, AReplicaKeepsItsOwn) {
  PartDir dir = Dir();
  for (const char* file : {"optimizer.safetensors", "state.json"}) {
    EXPECT_EQ(dir.Whole().parts_size(), 0);
    PutCheckpointHeader header = Header("job", 10, 4, "abc", file);
    header.set_replica(2);
    ASSERT_TRUE(Keep(&dir, header, "abc").ok());
  }
  EXPECT_EQ(dir.Whole().parts_size(), 1);
  PartDir next = Dir();
  EXPECT_EQ(next.Whole().ShortDebugString(), dir.Whole().ShortDebugString());
  const std::vector<LocalPart> parts = next.Parts("job", 10);
  ASSERT_EQ(parts.size(), 2u);
  for (const LocalPart& part : parts) {
    EXPECT_EQ(part.replica(), 2);
    EXPECT_TRUE(next.Open("job", 10, part).ok());
  }
}

// A process was killed while it wrote its last file: the part was told as whole for ever.
TEST_F(PartDirTest, AFileThatWasBeingWrittenIsNone) {
  const std::string directory = root() + "/job/10-g4-s1of3";
  {
    PartDir dir = Dir();
    for (const char* file : {"weights.safetensors", "optimizer.safetensors"})
      ASSERT_TRUE(Keep(&dir, Header("job", 10, 4, "abc", file), "abc").ok());
  }
  const std::string state = absl::StrCat(directory, "/state.json.2.", std::string(16, '0'));
  for (const char* other : {".tmp", ".tmp7", "0"})  // 0: a longer checksum than there is
    std::ofstream(state + other) << "{}";
  PartDir dir = Dir();
  EXPECT_EQ(dir.Whole().parts_size(), 0);
  EXPECT_EQ(dir.Parts("job", 10).size(), 2u) << "what is told and what is read are the same";
  EXPECT_FALSE(fs::exists(state + ".tmp")) << "it takes room";
  ASSERT_TRUE(Keep(&dir, Header("job", 10, 4, "{}", "state.json"), "{}").ok());
  EXPECT_EQ(dir.Whole().parts_size(), 1);
}

TEST_F(PartDirTest, WhatIsDisownedIsNotToldUntilItIsKeptAnew) {
  PartDir dir = Dir();
  for (int64_t step : {10, 20}) {
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"})
      ASSERT_TRUE(Keep(&dir, Header("job", step, 4, "abc", file), "abc").ok());
  }
  const KeptPart part = dir.Whole().parts(0);
  dir.Disown(part);
  ASSERT_EQ(dir.Whole().parts_size(), 1);
  EXPECT_EQ(dir.Whole().parts(0).step(), 20);
  ASSERT_TRUE(Keep(&dir, Header("job", 20, 4, "abc", "state.json"), "abc").ok());
  EXPECT_EQ(dir.Whole().parts_size(), 1) << "another one";
  ASSERT_TRUE(Keep(&dir, Header("job", 10, 4, "abc", "state.json"), "abc").ok());
  EXPECT_EQ(dir.Whole().parts_size(), 2);
}

// What is read fails in the middle, or the process is killed there: nothing is left that grows.
TEST_F(PartDirTest, WhatIsNotFinishedIsNotThere) {
  class Broken : public ByteSource {
   public:
    int64_t bytes() const override { return int64_t{20} << 20; }
    absl::Status ReadAt(int64_t offset, size_t count, char* out) const override {
      std::fill_n(out, count, 'x');
      return offset > (10 << 20) ? absl::DataLossError("the stage is gone") : absl::OkStatus();
    }
  };
  PartDir dir = Dir();
  EXPECT_EQ(dir.Keep(Header("job", 10, 4, ""), Broken()).status().message(), "the stage is gone");
  for (const auto& file : fs::recursive_directory_iterator(root()))
    EXPECT_FALSE(file.is_regular_file()) << file.path();
  EXPECT_EQ(dir.Whole().parts_size(), 0);
  const std::string directory = root() + "/job/10-g4-s1of3";
  const pid_t child = ::fork();
  if (child == 0) {  // killed while it writes
    class Killed : public Broken {
     public:
      absl::Status ReadAt(int64_t offset, size_t count, char* out) const override {
        if (offset > (10 << 20)) ::_exit(9);
        return Broken::ReadAt(offset, count, out);
      }
    };
    dir.Keep(Header("job", 10, 4, ""), Killed()).status().IgnoreError();
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 9);
  EXPECT_TRUE(fs::exists(directory + "/weights.safetensors.tmp")) << "the test comes too early";
  PartDir next = Dir();
  EXPECT_FALSE(fs::exists(directory + "/weights.safetensors.tmp")) << "it takes room";
  EXPECT_EQ(next.Whole().parts_size(), 0);
}

// Retention removes its name; who puts it reads on.
TEST_F(PartDirTest, AKeptFileIsReadThoughItIsRemoved) {
  PartDir dir = Dir();
  const auto kept = dir.Keep(Header("job", 10, 4, "abc"), MemorySource("abc"));
  ASSERT_TRUE(kept.ok());
  dir.Remove("job");
  EXPECT_FALSE(fs::exists(root() + "/job"));
  EXPECT_EQ(ReadAll(*kept->bytes, 100).value(), "abc");
}

TEST_F(PartDirTest, ADamagedFileIsRemoved) {
  PartDir dir = Dir();
  ASSERT_TRUE(Keep(&dir, "job", 10, 4, "abc").ok());
  const LocalPart part = dir.Parts("job", 10).at(0);
  for (const auto& file : fs::recursive_directory_iterator(root()))
    if (file.is_regular_file()) fs::resize_file(file.path(), 2);
  EXPECT_EQ(dir.Open("job", 10, part).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(dir.Parts("job", 10).empty());
  EXPECT_EQ(dir.Open("job", 10, part).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PartDirTest, AFileOfAnotherSizeIsNotRead) {
  PartDir dir = Dir();
  ASSERT_TRUE(Keep(&dir, "job", 10, 4, "abc").ok());
  for (const auto& file : fs::recursive_directory_iterator(root()))
    if (file.is_regular_file()) fs::resize_file(file.path(), uintmax_t{1} << 40);  // sparse
  EXPECT_TRUE(dir.Parts("job", 10).empty());
  for (const auto& file : fs::recursive_directory_iterator(root()))
    EXPECT_FALSE(file.is_regular_file()) << file.path() << " is removed";
}

TEST_F(PartDirTest, TheNewestGenerationOfAStepCounts) {
  PartDir dir = Dir();
  ASSERT_TRUE(Keep(&dir, "job", 10, 12, "new").ok());
  ASSERT_TRUE(Keep(&dir, "job", 10, 9, "old").ok());
  ASSERT_EQ(dir.Parts("job", 10).size(), 1u);
  EXPECT_EQ(dir.Parts("job", 10)[0].generation(), 12u);
}

TEST_F(PartDirTest, TheLastTwoStepsOfAJobStay) {
  PartDir dir = Dir();
  for (int64_t step : {5, 10, 15, 100}) KeepWhole(&dir, step, 1);
  EXPECT_TRUE(dir.Parts("job", 5).empty());
  EXPECT_TRUE(dir.Parts("job", 10).empty());
  EXPECT_EQ(dir.Parts("job", 15).size(), 3u);
  EXPECT_EQ(dir.Parts("job", 100).size(), 3u);
}

// Local ones pass by fast: what may yet have to be stored stays.
TEST_F(PartDirTest, LocalCheckpointsAreCountedByThemselves) {
  PartDir dir = Dir();
  for (int64_t step : {10, 20}) KeepWhole(&dir, step, 1);
  for (int64_t step : {21, 22, 23}) KeepWhole(&dir, step, 1, 1, /*local=*/true);
  EXPECT_EQ(dir.Parts("job", 10).size(), 3u);
  EXPECT_EQ(dir.Parts("job", 20).size(), 3u);
  EXPECT_TRUE(dir.Parts("job", 21).empty());
  EXPECT_EQ(dir.Parts("job", 22).size(), 3u);
  KeepWhole(&dir, 30, 1);
  EXPECT_TRUE(dir.Parts("job", 10).empty());
  EXPECT_EQ(dir.Parts("job", 22).size(), 3u);
  EXPECT_EQ(dir.Parts("job", 23).size(), 3u);
}

// What it keeps for another daemon takes nothing from its own, nor the other way round.
TEST_F(PartDirTest, CopiesOfOthersPartsHaveTheirOwnSteps) {
  PartDir dir = Dir();
  for (int64_t step = 1; step <= 6; ++step) KeepWhole(&dir, step, 1, 1, true);
  for (int64_t step = 5; step <= 6; ++step) KeepWhole(&dir, step, 1, 2, true);
  KeepWhole(&dir, 7, 1, 1, true);
  ASSERT_EQ(dir.Parts("job", 5).size(), 3u);
  EXPECT_EQ(dir.Parts("job", 5)[0].stage(), 2);
  EXPECT_EQ(dir.Parts("job", 6).size(), 6u);
  EXPECT_EQ(dir.Parts("job", 6)[0].stage(), 1) << "its own first";
  EXPECT_EQ(dir.Parts("job", 7).size(), 3u);
  // Of a later generation, all that is left of the one before are older steps.
  for (int64_t step = 8; step <= 9; ++step) KeepWhole(&dir, step, 2, 1, true);
  for (int64_t step = 1; step <= 7; ++step) EXPECT_TRUE(dir.Parts("job", step).empty()) << step;
}

// One that broke off counts as none: the whole one before it stays.
TEST_F(PartDirTest, APartThatBrokeOffPushesNoWholeOneOut) {
  PartDir dir = Dir();
  KeepWhole(&dir, 1, 1, 2, true);
  for (int64_t step : {2, 3, 4}) {
    PutCheckpointHeader header = Header("job", step, 1, "abc");
    header.set_stage(2);
    header.set_local(true);
    ASSERT_TRUE(Keep(&dir, header, "abc").ok());
  }
  EXPECT_EQ(dir.Parts("job", 1).size(), 3u);
  EXPECT_TRUE(dir.Parts("job", 2).empty());
}

TEST_F(PartDirTest, ALocalCheckpointIsWorthNobodyElsesParts) {
  PartDir dir = Dir(1000);
  const std::string big(300, 'x');
  ASSERT_TRUE(Keep(&dir, "other", 1, 1, big).ok());
  ASSERT_TRUE(Keep(&dir, "job", 10, 1, big).ok());
  PutCheckpointHeader header = Header("job", 11, 1, big);
  header.set_local(true);
  ASSERT_TRUE(Keep(&dir, header, big).ok());
  header.set_step(12);
  header.clear_checksum();
  EXPECT_EQ(dir.Keep(header, MemorySource(big + big)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(dir.Parts("other", 1).size(), 1u);
  EXPECT_EQ(dir.Parts("job", 10).size(), 1u);
  EXPECT_EQ(dir.Parts("job", 11).size(), 1u) << "nothing goes where it would not do";
}

TEST_F(PartDirTest, ACopyThatArrivedDamagedIsNotKept) {
  PartDir dir = Dir();
  const auto kept = dir.Keep(Header("job", 10, 4, "sent"), MemorySource("came"));
  EXPECT_EQ(kept.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(dir.Parts("job", 10).empty());
}

TEST_F(PartDirTest, AStagesPartIsDisownedWithoutTheOther) {
  PartDir dir = Dir();
  for (int stage : {1, 2}) {
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
      PutCheckpointHeader header = Header("job", 10, 4, "abc", file);
      header.set_stage(stage);
      ASSERT_TRUE(Keep(&dir, header, "abc").ok());
    }
  }
  ASSERT_EQ(dir.Whole().parts_size(), 2);
  dir.Disown(dir.Whole().parts(0));
  ASSERT_EQ(dir.Whole().parts_size(), 1);
  EXPECT_EQ(dir.Whole().parts(0).stage(), 2);
}

TEST_F(PartDirTest, AResumeDropsWhatComesAfterIt) {
  PartDir dir = Dir();
  for (int64_t step : {10, 20}) ASSERT_TRUE(Keep(&dir, "job", step, 1, "abc").ok());
  dir.Begin("job", 10);
  EXPECT_TRUE(dir.Parts("job", 20).empty());
  ASSERT_TRUE(Keep(&dir, "job", 15, 2, "def").ok());
  EXPECT_EQ(dir.Parts("job", 10).size(), 1u);
}

TEST_F(PartDirTest, TheOldestJobsGo) {
  PartDir dir = Dir();
  for (int i = 0; i < 6; ++i) {
    const std::string job = absl::StrCat("job-", i);
    ASSERT_TRUE(Keep(&dir, job, 10, 1, "abc").ok());
    fs::last_write_time(absl::StrCat(root(), "/", job),
                        fs::file_time_type::clock::now() - std::chrono::hours(100 - i));
  }
  dir.Begin("job-9", 0);
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(dir.Parts(absl::StrCat("job-", i), 10).size(), i < 3 ? 0u : 1u) << i;
}

TEST_F(PartDirTest, StaysWithinItsBytesWithWhatLiesBeside) {
  PartDir dir = Dir(1000);
  const std::string big(300, 'x');
  ASSERT_TRUE(Keep(&dir, "other", 1, 1, big).ok());
  ASSERT_TRUE(Keep(&dir, "job", 10, 2, big).ok());
  ASSERT_TRUE(Keep(&dir, "job", 20, 2, big).ok());
  ASSERT_TRUE(Keep(&dir, "job", 20, 2, big + "y").ok()) << "another job's make room";
  EXPECT_TRUE(dir.Parts("other", 1).empty());
  EXPECT_EQ(dir.Parts("job", 10).size(), 1u);
  fs::create_directories(directory_.path() + "/codec-state");
  PartDir states(directory_.path() + "/codec-state", {0, {}, 0});
  ASSERT_TRUE(Keep(&states, "job", 1, 1, std::string(350, 's')).ok());
  const absl::Status full = Keep(&dir, "job", 20, 2, big + "z");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("of 301 bytes"), absl::string_view::npos) << full;
  EXPECT_EQ(dir.Parts("job", 10).size(), 1u) << "nothing goes where it would not do";
  EXPECT_EQ(dir.Parts("job", 20).size(), 2u);
}

TEST_F(PartDirTest, LeavesTheFileSystemSomeRoom) {
  PartDir dir(root(), {0, {}, int64_t{1} << 62});
  EXPECT_EQ(Keep(&dir, "job", 1, 1, "abc").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PartDirTest, NamesLeadNowhereElse) {
  PartDir dir = Dir();
  for (const char* job : {"", "..", "a/b", ".hidden"}) {
    EXPECT_EQ(Keep(&dir, job, 1, 1, "abc").code(), absl::StatusCode::kInvalidArgument) << job;
    dir.Begin(job, 0);
    EXPECT_TRUE(dir.Parts(job, 1).empty());
  }
  EXPECT_EQ(Keep(&dir, Header("job", 1, 1, "abc", "../x"), "abc").code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus::daemon
