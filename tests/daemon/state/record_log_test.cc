#include "daemon/state/record_log.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecordLogTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.path() + "/records"; }
  static StepRecord Record(int64_t step, size_t size = 0) {
    StepRecord record;
    record.set_job_id("job" + std::string(size, 'x'));
    record.set_step(step);
    record.set_loss(1.5);
    return record;
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const StepRecord& record : RecordLog(path()).Load()) steps.push_back(record.step());
    return steps;
  }

  const TempDirectory directory_;
};

TEST_F(RecordLogTest, GivesBackWhatAProcessThatDiedHasAdded) {
  EXPECT_THAT(Steps(), IsEmpty());
  RecordLog log(path());
  for (int64_t step : {0, 1, 2}) log.Add(Record(step));
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2)) << "without an orderly end";
  RecordLog next(path());
  EXPECT_EQ(next.Load()[2].SerializeAsString(), Record(2).SerializeAsString());
  next.Add(Record(3));
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2, 3));
}

TEST_F(RecordLogTest, KeepsTheNewestWithinItsBound) {
  RecordLog log(path());
  for (int64_t step = 0; step < 100; ++step) log.Add(Record(step, 16 << 10));
  const std::vector<int64_t> steps = Steps();
  EXPECT_EQ(steps.back(), 99);
  EXPECT_GE(steps.size(), 15u);
  EXPECT_LE(steps.size(), 31u);
  int64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory_.path()))
    bytes += static_cast<int64_t>(file.file_size());
  EXPECT_LE(bytes, 2 * RecordLog::kFileBytes);
  log.Add(Record(100, RecordLog::kFileBytes));
  EXPECT_EQ(Steps().back(), 99) << "larger than a file";
}

TEST_F(RecordLogTest, ATornOrDamagedTailIsLeftOut) {
  {
    RecordLog log(path());
    for (int64_t step : {0, 1, 2}) log.Add(Record(step));
  }
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  EXPECT_THAT(Steps(), ElementsAre(0, 1));
  std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(20).put('?');
  file.close();
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(RecordLogTest, ADiskThatTakesNothingLosesNothingElse) {
  RecordLog log(directory_.path() + "/none/records");
  log.Add(Record(0));
  log.Add(Record(1));
  EXPECT_THAT(RecordLog(directory_.path() + "/none/records").Load(), IsEmpty());
}

}  // namespace
}  // namespace isthmus::daemon
