#include "base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/file/random_access_file.h"
#include "base/rng.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::string File(absl::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), 8);
  absl::StrAppend(&out, header, std::string(data_bytes, 'x'));
  return out;
}

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
}

std::string Sample() {
  const std::string a = Bytes({1, 2, 3, 4, 5, 6}), b = Bytes({-1});
  return WriteSafetensors({{"h.0.weight", "F32", {2, 3}, a},
                           {"bias", "F32", {1}, b},
                           {"empty", "F16", {0, 4}, ""}},
                          {{"format", "pt"}})
      .value();
}

TEST(Safetensors, RoundTrip) {
  const std::string file = Sample();
  const auto parsed = ParseSafetensors(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->size(), 3u);
  EXPECT_EQ(parsed->at("h.0.weight").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(ToFloats(parsed->at("h.0.weight")).value(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(ToFloats(parsed->at("bias")).value(), (std::vector<float>{-1}));
  EXPECT_TRUE(ToFloats(parsed->at("empty"))->empty());
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_THAT(file, HasSubstr("\"__metadata__\":{\"format\":\"pt\"}"));
}

TEST(Safetensors, AFileWithoutTensorsIsFine) {
  const std::string file = WriteSafetensors({}, {}).value();
  EXPECT_TRUE(ParseSafetensors(file)->empty());
}

TEST(Safetensors, PlacesInAFileAreThoseInMemory) {
  TempDirectory scratch;
  const std::string path = scratch.path() + "/f.safetensors", file = Sample();
  ASSERT_TRUE(WriteFileDurably(path, file).ok());
  const auto opened = RandomAccessFile::Open(path);
  ASSERT_TRUE(opened.ok());
  const auto places = ReadSafetensorsPlaces(*opened);
  ASSERT_TRUE(places.ok()) << places.status();
  const auto entries = ParseSafetensors(file).value();
  ASSERT_EQ(places->size(), entries.size());
  for (const auto& [name, entry] : entries) {
    const SafetensorsPlace& place = places->at(name);
    EXPECT_EQ(place.dtype, entry.dtype);
    EXPECT_EQ(place.shape, entry.shape);
    EXPECT_EQ(absl::string_view(file).substr(place.at, place.bytes), entry.data) << name;
  }
  for (size_t n = 0; n < file.size(); ++n) {
    ASSERT_TRUE(WriteFileDurably(path, file.substr(0, n)).ok());
    EXPECT_FALSE(ReadSafetensorsPlaces(*RandomAccessFile::Open(path)).ok()) << n;
  }
}

TEST(Safetensors, HeadAndDataAreAFile) {
  const std::string head =
      SafetensorsHead({{"a", "F32", {1}}, {"b", "F16", {2, 2}}}, {{"format", "pt"}}).value();
  EXPECT_EQ(head.size() % 8, 0u);
  const std::string file = head + "1234" + "abcdefgh";
  const auto parsed = ParseSafetensors(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("a").data, "1234");
  EXPECT_EQ(parsed->at("b").data, "abcdefgh");
  EXPECT_FALSE(SafetensorsHead({{"__metadata__", "F32", {1}}}, {}).ok());
}

TEST(Safetensors, HalfTypes) {
  const uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x8000, 0x0400};
  const SafetensorsEntry f16{
      "F16", {7}, absl::string_view(reinterpret_cast<const char*>(half), sizeof half)};
  const std::vector<float> got = ToFloats(f16).value();
  EXPECT_EQ(got[0], 1.0f);
  EXPECT_EQ(got[1], -2.0f);
  EXPECT_EQ(got[2], std::ldexp(1.0f, -24));
  EXPECT_EQ(got[3], 65504.0f);
  EXPECT_TRUE(std::isinf(got[4]));
  EXPECT_TRUE(std::signbit(got[5]));
  EXPECT_EQ(got[6], std::ldexp(1.0f, -14));
  const uint16_t brain[] = {0x3f80, 0xc040};
  const SafetensorsEntry bf16{
      "BF16", {2}, absl::string_view(reinterpret_cast<const char*>(brain), sizeof brain)};
  EXPECT_EQ(ToFloats(bf16).value(), (std::vector<float>{1, -3}));
  EXPECT_EQ(ToFloats(SafetensorsEntry{"I64", {1}, "12345678"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A piece of a tensor, from a file, of each type: the floats are those of the whole in memory.
TEST(Safetensors, PiecesAsFloats) {
  std::string half, single;
  for (uint32_t i = 0; i < 1000; ++i) {
    const auto bits = static_cast<uint16_t>(i * 65);
    half.append(reinterpret_cast<const char*>(&bits), 2);
    const float value = static_cast<float>(i) / 3;
    single.append(reinterpret_cast<const char*>(&value), 4);
  }
  const std::string file = WriteSafetensors({{"a", "F16", {10, 100}, half},
                                             {"b", "BF16", {1000}, half},
                                             {"c", "F32", {1000}, single},
                                             {"d", "I32", {1000}, single}},
                                            {})
                               .value();
  const auto entries = ParseSafetensors(file).value();
  const MemorySource source(file);
  const auto places = ReadSafetensorsPlaces(source).value();
  for (const char* name : {"a", "b", "c"}) {
    const std::vector<float> whole = ToFloats(entries.at(name)).value();
    for (const auto& [first, count] : {std::pair{0, 1000}, {3, 1}, {500, 499}, {1000, 0}}) {
      std::vector<float> piece(count);
      ASSERT_TRUE(ReadFloats(source, places.at(name), first, absl::MakeSpan(piece)).ok()) << name;
      for (int i = 0; i < count; ++i) {
        EXPECT_EQ(absl::bit_cast<uint32_t>(piece[i]), absl::bit_cast<uint32_t>(whole[first + i]))
            << name << " " << first + i;
      }
    }
    std::vector<float> beyond(2);
    EXPECT_FALSE(ReadFloats(source, places.at(name), 999, absl::MakeSpan(beyond)).ok()) << name;
    EXPECT_FALSE(ReadFloats(source, places.at(name), -1, absl::MakeSpan(beyond)).ok()) << name;
  }
  std::vector<float> none(1);
  EXPECT_EQ(ReadFloats(source, places.at("d"), 0, absl::MakeSpan(none)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Safetensors, WriterRefusesWhatItCannotWrite) {
  const auto code = [](std::vector<SafetensorsItem> items) {
    return WriteSafetensors(std::move(items), {}).status().code();
  };
  EXPECT_EQ(code({{"a", "F32", {2}, "1234"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", "F32", {1}, "1234"}, {"a", "F32", {1}, "1234"}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"__metadata__", "F32", {1}, "1234"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", "F99", {1}, "1234"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"\xff\xfe", "F32", {1}, "1234"}}), absl::StatusCode::kInvalidArgument);
}

TEST(Safetensors, HostileHeaders) {
  const struct {
    const char* header;
    size_t data_bytes;
    const char* says;
  } cases[] = {
      {"", 0, "JSON"},
      {"[]", 0, "JSON"},
      {"{\"a\":1}", 0, "object"},
      {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}", 4,
       "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]}}", 4,
       "outside"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "outside"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "needs 8"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "end at"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\","
       "\"shape\":[1],\"data_offsets\":[4,8]}}",
       8, "inside another"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\","
       "\"shape\":[1],\"data_offsets\":[0,4]}}",
       4, "twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[[[1]]]],\"data_offsets\":[0,4]}}", 4, "deep"},
      {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "JSON"},
  };
  for (const auto& c : cases) {
    const std::string file = File(c.header, c.data_bytes);
    const auto parsed = ParseSafetensors(file);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << c.header;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.says)) << c.header;
  }
  EXPECT_FALSE(ParseSafetensors("").ok());
  EXPECT_FALSE(ParseSafetensors("1234567").ok());
  EXPECT_FALSE(ParseSafetensors(std::string(8, '\xff')).ok());
  const std::string nested = File(std::string(1 << 20, '['), 0);
  EXPECT_FALSE(ParseSafetensors(nested).ok());
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = Sample();
  for (size_t n = 0; n < file.size(); ++n) {
    const std::string cut = file.substr(0, n);
    EXPECT_FALSE(ParseSafetensors(cut).ok()) << n;
  }
  EXPECT_FALSE(ParseSafetensors(file + "x").ok());
}

TEST(Safetensors, NoBitFlipCrashes) {
  const std::string file = Sample();
  for (uint64_t round = 0; round < 20000; ++round) {
    std::string bad = file;
    const int flips = 1 + RandomBelow(7, 0, round, 4);
    for (int i = 0; i < flips; ++i) {
      const uint64_t bit = RandomBelow(7, 1 + i, round, 8 * bad.size());
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    }
    const auto parsed = ParseSafetensors(bad);
    if (!parsed.ok()) continue;
    for (const auto& [name, entry] : *parsed) {  // what is accepted lies inside the file
      EXPECT_GE(entry.data.data(), bad.data());
      EXPECT_LE(entry.data.data() + entry.data.size(), bad.data() + bad.size());
      (void)ToFloats(entry);
    }
  }
}

}  // namespace
}  // namespace isthmus
