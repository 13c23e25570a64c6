#include "worker/study/journal.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::study {
namespace {

using testing::HasSubstr;

class JournalTest : public testing::Test {
 protected:
  void Write(const std::string& text) {
    std::ofstream(dir_ + "/cells.jsonl", std::ios::app) << text;
  }
  const TempDirectory parent_;
  const std::string dir_ = parent_.path() + "/out";
};

CellRecord Sample(const std::string& key) {
  CellRecord r;
  r.key = key;
  r.setting = "quant(4) / none";
  r.where = "late";
  r.seed = 3;
  r.loss = 1.0 / 3;
  r.validation = 2.5;
  r.steps = 40;
  r.raw_bytes = int64_t{1} << 40;
  r.wire_bytes = 77;
  r.encode_s = 0.25;
  r.decode_s = 0.125;
  r.seconds = 9;
  r.wire = {{{1, 2, 3}}, {{4, 5, 6}}, 7};
  r.energies = {{"activation", "b0", 0.75}};
  return r;
}

TEST_F(JournalTest, WhatWasAppendedIsThereAfterReopening) {
  {
    auto journal = Journal::Open(dir_);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ((*journal)->Find("a"), nullptr);
    ASSERT_TRUE((*journal)->Append(Sample("a")).ok());
    ASSERT_TRUE((*journal)->AppendCompute("c", {{1, 2}, {3, 4}}).ok());
  }
  auto journal = Journal::Open(dir_);
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_NE((*journal)->Find("a"), nullptr);
  EXPECT_EQ(ToJsonLine(*(*journal)->Find("a")), ToJsonLine(Sample("a")));
  EXPECT_EQ((*journal)->Find("a")->loss, 1.0 / 3);
  ASSERT_NE((*journal)->Compute("c"), nullptr);
  EXPECT_EQ((*journal)->Compute("c")->backward_s[1], 4);
  EXPECT_EQ((*journal)->Compute("a"), nullptr);
}

TEST_F(JournalTest, ATornLastLineIsDroppedAndTheNextOneIsWhole) {
  ASSERT_TRUE((*Journal::Open(dir_))->Append(Sample("a")).ok());
  Write(ToJsonLine(Sample("b")).substr(0, 50));
  ASSERT_TRUE((*Journal::Open(dir_))->Append(Sample("c")).ok());
  auto journal = Journal::Open(dir_);
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_NE((*journal)->Find("a"), nullptr);
  EXPECT_EQ((*journal)->Find("b"), nullptr);
  EXPECT_NE((*journal)->Find("c"), nullptr);
}

TEST_F(JournalTest, AForeignLineIsNamed) {
  ASSERT_TRUE((*Journal::Open(dir_))->Append(Sample("a")).ok());
  for (const char* line : {"hello\n", "{\"cell\": 3}\n", "{\"compute\": \"c\"}\n", "[]\n"}) {
    Write(line);
    const auto journal = Journal::Open(dir_);
    EXPECT_EQ(journal.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(journal.status().message()), HasSubstr("cells.jsonl:2: "));
    std::filesystem::remove(dir_ + "/cells.jsonl");
    ASSERT_TRUE((*Journal::Open(dir_))->Append(Sample("a")).ok());
  }
}

TEST_F(JournalTest, OneProcessAtATime) {
  auto first = Journal::Open(dir_);
  ASSERT_TRUE(first.ok());
  const auto second = Journal::Open(dir_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--out"));
}

TEST_F(JournalTest, ADirectoryThatCanNotBeMadeIsAnError) {
  std::ofstream(dir_) << "a file";
  EXPECT_EQ(Journal::Open(dir_).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(JournalTest, WhatIsNoRegularFileIsSaidSo) {
  std::filesystem::create_directories(dir_);
  ASSERT_EQ(mkfifo((dir_ + "/cells.jsonl").c_str(), 0600), 0);
  const absl::Status status = Journal::Open(dir_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no regular file; name another --out"));
}

}  // namespace
}  // namespace isthmus::study
