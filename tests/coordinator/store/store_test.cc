#include "coordinator/store/store.h"

#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/state_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

StoredRecord Record(const std::string& job, int64_t step, double loss = 1) {
  StoredRecord r;
  r.job_id = job;
  r.record.set_step(step);
  r.record.set_loss(loss);
  return r;
}

StoredJob MakeStored(const std::string& id, uint64_t number, JobState state) {
  StoredJob job;
  job.id = id;
  job.number = number;
  job.spec = MakeJob();
  job.status.set_job_id(id);
  job.status.set_state(state);
  return job;
}

class StoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open() {
    auto store = Store::Open(scratch_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  TempDirectory scratch_;
};

TEST_F(StoreTest, WhatWasWrittenIsThereAfterARestart) {
  {
    auto store = Open();
    StoreBatch batch;
    batch.jobs.push_back(MakeStored("b-2", 2, JOB_RUNNING));
    batch.jobs.back().plan.emplace().set_generation(7);
    batch.jobs.push_back(MakeStored("a-1", 1, JOB_FINISHED));
    for (int i = 0; i < 5; ++i) batch.records.push_back(Record("b-2", i));
    batch.nodes.push_back(MakeNode("lab", 1));
    batch.links.emplace_back().set_from_id("x");
    ASSERT_TRUE(store->Write(batch).ok());
    StoreBatch later;
    later.jobs.push_back(MakeStored("b-2", 2, JOB_PAUSED));
    ASSERT_TRUE(store->Write(later).ok());
  }
  auto store = Open();
  const StoreContents contents = store->Load().value();
  ASSERT_THAT(contents.jobs, SizeIs(2));
  EXPECT_EQ(contents.jobs[0].id, "a-1");
  EXPECT_FALSE(contents.jobs[0].plan.has_value());
  EXPECT_EQ(contents.jobs[1].status.state(), JOB_PAUSED);
  EXPECT_EQ(contents.jobs[1].plan->generation(), 7u) << "a status without a plan leaves the plan";
  EXPECT_EQ(contents.jobs[1].next_record_step, 5);
  EXPECT_THAT(contents.nodes, SizeIs(1));
  EXPECT_THAT(contents.links, SizeIs(1));
}

TEST_F(StoreTest, WhoLeftIsRememberedUntilItIsBackAndWhoIsDrainedUntilThatIsTakenBack) {
  StoreBatch batch;
  batch.nodes = {MakeNode("a", 1), MakeNode("b", 1)};
  batch.left[batch.nodes[0].id()] = "SIGTERM";
  ASSERT_TRUE(Open()->Write(batch).ok());
  EXPECT_THAT(Open()->Load()->left,
              testing::ElementsAre(testing::Pair(batch.nodes[0].id(), "SIGTERM")));
  batch.left.clear();
  batch.drained = {batch.nodes[1].id()};
  ASSERT_TRUE(Open()->Write(batch).ok());
  EXPECT_TRUE(Open()->Load()->left.empty());
  EXPECT_EQ(Open()->Load()->drained, batch.drained);
  batch.drained.clear();
  ASSERT_TRUE(Open()->Write(batch).ok());
  EXPECT_TRUE(Open()->Load()->drained.empty());
}

TEST_F(StoreTest, RecordsAreReadInPagesReplacedAndTruncated) {
  auto store = Open();
  StoreBatch batch;
  for (int i = 0; i < 10; ++i) batch.records.push_back(Record("j", i));
  ASSERT_TRUE(store->Write(batch).ok());
  EXPECT_THAT(store->Records("j", 4, 3).value(), SizeIs(3));
  EXPECT_EQ(store->Records("j", 4, 3).value()[0].step(), 4);
  StoreBatch again;
  again.truncated.push_back({"j", 6});
  again.records.push_back(Record("j", 6, 2));
  ASSERT_TRUE(store->Write(again).ok());
  const auto records = store->Records("j", 0, 100).value();
  ASSERT_THAT(records, SizeIs(7));
  EXPECT_EQ(records[6].loss(), 2);
  StoreBatch forget;
  forget.forgotten = {"j"};
  ASSERT_TRUE(store->Write(forget).ok());
  EXPECT_THAT(store->Records("j", 0, 100).value(), SizeIs(0));
}

// Ids are never used twice: what daemons keep of a removed job is of no use.
TEST_F(StoreTest, RemovedJobsAreRememberedUpToALimit) {
  auto store = Open();
  StoreBatch batch;
  batch.forgotten = {"b-2", "a-1", "b-2"};
  ASSERT_TRUE(store->Write(batch).ok());
  EXPECT_THAT(Open()->Load()->removed, ElementsAre("a-1", "b-2")) << "in the order of removal";
  batch.forgotten.clear();
  for (int i = 0; i < kMaxRemoved; ++i) batch.forgotten.push_back(absl::StrCat("c-", i));
  ASSERT_TRUE(store->Write(batch).ok());
  const std::vector<std::string> removed = store->Load()->removed;
  EXPECT_THAT(removed, SizeIs(kMaxRemoved));
  EXPECT_EQ(removed[0], "c-0");
}

TEST_F(StoreTest, NotesOnAJobAreThereUntilTheyChange) {
  auto store = Open();
  const auto write = [&](const StoredJob& job) {
    StoreBatch batch;
    batch.jobs.push_back(job);
    EXPECT_TRUE(store->Write(batch).ok());
    return Open()->Load()->jobs.at(0);
  };
  StoredJob job = MakeStored("a-1", 1, JOB_RUNNING);
  for (const int64_t failed : {-1, 0, 20, -1}) {
    job.failed_checkpoint = failed;
    job.because = failed < 0 ? "" : "the \xc3\xa9nd";
    EXPECT_EQ(write(job).failed_checkpoint, failed);
    EXPECT_EQ(write(job).because, job.because);
  }
  for (int bits = 0; bits < 8; ++bits) {
    job.wait_for_nodes = (bits & 1) != 0;
    job.step_asked = job.wait_for_nodes && (bits & 2) != 0;
    job.accepts_changes = job.wait_for_nodes && (bits & 4) != 0;
    const StoredJob read = write(job);
    EXPECT_EQ(read.wait_for_nodes, job.wait_for_nodes);
    EXPECT_EQ(read.step_asked, job.step_asked);
    if (job.wait_for_nodes) {
      EXPECT_EQ(read.accepts_changes, job.accepts_changes);
    }
  }
}

// An earlier program that ran in between knows no notes: what it wrote of the job stands alone.
TEST_F(StoreTest, ANoteIsOfTheReasonItWasStoredWith) {
  auto store = Open();
  const auto stored = [&](const std::string& reason) {
    StoredJob job = MakeStored("a-1", 1, JOB_PAUSED);
    job.because = "the end";
    job.status.set_reason(reason);
    StoreBatch batch;
    batch.jobs.push_back(job);
    EXPECT_TRUE(store->Write(batch).ok());
    return job.status;
  };
  stored("the end; there is no checkpoint yet \xff");
  EXPECT_EQ(Open()->Load()->jobs.at(0).because, "the end");
  JobStatus other = stored("other words than the note's");
  EXPECT_EQ(Open()->Load()->jobs.at(0).because, "the end");

  other.set_reason("the end; written by another program");
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((scratch_.path() + "/coordinator.db").c_str(), &db), SQLITE_OK);
  const auto run = [&](const std::string& sql) {
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sql;
  };
  run(absl::StrCat("UPDATE jobs SET status = x'", absl::BytesToHexString(other.SerializeAsString()),
                   "'"));
  EXPECT_EQ(Open()->Load()->jobs.at(0).because, "");
  run("DROP TABLE job_reasons");  // of a program between the two
  sqlite3_close(db);
  EXPECT_EQ(Open()->Load()->jobs.at(0).because, "the end");
}

// A database of an earlier program of this version has no table of them.
TEST_F(StoreTest, AnEarlierDatabaseLearnsToRememberRemovedJobs) {
  Open();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((scratch_.path() + "/coordinator.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "DROP TABLE removed_jobs", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(Open()->Load()->removed, SizeIs(0));
}

TEST_F(StoreTest, RecordsOfAJobAreBounded) {
  auto store = Open();
  StoreBatch batch;
  for (int64_t step : {int64_t{0}, int64_t{1000}, kMaxStoredRecords, kMaxStoredRecords + 1000}) {
    batch.records.push_back(Record("j", step));
  }
  ASSERT_TRUE(store->Write(batch).ok());
  EXPECT_THAT(store->Records("j", 0, 100).value(), SizeIs(3));
}

TEST_F(StoreTest, CountersNeverRepeat) {
  EXPECT_EQ(Open()->NextGeneration().value(), 1u);
  auto store = Open();
  EXPECT_EQ(store->NextGeneration().value(), 2u);
  EXPECT_EQ(store->NextJobNumber().value(), 1u);
}

// A child writes as fast as it can and says what it wrote; it is killed in the middle, again and
// again.
TEST_F(StoreTest, KillMinus9LeavesAWholeDatabaseAndNoGenerationTwice) {
  uint64_t last = 0;
  int64_t steps = 0;
  for (int round = 0; round < 8; ++round) {
    int pipe_fd[2];
    ASSERT_EQ(::pipe(pipe_fd), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto store = Store::Open(scratch_.path());
      for (int64_t i = steps;; ++i) {
        uint64_t said[2] = {store.value()->NextGeneration().value(), static_cast<uint64_t>(i)};
        StoreBatch batch;
        batch.records.push_back(Record("j", i));
        batch.jobs.push_back(MakeStored("j", 1, JOB_RUNNING));
        batch.jobs.back().status.set_step(i + 1);
        if (!store.value()->Write(batch).ok() || ::write(pipe_fd[1], said, sizeof(said)) < 0)
          ::_exit(1);
      }
    }
    ::close(pipe_fd[1]);
    uint64_t said[2];
    for (int i = 0; i < 3 + 7 * round; ++i)
      ASSERT_EQ(::read(pipe_fd[0], said, sizeof(said)), static_cast<ssize_t>(sizeof(said)));
    ::kill(child, SIGKILL);
    while (::read(pipe_fd[0], said, sizeof(said)) == static_cast<ssize_t>(sizeof(said))) {
    }
    ::close(pipe_fd[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    auto store = Open();
    const StoreContents contents = store->Load().value();
    ASSERT_THAT(contents.jobs, SizeIs(1));
    EXPECT_GE(contents.jobs[0].next_record_step, static_cast<int64_t>(said[1]) + 1)
        << "round " << round;
    EXPECT_EQ(contents.jobs[0].status.step(), contents.jobs[0].next_record_step)
        << "a batch is there entirely";
    const uint64_t next = store->NextGeneration().value();
    EXPECT_GT(next, said[0]);
    EXPECT_GT(next, last);
    last = next;
    steps = contents.jobs[0].next_record_step;
  }
}

TEST_F(StoreTest, ADamagedOrNewerDatabaseIsRefusedWithAdvice) {
  { std::ofstream(scratch_.path() + "/coordinator.db") << std::string(8192, 'x'); }
  auto damaged = Store::Open(scratch_.path());
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.status().message()),
              HasSubstr(scratch_.path() + "/coordinator.db: "));
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("Move it away"));
}

// Once a user read "INSERT INTO counters ...": each statement has a name in words.
TEST_F(StoreTest, ErrorsAreInWordsNotInSql) {
  auto store = Open();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((scratch_.path() + "/coordinator.db").c_str(), &db), SQLITE_OK);
  for (const char* table : {"counters", "jobs", "records", "nodes", "links"}) {
    EXPECT_EQ(sqlite3_exec(db, absl::StrCat("ALTER TABLE ", table, " RENAME TO no_", table).c_str(),
                           nullptr, nullptr, nullptr),
              SQLITE_OK);
  }
  sqlite3_close(db);
  StoreBatch forgotten, truncated, job, record, node, link;
  forgotten.forgotten = {"a-1"};
  truncated.truncated = {{"a-1", 0}};
  job.jobs.push_back(MakeStored("a-1", 1, JOB_FINISHED));
  record.records.push_back(Record("a-1", 1));
  node.nodes.push_back(MakeNode("lab", 1));
  link.links.emplace_back().set_from_id("x");
  const std::pair<absl::Status, const char*> cases[] = {
      {store->NextGeneration().status(), "taking the next number of a generation"},
      {store->NextJobNumber().status(), "taking the next number of a job"},
      {store->StartAfter(7, 0), "counting each generation from 7"},
      {store->Write(forgotten), "dropping job a-1"},
      {store->Write(truncated), "dropping records of job a-1"},
      {store->Write(job), "storing job a-1"},
      {store->Write(record), "storing the records of job a-1"},
      {store->Write(node), "storing daemon lab"},
      {store->Write(link), "storing a link"},
      {store->Load().status(), "reading the jobs"},
      {store->Records("a-1", 0, 1).status(), "reading the records of job a-1"}};
  for (const auto& [status, words] : cases) {
    const std::string text(status.message());
    EXPECT_FALSE(status.ok()) << words;
    EXPECT_THAT(text, HasSubstr(absl::StrCat("coordinator.db: ", words, ": no such table")));
    for (const char* sql : {"INSERT", "SELECT", "DELETE", "UPDATE", "VALUES", "?"})
      EXPECT_FALSE(absl::StrContains(text, sql)) << text;
  }
}

TEST_F(StoreTest, ADamagedEntryIsNamedWithAdvice) {
  auto store = Open();
  StoreBatch batch;
  batch.jobs.push_back(MakeStored("a-1", 1, JOB_FINISHED));
  ASSERT_TRUE(store->Write(batch).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((scratch_.path() + "/coordinator.db").c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, "UPDATE jobs SET spec = x'ff'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto contents = store->Load();
  EXPECT_EQ(contents.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(contents.status().message()), HasSubstr("coordinator.db: "));
  EXPECT_THAT(std::string(contents.status().message()), HasSubstr("job a-1 is damaged. Move it"));
}

TEST_F(StoreTest, CountersStartAfterWhatOthersHaveSeen) {
  auto store = Open();
  ASSERT_TRUE(store->StartAfter(0, 0).ok());
  EXPECT_EQ(store->NextGeneration().value(), 1u);
  ASSERT_TRUE(store->StartAfter(41, 7).ok());
  EXPECT_EQ(store->NextGeneration().value(), 42u);
  EXPECT_EQ(store->NextJobNumber().value(), 8u);
  ASSERT_TRUE(store->StartAfter(5, 5).ok()) << "they never fall";
  EXPECT_EQ(store->NextGeneration().value(), 43u);
  EXPECT_EQ(store->NextJobNumber().value(), 9u);
  EXPECT_TRUE(absl::IsInvalidArgument(store->StartAfter(kMaxCounter + 1, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(store->StartAfter(~uint64_t{0}, 0)));
  store.reset();
  EXPECT_EQ(Open()->NextGeneration().value(), 44u);
}

TEST(StateLockTest, ASecondProcessIsRefusedByPid) {
  TempDirectory scratch;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto lock = StateLock::Take(scratch.path() + "/new");
    if (!lock.ok() || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char c;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  const auto second = StateLock::Take(scratch.path() + "/new");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("in use by process ", child)));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(StateLock::Take(scratch.path() + "/new").ok()) << "the lock ends with its process";
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_FALSE(StateLock::Take("/proc/nothing/here").ok());
}

}  // namespace
}  // namespace isthmus::coordinator
