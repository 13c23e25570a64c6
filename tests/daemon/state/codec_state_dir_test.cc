#include "daemon/state/codec_state_dir.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CodecStateDirTest : public testing::Test {
 protected:
  absl::Status Save(const std::string& name, int64_t step, const std::string& bytes,
                    const std::string& job = "job-1") {
    auto writer = states_.Create({job, name, step});
    if (!writer.ok()) return writer.status();
    if (absl::Status s = (*writer)->Append(bytes); !s.ok()) return s;
    return (*writer)->Commit();
  }
  std::string Load(const std::string& name, int64_t step, const std::string& job = "job-1") {
    auto source = states_.Open({job, name, step});
    if (!source.ok()) return std::string(absl::StatusCodeToString(source.status().code()));
    std::string bytes(100, '\0');
    bytes.resize((*source)->Read(bytes.data(), bytes.size()).value());
    return bytes;
  }
  std::vector<std::string> Files(const std::string& of = "/job-1") {
    std::vector<std::string> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(root() + of, none))
      files.push_back(entry.path().filename().string());
    std::sort(files.begin(), files.end());
    return files;
  }
  std::string root() const { return directory_.path() + "/codec-state"; }

  TempDirectory directory_;
  CodecStateDir states_{directory_.path() + "/codec-state"};
};

TEST_F(CodecStateDirTest, WhatWasCommittedIsThere) {
  EXPECT_EQ(Load("b0-lower-up", 5), "NOT_FOUND");
  ASSERT_TRUE(Save("b0-lower-up", 5, "five").ok());
  EXPECT_EQ(Load("b0-lower-up", 5), "five");
  EXPECT_EQ(Load("b0-lower-up", 10), "NOT_FOUND");
  EXPECT_EQ(Load("b0-lower-down", 5), "NOT_FOUND");
  struct stat info;
  ASSERT_EQ(stat((root() + "/job-1/b0-lower-up-5").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);  // activations tell of the text
}

TEST_F(CodecStateDirTest, WhatIsNoFileIsAnErrorAndNoWait) {
  ASSERT_TRUE(Save("b0-lower-up", 5, "five").ok());
  const std::string path = root() + "/job-1/b0-lower-up-5";
  ASSERT_TRUE(fs::exists(path));
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(Load("b0-lower-up", 5), "DATA_LOSS");
  EXPECT_TRUE(Save("b0-lower-up", 5, "again").ok());  // takes its place
  EXPECT_EQ(Load("b0-lower-up", 5), "again");
}

TEST_F(CodecStateDirTest, LargeStatesComeBackWhole) {
  const std::string piece(3 << 20, 'x');
  auto writer = states_.Create({"job-1", "b0-lower-up", 5});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*writer)->Append(piece).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  EXPECT_EQ(fs::file_size(root() + "/job-1/b0-lower-up-5"), 10 * piece.size());
}

TEST_F(CodecStateDirTest, AWriterThatGoesLeavesNothing) {
  {
    auto writer = states_.Create({"job-1", "b0-lower-up", 5});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append("half").ok());
    EXPECT_EQ(Load("b0-lower-up", 5), "NOT_FOUND");
  }
  EXPECT_THAT(Files(), ElementsAre());
}

// The old state of a key is gone as soon as a new one is begun: it is of another try of the step.
TEST_F(CodecStateDirTest, ANewTryTakesTheOldStateAway) {
  ASSERT_TRUE(Save("b0-lower-up", 5, "old").ok());
  { auto writer = states_.Create({"job-1", "b0-lower-up", 5}); }
  EXPECT_EQ(Load("b0-lower-up", 5), "NOT_FOUND");
}

TEST_F(CodecStateDirTest, TheLastTwoStepsOfEachNameAreKept) {
  for (int64_t step : {5, 10, 15}) ASSERT_TRUE(Save("b0-lower-up", step, "x").ok());
  ASSERT_TRUE(Save("b0-lower-down", 5, "x").ok());
  EXPECT_THAT(Files(), ElementsAre("b0-lower-down-5", "b0-lower-up-10", "b0-lower-up-15"));
}

// A daemon that held other ends before a resume keeps nothing of them for good.
TEST_F(CodecStateDirTest, StatesOfAnEarlierPlacementGo) {
  for (int64_t step : {285, 290}) ASSERT_TRUE(Save("b1-upper-up", step, "x").ok());
  ASSERT_TRUE(Save("b1-upper-up", 290, "x", "job-2").ok());
  std::ofstream(root() + "/job-1/notes") << "x";
  states_.Begin("job-1", 290);
  ASSERT_TRUE(Save("b1-lower-up", 295, "x").ok());
  EXPECT_THAT(Files(), ElementsAre("b1-lower-up-295", "b1-upper-up-285", "b1-upper-up-290",
                                   "notes"));  // 295 may fail, and 290 counts then
  ASSERT_TRUE(Save("b1-lower-up", 300, "x").ok());
  EXPECT_THAT(Files(),
              ElementsAre("b1-lower-up-295", "b1-lower-up-300", "b1-upper-up-290", "notes"));
  ASSERT_TRUE(Save("b1-lower-up", 305, "x").ok());
  EXPECT_THAT(Files(), ElementsAre("b1-lower-up-300", "b1-lower-up-305", "notes"));
  EXPECT_THAT(Files("/job-2"), ElementsAre("b1-upper-up-290"));
}

// The codecs of a daemon save one after the other: none takes what another one still needs.
TEST_F(CodecStateDirTest, ANameThatIsACheckpointBehindKeepsItsLastTwo) {
  for (int64_t step : {5, 10}) ASSERT_TRUE(Save("b0-lower-up", step, "x").ok());
  for (int64_t step : {5, 10, 15}) ASSERT_TRUE(Save("b0-lower-down", step, "x").ok());
  EXPECT_THAT(Files(), ElementsAre("b0-lower-down-10", "b0-lower-down-15", "b0-lower-up-10",
                                   "b0-lower-up-5"));
  ASSERT_TRUE(Save("b0-lower-up", 15, "x").ok());
  EXPECT_THAT(Files(), ElementsAre("b0-lower-down-10", "b0-lower-down-15", "b0-lower-up-10",
                                   "b0-lower-up-15"));
}

TEST_F(CodecStateDirTest, WhatLiesInTheWayGoesOrIsNamed) {
  fs::create_directories(root() + "/job-1/b0-lower-up-5/in");
  EXPECT_TRUE(Save("b0-lower-up", 5, "five").ok());
  EXPECT_EQ(Load("b0-lower-up", 5), "five");
  std::ofstream(root() + "/job-2") << "not a directory";
  const absl::Status status = Save("b0-lower-up", 5, "x", "job-2");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr(root() + "/job-2 is not a directory"));
  EXPECT_THAT(status.message(), HasSubstr("delete it"));
}

TEST_F(CodecStateDirTest, ASessionBeginsWithoutLaterStepsAndUnfinishedFiles) {
  ASSERT_TRUE(Save("b0-lower-up", 5, "x").ok());
  ASSERT_TRUE(Save("b0-lower-up", 10, "x").ok());
  std::ofstream(root() + "/job-1/b0-lower-up-15.part") << "killed here";
  states_.Begin("job-1", 5);
  EXPECT_THAT(Files(), ElementsAre("b0-lower-up-5"));
  states_.Begin("job-1", 0);
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(CodecStateDirTest, TheNewestJobsAreKept) {
  const auto now = fs::file_time_type::clock::now();
  for (int job = 0; job < 6; ++job) {
    const std::string name = absl::StrCat("job-", job);
    ASSERT_TRUE(Save("b0-lower-up", 5, "x", name).ok());
    fs::last_write_time(root() + "/" + name, now + std::chrono::seconds(job));
  }
  states_.Begin("job-0", 5);  // the oldest, and it is resumed
  EXPECT_THAT(Files(""), ElementsAre("job-0", "job-3", "job-4", "job-5"));
}

TEST_F(CodecStateDirTest, NamesLeadNowhereElse) {
  for (const char* bad : {"", "..", ".", "a/b", "../x", ".hidden", "a\nb"}) {
    EXPECT_EQ(Save(bad, 5, "x").code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(Save("b0-lower-up", 5, "x", bad).code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(Load(bad, 5), "INVALID_ARGUMENT") << bad;
    states_.Begin(bad, 0);
  }
  EXPECT_THAT(Files(""), ElementsAre());
}

TEST_F(CodecStateDirTest, AllFilesTogetherAreBounded) {
  states_ = CodecStateDir(root(), 1000);
  ASSERT_TRUE(Save("b0-lower-up", 5, std::string(999, 'x')).ok());
  ASSERT_TRUE(Save("b0-lower-down", 5, "x").ok());
  const absl::Status status = Save("b0-lower-up", 10, "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("may take 1000 bytes in all (--disk"));
  EXPECT_THAT(status.message(), HasSubstr("delete " + root() + "/job-1 when"));
  EXPECT_THAT(Files(), ElementsAre("b0-lower-down-5", "b0-lower-up-5"));
}

TEST_F(CodecStateDirTest, WhatIsMissedLeastMakesRoom) {
  states_ = CodecStateDir(root(), 1000);
  const auto now = fs::file_time_type::clock::now();
  for (const char* job : {"job-2", "job-3", "job-4"}) {
    ASSERT_TRUE(Save("b0-lower-up", 5, std::string(100, 'x'), job).ok());
    fs::last_write_time(root() + "/" + job + "/b0-lower-up-5",
                        now - std::chrono::seconds(job[4] == '3' ? 100 : 10));
  }
  ASSERT_TRUE(Save("b0-upper-up", 5, std::string(400, 'x')).ok());
  ASSERT_TRUE(Save("b0-lower-up", 10, std::string(300, 'x')).ok());
  ASSERT_TRUE(Save("b0-lower-up", 15, std::string(400, 'x')).ok());  // 5 goes: 10 is newer
  EXPECT_THAT(Files(), ElementsAre("b0-lower-up-10", "b0-lower-up-15"));
  EXPECT_THAT(Files("/job-3"), ElementsAre("b0-lower-up-5"));
  ASSERT_TRUE(Save("b0-lower-down", 15, "x").ok());  // 10 may yet be needed: the oldest job goes
  EXPECT_THAT(Files(), ElementsAre("b0-lower-down-15", "b0-lower-up-10", "b0-lower-up-15"));
  EXPECT_THAT(Files("/job-3"), ElementsAre());
  EXPECT_THAT(Files("/job-2"), ElementsAre("b0-lower-up-5"));
  EXPECT_THAT(Files("/job-4"), ElementsAre("b0-lower-up-5"));
}

// An attacker, or a larger --disk before: it alone would forbid every state after it.
TEST_F(CodecStateDirTest, AFileLargerThanAllMayTakeGoes) {
  states_ = CodecStateDir(root(), 1000);
  ASSERT_TRUE(Save("b0-lower-up", 5, "five").ok());
  ASSERT_TRUE(Save("b0-lower-up", 10, "ten").ok());
  fs::resize_file(root() + "/job-1/b0-lower-up-10", int64_t{1} << 40);  // sparse
  for (int64_t step : {15, 20, 25}) ASSERT_TRUE(Save("b0-lower-up", step, "x").ok()) << step;
  EXPECT_THAT(Files(), ElementsAre("b0-lower-up-20", "b0-lower-up-25"));
}

TEST_F(CodecStateDirTest, WhatIsNoStateNeitherCountsNorGoes) {
  states_ = CodecStateDir(root(), 1000);
  ASSERT_TRUE(Save("b0-lower-up", 5, "five").ok());
  std::ofstream(root() + "/job-1/notes") << "x";
  fs::resize_file(root() + "/job-1/notes", 5000);
  const std::string elsewhere = directory_.path() + "/elsewhere";
  fs::create_directories(elsewhere);
  std::ofstream(elsewhere + "/photo-5") << "x";
  fs::resize_file(elsewhere + "/photo-5", 5000);
  fs::create_directory_symlink(elsewhere, root() + "/job-2");
  fs::create_symlink(elsewhere + "/photo-5", root() + "/job-1/b0-lower-down-5");
  for (int64_t step : {10, 15}) ASSERT_TRUE(Save("b0-lower-up", step, std::string(995, 'x')).ok());
  EXPECT_THAT(Files(), ElementsAre("b0-lower-down-5", "b0-lower-up-10", "b0-lower-up-15", "notes"));
  EXPECT_TRUE(fs::exists(elsewhere + "/photo-5"));
}

TEST_F(CodecStateDirTest, AFailedWriteIsAnErrorThatNamesTheFile) {
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit small = old;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = Save("b0-lower-up", 5, std::string(2000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_THAT(status.message(), HasSubstr("job-1/b0-lower-up-5"));
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(CodecStateDirTest, ARootThatCannotBeMadeIsAnError) {
  CodecStateDir states(directory_.path() + "/file/codec-state");
  std::ofstream(directory_.path() + "/file") << "not a directory";
  EXPECT_THAT(states.Create({"job-1", "b0-lower-up", 5}).status().message(),
              HasSubstr("making " + directory_.path() + "/file/codec-state"));
}

}  // namespace
}  // namespace isthmus::daemon
