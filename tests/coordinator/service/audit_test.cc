#include "coordinator/service/audit.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

AuditEntry Entry(const std::string& what) {
  AuditEntry entry;
  entry.set_unix_ms(5);
  entry.set_who("ada");
  entry.set_role("operator");
  entry.set_peer("ipv4:10.0.0.1:5");
  entry.set_call("Jobs.Stop");
  entry.set_what(what);
  entry.set_outcome("ok");
  return entry;
}

TEST(AuditTest, TheLastEntriesAreKeptOverARestart) {
  const TempDirectory scratch;
  for (int i = 0; i < 3; ++i) Audit(scratch.path()).Add(Entry(absl::StrCat("job-", i)));
  const auto last = Audit(scratch.path()).Last(2);
  ASSERT_TRUE(last.ok()) << last.status();
  ASSERT_EQ(last->entries_size(), 2);
  EXPECT_EQ(last->entries(0).SerializeAsString(), Entry("job-1").SerializeAsString());
  EXPECT_EQ(last->entries(1).what(), "job-2");
  EXPECT_EQ(Audit(scratch.path()).Last(0)->entries_size(), 0);
  const auto mode = std::filesystem::status(scratch.path() + "/audit.jsonl").permissions();
  EXPECT_EQ(mode, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(AuditTest, WhatWasNotSaidIsNobody) {
  const TempDirectory scratch;
  EXPECT_EQ(Audit(scratch.path()).Last(5)->entries_size(), 0);
  Audit(scratch.path()).Add(AuditEntry());
  const auto last = Audit(scratch.path()).Last(5);
  ASSERT_EQ(last->entries_size(), 1);
  EXPECT_GT(last->entries(0).unix_ms(), 0) << "it has a time";
}

TEST(AuditTest, ABrokenLineCostsNoOther) {
  const TempDirectory scratch;
  Audit audit(scratch.path());
  audit.Add(Entry("one"));
  std::ofstream(scratch.path() + "/audit.jsonl", std::ios::app) << "{\"unix_ms\": 7, \"wh\n[]\n";
  audit.Add(Entry("line\nbreak \"quoted\" \xff"));
  const auto last = audit.Last(10);
  ASSERT_EQ(last->entries_size(), 2);
  EXPECT_EQ(last->entries(1).what(), "line\nbreak \"quoted\" \xEF\xBF\xBD");
}

// A FIFO used to hold up whoever wrote first until somebody read it.
TEST(AuditTest, SaysAtTheStartWhereNothingCanBeWritten) {
  const auto said = [](const TempDirectory& scratch) {
    testing::internal::CaptureStderr();
    Audit audit(scratch.path());
    audit.Check();
    audit.Add(Entry("one"));
    return testing::internal::GetCapturedStderr();
  };
  const TempDirectory usable, folder, fifo;
  EXPECT_EQ(said(usable), "");
  std::filesystem::create_directory(folder.path() + "/audit.jsonl");
  EXPECT_THAT(said(folder), testing::HasSubstr("audit.jsonl is a directory: move it away"));
  ASSERT_EQ(mkfifo((fifo.path() + "/audit.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(said(fifo), testing::HasSubstr("will not be written down"));
}

TEST(AuditTest, AFullFileMakesRoomAndItsLastEntriesStay) {
  const TempDirectory scratch;
  const std::string file = scratch.path() + "/audit.jsonl";
  Audit audit(scratch.path());
  audit.Add(Entry("before"));
  std::filesystem::resize_file(file, kAuditBytes);  // what follows the entry is no line
  audit.Add(Entry("after"));
  EXPECT_TRUE(std::filesystem::exists(file + ".1"));
  EXPECT_LT(std::filesystem::file_size(file), 1000u);
  const auto last = audit.Last(10);
  ASSERT_EQ(last->entries_size(), 2);
  EXPECT_EQ(last->entries(0).what(), "before");
}

TEST(AuditTest, WhoIsRefusedAgainAndAgainHasALineAMinute) {
  const TempDirectory scratch;
  Audit audit(scratch.path());
  const absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 5; ++i) audit.AddRefused(Entry("x"), now + absl::Seconds(i));
  EXPECT_EQ(audit.Last(10)->entries_size(), 1);
  AuditEntry other = Entry("x");
  other.set_who("bob");
  audit.AddRefused(other, now + absl::Seconds(5));
  audit.AddRefused(Entry("x"), now + absl::Seconds(61));
  const auto last = audit.Last(10);
  ASSERT_EQ(last->entries_size(), 3);
  EXPECT_EQ(last->entries(2).outcome(), "ok (and 4 times before)");
}

}  // namespace
}  // namespace isthmus::coordinator
