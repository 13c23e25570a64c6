#include "worker/data/file_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "base/rng.h"
#include "tests/temp_directory.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename T>
std::string Bytes(int count, uint64_t below, uint64_t seed = 1) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    const T id = static_cast<T>(RandomBelow(seed, 0, i, below));
    out.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  return out;
}

std::string Headed(int32_t magic, int32_t version, int32_t count, const std::string& rest) {
  int32_t header[256] = {magic, version, count};
  return std::string(reinterpret_cast<const char*>(header), sizeof header) + rest;
}

class FileLookTest : public ::testing::Test {
 protected:
  FileLook Look(const std::string& contents, int64_t max_bytes = 1 << 20) {
    const std::string path = directory_.path() + "/file";
    std::ofstream(path, std::ios::binary) << contents;
    return LookAt(*WatchedFile::Open(path).value(), max_bytes).value();
  }
  void ExpectProblem(const std::string& contents, const std::string& format,
                     const std::string& words) {
    const FileLook look = Look(contents);
    EXPECT_EQ(look.format, format) << words;
    EXPECT_THAT(look.problem, StartsWith("offset "));
    EXPECT_THAT(look.problem, HasSubstr(words));
  }
  TempDirectory directory_;
};

TEST_F(FileLookTest, TokenIdsWithAndWithoutHeader) {
  // GPT-2's vocabulary, one of characters, one of four bases, and a single repeated id.
  for (uint64_t vocabulary : {50257, 65, 4, 65536}) {
    const std::string ids = Bytes<uint16_t>(5000, vocabulary);
    for (const std::string& file : {ids, Headed(20240520, 1, 5000, ids)}) {
      const FileLook look = Look(file);
      EXPECT_EQ(look.format, "uint16") << vocabulary;
      EXPECT_EQ(look.problem, "") << vocabulary;
      EXPECT_EQ(look.tokens, 5000);
      EXPECT_EQ(look.offset, file.size() > ids.size() ? 1024 : 0);
      EXPECT_LT(look.highest_id, static_cast<int64_t>(vocabulary));
      EXPECT_GT(look.highest_id, static_cast<int64_t>(vocabulary) * 9 / 10 - 1);
    }
  }
}

// What would be read as 16-bit ids, with a loss that falls faster than it should.
TEST_F(FileLookTest, WiderIdsAreSeen) {
  for (uint64_t vocabulary : {50257, 65, 4, 65536, 128256, 256000, 1 << 20}) {
    const std::string ids = Bytes<uint32_t>(2000, vocabulary);
    for (const std::string& file : {ids, Headed(20240801, 7, 2000, ids)}) {
      const FileLook look = Look(file);
      EXPECT_EQ(look.format, "uint32") << vocabulary;
      EXPECT_EQ(look.problem, "") << vocabulary;
      EXPECT_EQ(look.tokens, 2000);
      EXPECT_EQ(look.offset, file.size() > ids.size() ? 1024 : 0);
      EXPECT_LT(look.highest_id, static_cast<int64_t>(vocabulary));
      EXPECT_GT(look.highest_id, static_cast<int64_t>(vocabulary) * 9 / 10 - 1);
    }
    ExpectProblem(Bytes<int64_t>(2000, vocabulary), "int64", "these look like 64-bit ids");
  }
  const std::string last = Bytes<uint32_t>(2000, 500) + std::string("\x70\x11\x01\x00", 4);
  EXPECT_EQ(Look(last).highest_id, 70000) << "the last id of an odd number";
}

// Marks of padding, an id of another vocabulary: they are named, and make no two ids of each.
TEST_F(FileLookTest, AFewWrongIdsDoNotHideTheWidth) {
  for (uint64_t vocabulary : {65, 50257, 70000, 256000}) {
    for (const int64_t wrong : {-1, -100, 2000000}) {
      std::string ids = Bytes<uint32_t>(2000, vocabulary), wide = Bytes<int64_t>(2000, vocabulary);
      std::memcpy(&ids[4 * 1001], &wrong, 4);
      std::memcpy(&wide[8 * 1001], &wrong, 8);
      const FileLook look = Look(ids);
      EXPECT_EQ(look.format, "uint32") << vocabulary << ", " << wrong;
      EXPECT_EQ(look.problem, "");
      EXPECT_EQ(look.highest_id, static_cast<uint32_t>(wrong));
      ExpectProblem(wide, "int64", "these look like 64-bit ids");
    }
  }
  std::string padded = Bytes<int32_t>(2000, 50257);
  for (int i = 500; i < 1500; ++i) std::memset(&padded[4 * i], 0xff, 4);
  EXPECT_EQ(Look(padded).format, "uint32") << "half of the ids are -1";
}

TEST_F(FileLookTest, OtherFilesOfLlmC) {
  ExpectProblem(Headed(20240522, 1, 10042, Bytes<uint16_t>(2000, 50257)), "llm.c",
                "a multiple-choice set of llm.c (as hellaswag_val.bin) (magic 20240522)");
  ExpectProblem(Headed(20240326, 3, 1024, Bytes<uint32_t>(2000, 1 << 31)), "llm.c",
                "GPT-2 weights of llm.c (magic 20240326)");
  ExpectProblem(Headed(20240328, 2, 50257, "words"), "llm.c", "a tokenizer of llm.c");
  ExpectProblem(Headed(20250101, 1, 0, "later"), "llm.c", "a file of llm.c's kind");
}

TEST_F(FileLookTest, DamagedShards) {
  const std::string ids = Bytes<uint16_t>(300, 50257);
  ExpectProblem(Headed(20240520, 2, 300, ids), "uint16", "offset 4: header version 2");
  ExpectProblem(Headed(20240520, 1, 301, ids), "uint16", "the header says 301 tokens but 600");
  const std::string wide = Bytes<uint32_t>(300, 128256);
  ExpectProblem(Headed(20240801, 1, 300, wide), "uint32",
                "offset 4: header version 1 is not known (expected 7)");
  ExpectProblem(Headed(20240801, 7, 600, wide), "uint32", "the header says 600 tokens but 1200");
  ExpectProblem(wide + "ab", "uint32", "offset 1200: 1202 bytes are no whole number of 32-bit ids");
  ExpectProblem(ids + "x", "bytes", "offset 600: 601 bytes are no whole number of 16-bit ids");
  ExpectProblem(std::string(3000, '\0'), "uint16", "nothing but zeros");
  std::string swapped = ids;
  for (size_t i = 0; i < swapped.size(); i += 2) swapped[i] = '\0';
  ExpectProblem(swapped, "uint16", "high byte first");
}

TEST_F(FileLookTest, Text) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "Im Anfang schuf Gott Himmel und Erde.\r\n\t\f\xc3\xa4";
  const FileLook look = Look(text);
  EXPECT_EQ(look.format, "bytes");
  EXPECT_EQ(look.tokens, static_cast<int64_t>(text.size()));
  EXPECT_THAT(look.problem, HasSubstr("looks like plain text"));
  EXPECT_EQ(Look("ab").problem, "") << "two bytes say nothing";
  EXPECT_EQ(Look("").problem, "");
}

TEST_F(FileLookTest, WhatMustBeUnpacked) {
  ExpectProblem("\x1f\x8b\x08 and so on", "gzip", "compressed with gzip");
  ExpectProblem("\x28\xb5\x2f\xfd and so on", "zstd", "compressed with zstd");
  ExpectProblem("\x93NUMPY\x01", "numpy", "ids.tofile(FILE)");
  ExpectProblem("PK\x03\x04", "zip", "a zip archive");
}

TEST_F(FileLookTest, ALargeFileIsReadInParts) {
  std::string ids = Bytes<uint16_t>(300000, 1000);
  const FileLook whole = Look(ids), part = Look(ids, 2 * kLookBlockBytes);
  EXPECT_EQ(part.format, "uint16");
  EXPECT_NE(part.contents, whole.contents) << "other blocks";
  EXPECT_EQ(Look(ids, 2 * kLookBlockBytes).contents, part.contents);
  const uint16_t high = 60000;  // in the third block, which the partial look leaves out
  std::memcpy(&ids[5 * kLookBlockBytes / 2], &high, 2);
  EXPECT_EQ(Look(ids).highest_id, 60000);
  EXPECT_NE(Look(ids).contents, whole.contents);
  EXPECT_EQ(Look(ids, 2 * kLookBlockBytes).contents, part.contents);
  EXPECT_LT(Look(ids, 2 * kLookBlockBytes).highest_id, 1000);
  ids.back() ^= 1;
  EXPECT_NE(Look(ids, 2 * kLookBlockBytes).contents, part.contents) << "the last block is read";
  EXPECT_NE(Look(ids + "aa", 2 * kLookBlockBytes).contents, part.contents);
}

}  // namespace
}  // namespace isthmus::worker
