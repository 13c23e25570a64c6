#include "compress/buffers/spill_thread.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

SpillThread::Job WriteJob(uint64_t ticket, int64_t slot, uint16_t value) {
  SpillThread::Job job;
  job.ticket = ticket;
  job.write_slot = slot;
  job.buffer = NewHostBuffer(2);
  job.buffer[0] = job.buffer[1] = value;
  return job;
}

TEST(SpillThread, DoesJobsInOrder) {
  TempDirectory directory;
  SpillThread thread(*SpillFile::Make(directory.path(), 3, 4), 8);
  EXPECT_EQ(thread.Take(false).status().code(), absl::StatusCode::kNotFound);
  thread.Give(WriteJob(1, 0, 11));
  thread.Give(WriteJob(2, 1, 22));
  SpillThread::Job both = WriteJob(3, 2, 33);  // its buffer takes what the first job wrote
  both.read_slot = 0;
  both.write_id = 7;
  both.read_id = 8;
  thread.Give(std::move(both));
  thread.Give(WriteJob(4, 0, 44));
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) {
    auto job = thread.Take(true);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(job->status.ok()) << job->status;
    EXPECT_EQ(job->ticket, ticket);
    if (ticket == 3) {
      EXPECT_EQ(job->buffer[1], 11);
      EXPECT_EQ(job->read_id, 8u);
    }
  }
  for (auto [slot, value] : {std::pair<int64_t, uint16_t>{0, 44}, {1, 22}, {2, 33}}) {
    uint16_t back[2];
    ASSERT_TRUE(thread.Read(slot, back).ok());
    EXPECT_EQ(back[1], value);
  }
}

TEST(SpillThread, AnErrorComesWithItsJob) {
  TempDirectory directory;
  SpillThread thread(*SpillFile::Make(directory.path(), 3, 4,
                                      [](int64_t slot) {
                                        return slot == 1 ? absl::ResourceExhaustedError("full")
                                                         : absl::OkStatus();
                                      }),
                     8);
  thread.Give(WriteJob(1, 1, 1));
  thread.Give(WriteJob(2, 0, 2));
  EXPECT_EQ(thread.Take(true)->status.message(), "full");
  EXPECT_TRUE(thread.Take(true)->status.ok());
}

// Reading past the end of the file, which is a disk that does not give back what it took: file and
// remedy are named.
TEST(SpillThread, ErrorsNameTheFileAndTheRemedy) {
  TempDirectory directory;
  SpillThread thread(*SpillFile::Make(directory.path(), 1, 4), 2);
  uint16_t back[2];
  const absl::Status status = thread.Read(5, back);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), testing::HasSubstr(directory.path()));
  EXPECT_THAT(status.message(), testing::HasSubstr("buffer_disk_bytes"));
}

}  // namespace
}  // namespace isthmus::compress
