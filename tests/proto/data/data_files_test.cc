#include "proto/data/data_files.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(DataFiles, PathsHaveOneForm) {
  EXPECT_EQ(NormalDataPath("a/b.bin"), "a/b.bin");
  EXPECT_EQ(NormalDataPath("./a//b/./"), "a/b");
  EXPECT_EQ(NormalDataPath("."), "");
  EXPECT_EQ(NormalDataPath("../a"), "../a")
      << "what leaves the directory is the reader's to refuse";
}

TEST(DataFiles, ValidationShardsAreThoseThatSaySo) {
  for (const char* name : {"val.bin", "fineweb_val_000000.bin", "TinyStories-valid.bin", "VAL2.bin",
                           "x.validation.003.bin"}) {
    EXPECT_TRUE(IsValidationShard(name)) << name;
  }
  for (const char* name : {"train.bin", "valley.bin", "interval_01.bin", "val.txt", "val",
                           "fineweb_train_000001.bin"}) {
    EXPECT_FALSE(IsValidationShard(name)) << name;
  }
  EXPECT_TRUE(IsShard("a/b.bin"));
  EXPECT_FALSE(IsShard("a/b.bin.gz"));
}

TEST(DataFiles, SamplesAreCutWithOneTokenForTheLastTarget) {
  EXPECT_EQ(CutSamples(401, SampleShape::OfText(4), 0.1).train, 90);
  EXPECT_EQ(CutSamples(401, SampleShape::OfText(4), 0.1).validation, 10);
  EXPECT_EQ(CutSamples(400, SampleShape::OfText(4), 0).train, 99);
  EXPECT_EQ(CutSamples(0, SampleShape::OfText(4), 0.1).train, 0);
  EXPECT_EQ(CutOwnValidation(401, 41, SampleShape::OfText(4)).train, 100);
  EXPECT_EQ(CutOwnValidation(401, 41, SampleShape::OfText(4)).validation, 10);
}

TEST(DataFiles, RowsAreCutWithoutATokenMore) {
  const SampleShape shape = SampleShape::OfRows(4);
  EXPECT_EQ(CutSamples(500, shape, 0.1).train, 90);
  EXPECT_EQ(CutSamples(500, shape, 0.1).validation, 10);
  EXPECT_EQ(CutSamples(4, shape, 0.1).train, 0);
  EXPECT_EQ(CutOwnValidation(500, 50, shape).validation, 10);
  EXPECT_EQ(NoWholeRows(500, shape), "");
  EXPECT_THAT(NoWholeRows(501, shape), ::testing::HasSubstr("501 ids, no whole number of rows"));
  EXPECT_EQ(NoWholeRows(501, SampleShape::OfText(4)), "");
}

TEST(DataFiles, PlainFormatsCanBeReadAsBytes) {
  for (const char* format : {kFormatBytes, kFormatUint16, kFormatUint32, kFormatInt64})
    EXPECT_TRUE(IsPlainFormat(format));
  EXPECT_FALSE(IsPlainFormat("gzip"));
  EXPECT_FALSE(IsPlainFormat(""));
}

}  // namespace
}  // namespace isthmus
