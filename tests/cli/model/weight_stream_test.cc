#include "coordinator/cli/model/weight_stream.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "base/file/durable_file.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

std::string Floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class WeightStreamTest : public testing::Test {
 protected:
  struct File {
    std::shared_ptr<const RandomAccessFile> file;
    std::map<std::string, SafetensorsPlace> places;
  };
  File Store(const std::string& name, std::vector<SafetensorsItem> items) {
    const std::string path = scratch_.path() + "/" + name;
    EXPECT_TRUE(WriteFileDurably(path, WriteSafetensors(std::move(items), {}).value()).ok());
    File out;
    out.file = std::make_shared<RandomAccessFile>(RandomAccessFile::Open(path).value());
    out.places = ReadSafetensorsPlaces(*out.file).value();
    return out;
  }
  TempDirectory scratch_;
};

TEST_F(WeightStreamTest, TensorsOfSeveralFilesAndTypesAreOneFileInF32) {
  std::vector<float> big(200001);
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<float>(i);
  const std::string bytes = Floats(big);
  const uint16_t brain[] = {0x3f80, 0xc040};
  const File one = Store("one", {{"z", "F32", {200001}, bytes}});
  const File two =
      Store("two", {{"half", "BF16", {2}, {reinterpret_cast<const char*>(brain), sizeof(brain)}}});
  WeightStream stream;
  ASSERT_TRUE(stream.Add("t.z", {200001}, one.file, one.places.at("z")).ok());
  ASSERT_TRUE(stream.Add("t.a", {2}, two.file, two.places.at("half")).ok());
  ASSERT_TRUE(stream.Add("t.first", {3}, one.file, one.places.at("z")).ok());
  ASSERT_TRUE(stream.Seal().ok());
  std::string all;
  size_t largest = 0;
  ASSERT_TRUE(stream
                  .Write([&](absl::string_view piece) {
                    largest = std::max(largest, piece.size());
                    all.append(piece.data(), piece.size());
                    return true;
                  })
                  .ok());
  EXPECT_LE(largest, 256u << 10) << "a fixed buffer";
  EXPECT_EQ(stream.bytes(), static_cast<int64_t>(all.size()));
  EXPECT_EQ(stream.checksum(), Hash64(all));
  EXPECT_EQ(stream.elements(), 200006);
  const auto parsed = ParseSafetensors(all);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToFloats(parsed->at("t.z")).value(), big);
  EXPECT_EQ(ToFloats(parsed->at("t.a")).value(), (std::vector<float>{1, -3}));
  EXPECT_EQ(ToFloats(parsed->at("t.first")).value(), (std::vector<float>{0, 1, 2}));
  int pieces = 0;
  ASSERT_TRUE(stream.Write([&](absl::string_view) { return ++pieces < 2; }).ok());
  EXPECT_EQ(pieces, 2) << "the taker may end it";
}

TEST_F(WeightStreamTest, WhatCannotBeTrainedIsNamed) {
  const std::string bytes = Floats({1, std::nanf(""), 3});
  const File file = Store("f", {{"w", "F32", {3}, bytes}, {"i", "I64", {1}, "12345678"}});
  WeightStream stream;
  EXPECT_THAT(std::string(stream.Add("w", {3}, file.file, file.places.at("w")).message()),
              HasSubstr("w: element 1 is nan"));
  EXPECT_THAT(std::string(stream.Add("i", {1}, file.file, file.places.at("i")).message()),
              HasSubstr("I64"));
  EXPECT_FALSE(stream.Add("w", {4}, file.file, file.places.at("w")).ok());
  EXPECT_TRUE(stream.Add("w", {1}, file.file, file.places.at("w")).ok()) << "the first is fine";
}

TEST_F(WeightStreamTest, ComparesAcrossTypesAndBuffers) {
  std::vector<float> a(70000, 1.0f), b = a;
  b[66000] = 2;
  b[69999] = 3;
  const std::string a_bytes = Floats(a), b_bytes = Floats(b);
  const File file = Store("f", {{"a", "F32", {70000}, a_bytes}, {"b", "F32", {70000}, b_bytes}});
  const auto compare = [&](const char* x, const char* y) {
    return CompareTensors(*file.file, file.places.at(x), *file.file, file.places.at(y), 70000)
        .value();
  };
  EXPECT_EQ(compare("a", "a").count, 0);
  EXPECT_EQ(compare("a", "b").count, 2);
  EXPECT_EQ(compare("a", "b").first, 66000);
  EXPECT_EQ(compare("a", "b").a, 1);
  EXPECT_EQ(compare("a", "b").b, 2);
}

}  // namespace
}  // namespace isthmus::cli
