#include "worker/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "proto/data/data_files.h"
#include "proto/job/job_defaults.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CorpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isthmus-corpus-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const std::string& path, const std::string& bytes) {
    fs::create_directories((fs::path(dir_) / path).parent_path());
    std::ofstream(fs::path(dir_) / path, std::ios::binary) << bytes;
  }

  static std::string Tokens(int first, int count) {
    std::string out;
    for (int i = first; i < first + count; ++i)
      out += {static_cast<char>(i & 255), static_cast<char>(i >> 8)};
    return out;
  }

  JobSpec RowsJob(int inputs, int classes) {
    JobSpec job;
    job.mutable_data()->set_path("rows.bin");
    job.mutable_data()->set_validation_share(0.25);
    ModelSpec* m = job.mutable_model();
    m->set_family("mlp");
    m->set_inputs(inputs);
    m->set_classes(classes);
    job.mutable_recipe()->set_global_batch(2);
    FillDefaults(&job);
    return job;
  }

  static std::string Headed(const std::string& tokens, int32_t version = 1, int32_t count = -1,
                            int32_t magic = 20240520) {
    int32_t header[256] = {magic, version,
                           count >= 0 ? count : static_cast<int32_t>(tokens.size() / 2)};
    return std::string(reinterpret_cast<const char*>(header), sizeof header) + tokens;
  }

  JobSpec Job(const std::string& path, int context = 4, double share = 0.0, int batch = 2) {
    JobSpec job;
    job.mutable_data()->set_path(path);
    job.mutable_data()->set_validation_share(share);
    job.mutable_model()->set_context(context);
    job.mutable_model()->set_vocabulary(1000);
    if (!fs::path(path).has_extension()) job.mutable_data()->set_format("tokens");
    job.mutable_recipe()->set_global_batch(batch);
    FillDefaults(&job);
    return job;
  }

  absl::Status Error(const JobSpec& job) { return OpenCorpus(dir_, job).status(); }

  std::string dir_;
};

TEST_F(CorpusTest, ARowIsItsValuesAndAClass) {
  Write("rows.bin", Headed(Tokens(0, 16)));  // four rows of three values: classes 3, 7, 11, 15
  const auto corpus = OpenCorpus(dir_, RowsJob(3, 16));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ((*corpus)->train_samples(), 3);
  EXPECT_EQ((*corpus)->validation_samples(), 1);
  EXPECT_EQ((*corpus)->context(), 1);
  uint32_t values[3] = {}, row_class = 0;
  ASSERT_TRUE((*corpus)->Read(2, values, &row_class).ok());
  EXPECT_THAT(values, ::testing::ElementsAre(8, 9, 10));
  EXPECT_EQ(row_class, 11u);
  ASSERT_TRUE((*corpus)->Read(3, nullptr, &row_class).ok());
  EXPECT_EQ(row_class, 15u);
}

TEST_F(CorpusTest, FilesThatAreNoSuchRowsAreRefused) {
  const auto refusal = [&](const std::string& file, int inputs, int classes) {
    Write("rows.bin", file);
    return std::string(OpenCorpus(dir_, RowsJob(inputs, classes)).status().message());
  };
  EXPECT_THAT(refusal(Headed(Tokens(0, 17)), 3, 16), HasSubstr("17 ids, no whole number of rows"));
  EXPECT_THAT(refusal(Headed(Tokens(0, 16)), 3, 15),
              HasSubstr("offset 1054: class 15 is beyond model.classes (15)"));
  EXPECT_THAT(refusal(Headed(Tokens(250, 16)), 3, 256), HasSubstr("token 256 is beyond"));
}

TEST_F(CorpusTest, BytesAreShiftedByOne) {
  Write("text.txt", "abcdefghijklm");  // 13 tokens: 3 samples of 4
  const auto corpus = OpenCorpus(dir_, Job("text.txt"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ((*corpus)->train_samples(), 3);
  EXPECT_EQ((*corpus)->validation_samples(), 0);
  uint32_t tokens[4], targets[4];
  ASSERT_TRUE((*corpus)->Read(2, tokens, targets).ok());
  EXPECT_EQ(std::string(tokens, tokens + 4), "ijkl");
  EXPECT_EQ(std::string(targets, targets + 4), "jklm");
  ASSERT_TRUE((*corpus)->Read(0, nullptr, targets).ok());
  EXPECT_EQ(std::string(targets, targets + 4), "bcde");
}

TEST_F(CorpusTest, ValidationIsTheLastShare) {
  Write("text.txt", std::string(401, '\xe9'));
  const auto corpus = OpenCorpus(dir_, Job("text.txt", 4, 0.1));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ((*corpus)->train_samples(), 90);
  EXPECT_EQ((*corpus)->validation_samples(), 10);
  uint32_t tokens[4], targets[4];
  ASSERT_TRUE((*corpus)->Read(99, tokens, targets).ok());
  EXPECT_EQ(tokens[0], 0xe9);  // bytes are not signed
}

TEST_F(CorpusTest, PlainAndHeadedShardsInNameOrder) {
  Write("shards/b_001.bin", Headed(Tokens(10, 7)));
  Write("shards/a_000.bin", Tokens(0, 10));
  Write("shards/c.bin", "");
  Write("shards/d_002.bin", Tokens(17, 8));
  Write("shards/readme.txt", "not a shard");
  const auto corpus = OpenCorpus(dir_, Job("shards"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  ASSERT_EQ((*corpus)->train_samples(), 6);
  for (uint32_t id = 0; id < 6; ++id) {
    uint32_t tokens[4], targets[4];
    ASSERT_TRUE((*corpus)->Read(id, tokens, targets).ok());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(tokens[i], 4 * id + i);
      EXPECT_EQ(targets[i], 4 * id + i + 1);
    }
  }
}

TEST_F(CorpusTest, FingerprintFollowsContentsNotTheCut) {
  Write("a.bin", Tokens(0, 30));
  Write("cut/0.bin", Tokens(0, 11));
  Write("cut/1.bin", Headed(Tokens(11, 19)));
  Write("b.bin", Tokens(1, 30));
  Write("c.bin", Tokens(0, 31));
  const uint64_t a = OpenCorpus(dir_, Job("a.bin")).value()->fingerprint();
  EXPECT_EQ(a, OpenCorpus(dir_, Job("cut")).value()->fingerprint());
  EXPECT_NE(a, OpenCorpus(dir_, Job("b.bin")).value()->fingerprint());
  EXPECT_NE(a, OpenCorpus(dir_, Job("c.bin")).value()->fingerprint());
}

// nanoGPT's prepare.py writes both into one directory.
TEST_F(CorpusTest, ShardsThatAreCalledValAreTheValidationSet) {
  Write("set/train.bin", Tokens(0, 41));
  Write("set/val.bin", Tokens(500, 13));
  const auto corpus = OpenCorpus(dir_, Job("set", 4, 0.5)).value();
  EXPECT_EQ(corpus->train_samples(), 10) << "no share of the training tokens is kept back";
  EXPECT_EQ(corpus->validation_samples(), 3);
  uint32_t tokens[4], targets[4];
  ASSERT_TRUE(corpus->Read(9, tokens, targets).ok());
  EXPECT_EQ(targets[3], 40);
  ASSERT_TRUE(corpus->Read(10, tokens, targets).ok());
  EXPECT_EQ(tokens[0], 500);
  ASSERT_TRUE(corpus->Read(12, tokens, targets).ok());
  EXPECT_EQ(targets[3], 512);
  const uint64_t with = corpus->fingerprint();
  Write("set/val.bin", Tokens(501, 13));
  EXPECT_NE(OpenCorpus(dir_, Job("set")).value()->fingerprint(), with);
  Write("other/train.bin", Tokens(0, 41));
  EXPECT_NE(OpenCorpus(dir_, Job("other")).value()->fingerprint(), with);
  Write("set/val.bin", Tokens(990, 20));
  EXPECT_THAT(std::string(Error(Job("set")).message()),
              HasSubstr("val.bin, offset 20: token 1000"));
  Write("val/fineweb_val_000000.bin", Tokens(0, 41));
  EXPECT_THAT(std::string(Error(Job("val")).message()), HasSubstr("holds validation shards alone"));
  EXPECT_TRUE(Error(Job("val/fineweb_val_000000.bin")).ok()) << "a file by its name is the text";
}

// A vocabulary beyond 65536, by llm.c's header and without one; a directory may hold both widths.
TEST_F(CorpusTest, TokensOf32Bits) {
  std::string wide, headed;
  for (uint32_t i = 0; i < 100; ++i) {
    const uint32_t id = 70000 + 1000 * i;
    wide.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  headed = Headed(wide, 7, 100, 20240801);
  Write("plain.bin", wide);
  Write("set/a.bin", headed);
  Write("set/b.bin", Tokens(0, 21));
  JobSpec job = Job("set");
  EXPECT_THAT(std::string(Error(job).message()), HasSubstr("a.bin, offset 1024: token 70000"));
  job.mutable_model()->set_vocabulary(169000);
  EXPECT_THAT(std::string(Error(job).message()),
              HasSubstr("a.bin, offset 1420: token 169000 is beyond model.vocabulary (169000)"));
  job.mutable_model()->set_vocabulary(169001);
  const auto corpus = OpenCorpus(dir_, job).value();
  EXPECT_EQ(corpus->train_samples(), 30);
  uint32_t tokens[4], targets[4];
  ASSERT_TRUE(corpus->Read(0, tokens, targets).ok());
  EXPECT_EQ(tokens[0], 70000U);
  EXPECT_EQ(targets[3], 74000U);
  ASSERT_TRUE(corpus->Read(24, tokens, targets).ok());  // the last token of a.bin, then b.bin's
  EXPECT_EQ(tokens[3], 169000U);
  EXPECT_EQ(targets[3], 0U);
  job.mutable_data()->set_path("plain.bin");
  const auto plain = OpenCorpus(dir_, job).value();
  ASSERT_TRUE(plain->Read(1, tokens, targets).ok());
  EXPECT_EQ(tokens[0], 74000U);
  Write("same.bin", headed);
  job.mutable_data()->set_path("same.bin");
  EXPECT_EQ(OpenCorpus(dir_, job).value()->fingerprint(), plain->fingerprint());
}

TEST_F(CorpusTest, WhatIsNoFileOfTokenIdsIsRefusedByName) {
  std::string wide;
  for (int i = 0; i < 600; ++i) wide += Tokens(i % 300, 1) + std::string(6, '\0');
  Write("wide.bin", wide);
  EXPECT_THAT(std::string(Error(Job("wide.bin")).message()),
              HasSubstr("wide.bin, offset 0: these look like 64-bit ids"));
  Write("text.txt", "\x1f\x8b\x08" + std::string(500, 'a'));
  EXPECT_THAT(std::string(Error(Job("text.txt")).message()), HasSubstr("compressed with gzip"));
  Write("words.bin", std::string(600, 'a'));
  EXPECT_THAT(std::string(Error(Job("words.bin")).message()), HasSubstr("set data.format: bytes"));
  JobSpec bytes = Job("words.bin");
  bytes.mutable_data()->set_format("bytes");
  EXPECT_TRUE(Error(bytes).ok());
}

// `cp other.txt text.txt` while a job trains.
TEST_F(CorpusTest, AFileThatChangesUnderTheRunIsTold) {
  Write("text.txt", std::string(200000, 'a'));
  Write("shards/a.bin", Tokens(0, 500));
  Write("shards/b.bin", Tokens(500, 500));
  const auto text = OpenCorpus(dir_, Job("text.txt")).value();
  const auto shards = OpenCorpus(dir_, Job("shards")).value();
  uint32_t tokens[4], targets[4];
  Write("text.txt", std::string(200000, 'b'));
  const absl::Status other = text->Read(7, tokens, targets);
  EXPECT_THAT(std::string(other.message()), HasSubstr("text.txt was changed while it was in use"));
  Write("text.txt", "short");
  EXPECT_EQ(text->Read(30000, tokens, targets).code(), absl::StatusCode::kFailedPrecondition);
  fs::resize_file(fs::path(dir_) / "shards/b.bin", 20);
  EXPECT_TRUE(shards->Read(0, tokens, targets).ok());
  EXPECT_THAT(std::string(shards->Read(200, tokens, targets).message()), HasSubstr("b.bin"));
}

TEST_F(CorpusTest, PathsStayUnderTheDataDirectory) {
  Write("text.txt", "abcdefghijklm");
  EXPECT_THAT(std::string(Error(Job("/etc/passwd.txt")).message()),
              HasSubstr("relative to each daemon's --data-dir"));
  EXPECT_THAT(std::string(Error(Job("a/../../text.txt")).message()), HasSubstr("remove '..'"));
  EXPECT_EQ(Error(Job("..")), CheckDataPath(".."));
  EXPECT_EQ(Error(Job(std::string("a\0.txt", 6))), CheckDataPath(absl::string_view("a\0.txt", 6)));
  EXPECT_EQ(Error(Job("")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Error(Job("./text.txt")).ok());
}

TEST_F(CorpusTest, MissingFilesAreNamed) {
  const absl::Status missing = Error(Job("no/such.txt"));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(dir_ + "/no/such.txt"));
  fs::create_directories(fs::path(dir_) / "empty");
  EXPECT_EQ(Error(Job("empty")).code(), absl::StatusCode::kNotFound);
  JobSpec bytes_of_a_directory = Job("empty");
  bytes_of_a_directory.mutable_data()->set_format("bytes");
  EXPECT_THAT(std::string(Error(bytes_of_a_directory).message()), HasSubstr("is a directory"));
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  JobSpec bytes_of_a_fifo = Job("fifo");
  bytes_of_a_fifo.mutable_data()->set_format("bytes");
  EXPECT_THAT(std::string(Error(bytes_of_a_fifo).message()), HasSubstr("not a regular file"));
}

TEST_F(CorpusTest, BadShardsNameFileAndOffset) {
  Write("odd.bin", Tokens(0, 30) + "x");
  EXPECT_THAT(std::string(Error(Job("odd.bin")).message()), HasSubstr("odd.bin, offset 60"));
  Write("version.bin", Headed(Tokens(0, 30), 2));
  EXPECT_THAT(std::string(Error(Job("version.bin")).message()),
              HasSubstr("offset 4: header version 2"));
  Write("count.bin", Headed(Tokens(0, 30), 1, 31));
  EXPECT_THAT(std::string(Error(Job("count.bin")).message()),
              HasSubstr("offset 8: the header says 31 tokens but 60 bytes"));
  Write("wide.bin", Headed(Tokens(0, 30), 7, 30, 20240801));
  EXPECT_THAT(std::string(Error(Job("wide.bin")).message()),
              HasSubstr("offset 8: the header says 30 tokens but 60 bytes"));
}

TEST_F(CorpusTest, ATokenBeyondTheVocabularyIsFound) {
  Write("big.bin", Headed(Tokens(0, 20) + Tokens(1000, 1) + Tokens(0, 20)));
  EXPECT_THAT(std::string(Error(Job("big.bin")).message()),
              HasSubstr("big.bin, offset 1064: token 1000 is beyond model.vocabulary (1000)"));
  JobSpec job = Job("big.bin");
  job.mutable_model()->set_vocabulary(1001);
  EXPECT_TRUE(Error(job).ok());
}

TEST_F(CorpusTest, TooSmallForABatchSaysTheFigures) {
  Write("text.txt", "abcdefghijklm");
  EXPECT_THAT(std::string(Error(Job("text.txt", 4, 0.0, 4)).message()),
              HasSubstr("13 tokens make 3 training samples of context 4"));
  Write("empty.txt", "");
  EXPECT_EQ(Error(Job("empty.txt")).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SampleOrder, EveryEpochIsAPermutationOfItsOwn) {
  SampleOrder order(7, 23, 5);
  std::vector<uint32_t> epochs[2];
  for (int64_t step = 0; step < 8; ++step) {
    const std::vector<uint32_t> ids = order.Step(step);
    ASSERT_EQ(ids.size(), 5u);
    epochs[step / 4].insert(epochs[step / 4].end(), ids.begin(), ids.end());
  }
  for (const auto& ids : epochs) {
    EXPECT_EQ(std::set<uint32_t>(ids.begin(), ids.end()).size(), 20u);
    EXPECT_LT(*std::max_element(ids.begin(), ids.end()), 23u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(SampleOrder, IsAFunctionOfSeedAndStep) {
  SampleOrder forward(7, 100, 8), jump(7, 100, 8), other(8, 100, 8);
  for (int64_t step = 0; step < 30; ++step) forward.Step(step);
  EXPECT_EQ(forward.Step(29), jump.Step(29));
  EXPECT_EQ(forward.Step(3), jump.Step(3));  // and back to an earlier epoch
  EXPECT_NE(forward.Step(3), other.Step(3));
}

// What the order was before positions were kept: checkpoints of those versions go on in it.
TEST(SampleOrder, AConstantBatchHasTheStepsItAlwaysHad) {
  constexpr int64_t kSamples = 23, kBatch = 5;
  SampleOrder order(7, kSamples, kBatch);
  for (int64_t step = 0; step < 13; ++step) {
    const int64_t epoch = step / (kSamples / kBatch), at = step % (kSamples / kBatch) * kBatch;
    std::vector<uint32_t> permutation(kSamples);
    std::iota(permutation.begin(), permutation.end(), 0u);
    for (int64_t i = kSamples - 1; i > 0; --i)
      std::swap(permutation[i], permutation[RandomBelow(7, epoch, i, i + 1)]);
    EXPECT_EQ(order.Step(step),
              std::vector<uint32_t>(permutation.begin() + at, permutation.begin() + at + kBatch))
        << "step " << step;
  }
}

// Above the bound ids are computed; positions and passes are the same.
TEST(SampleOrder, EveryEpochOfALargeTextIsAPermutationOfItsOwn) {
  constexpr int64_t kSamples = 1003, kBatch = 7, kSteps = kSamples / kBatch;
  SampleOrder order(7, kSamples, kBatch, 0, DataPosition(), kSamples - 1);
  SampleOrder shuffled(7, kSamples, kBatch, 0, DataPosition(), kSamples);
  std::vector<uint32_t> epochs[2];
  for (int64_t step = 0; step < 2 * kSteps; ++step) {
    const std::vector<uint32_t> ids = order.Step(step);
    ASSERT_EQ(ids.size(), static_cast<size_t>(kBatch));
    epochs[step / kSteps].insert(epochs[step / kSteps].end(), ids.begin(), ids.end());
    EXPECT_EQ(order.At(step).epoch(), shuffled.At(step).epoch());
    EXPECT_EQ(order.At(step).offset(), shuffled.At(step).offset());
  }
  for (const auto& ids : epochs) {
    EXPECT_EQ(std::set<uint32_t>(ids.begin(), ids.end()).size(), kSteps * kBatch);
    EXPECT_LT(*std::max_element(ids.begin(), ids.end()), kSamples);
    EXPECT_FALSE(std::is_sorted(ids.begin(), ids.end()));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(order.Step(0), shuffled.Step(0));  // the bound decides
  SampleOrder resumed(7, kSamples, kBatch, 100, order.At(100), kSamples - 1);
  EXPECT_EQ(resumed.Step(150), order.Step(150));
}

// A shuffle of the most samples that a corpus may have would take 17 GB of memory, and minutes.
TEST(SampleOrder, TheLargestTextCostsNoMemory) {
  constexpr int64_t kSamples = (int64_t{1} << 32) - 1;
  SampleOrder order(7, kSamples, 4);
  std::vector<uint32_t> ids;
  for (int64_t step : {int64_t{0}, kSamples / 4 - 1, kSamples / 4, 3 * (kSamples / 4)}) {
    for (uint32_t id : order.Step(step)) ids.push_back(id);
  }
  EXPECT_EQ(std::set<uint32_t>(ids.begin(), ids.end()).size(), 16u);
  EXPECT_EQ(order.At(kSamples / 4 + 1).epoch(), 1);
}

TEST(SampleOrder, AnotherBatchGoesOnWhereTheDataStand) {
  constexpr int64_t kSamples = 100;
  SampleOrder before(7, kSamples, 8);
  std::vector<uint32_t> ids;
  for (int64_t step = 0; step < 3; ++step) {
    for (uint32_t id : before.Step(step)) ids.push_back(id);
  }
  SampleOrder after(7, kSamples, 19, 3, before.At(3));
  for (int64_t step = 3; step < 7; ++step) {
    for (uint32_t id : after.Step(step)) ids.push_back(id);
  }
  ASSERT_EQ(ids.size(), 100u);  // 3 x 8 + 4 x 19: one whole pass
  EXPECT_EQ(std::set<uint32_t>(ids.begin(), ids.end()).size(), 100u);
  EXPECT_EQ(after.At(7).samples(), 100);
  EXPECT_EQ(after.At(7).epoch(), 0);
  EXPECT_EQ(after.At(8).epoch(), 1);
}

}  // namespace
}  // namespace isthmus::worker
