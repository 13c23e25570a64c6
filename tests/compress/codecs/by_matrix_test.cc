#include "compress/codecs/by_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/codec/codec_text.h"
#include "tests/compress/pair.h"
#include "tests/compress/string_state.h"

namespace isthmus::compress {
namespace {

using ::testing::HasSubstr;

const std::vector<TensorDims> kShapes = {{1, 1, 7}, {1, 12, 9}, {1, 1, 3}, {1, 5, 20}};
constexpr int64_t kElements = 7 + 108 + 3 + 100;

CodecOptions Options() {
  CodecOptions options;
  options.positions = kElements;
  options.hidden = 1;
  options.max_samples = 1;
  options.seed = 5;
  options.shapes = kShapes;
  return options;
}

std::string Encoded(Encoder* encoder, const std::vector<float>& x) {
  std::string payload;
  const absl::Status status =
      encoder->Encode({x.data(), DType::kF32, Device::kCpu, {1, kElements, 1}}, {}, &payload);
  EXPECT_TRUE(status.ok()) << status;
  return payload;
}

std::vector<float> Decoded(const CodecSpec& spec, const std::string& payload,
                           absl::Status* status = nullptr) {
  std::vector<float> out(kElements);
  auto decoder = MakeDecoder(spec, Options()).value();
  const absl::Status done =
      decoder->Decode(payload, 1, {}, {out.data(), DType::kF32, Device::kCpu, {1, kElements, 1}});
  if (status != nullptr) *status = done;
  return out;
}

TEST(ByMatrix, EachMatrixIsItsOwnAndVectorsAreExact) {
  const CodecSpec spec = ParseCodec("lowrank(2)").value();
  auto encoder = MakeEncoder(spec, Options()).value();
  const std::vector<float> x = Gaussian(kElements, 1, 1);
  const std::string payload = Encoded(encoder.get(), x);
  EXPECT_EQ(payload.size(), 4u * (7 + 2 * 21 + 3 + 2 * 25));
  const std::vector<float> out = Decoded(spec, payload);
  for (int i : {0, 6, 115, 117}) EXPECT_EQ(out[i], x[i]);
  // The first matrix by itself, with the seed that it has.
  CodecOptions alone;
  alone.positions = 12;
  alone.hidden = 9;
  alone.seed = RandomBits(5, 1, 0);
  auto one = MakeEncoder(spec, alone).value();
  std::string body;
  ASSERT_TRUE(one->Encode({x.data() + 7, DType::kF32, Device::kCpu, {1, 12, 9}}, {}, &body).ok());
  EXPECT_EQ(payload.substr(28, body.size()), body);
}

TEST(ByMatrix, AnEncoderThatWasLoadedGoesOnBitForBit) {
  const CodecSpec spec = ParseCodec("ef(lowrank(1))").value();
  auto encoder = MakeEncoder(spec, Options()).value();
  for (int frame = 0; frame < 3; ++frame) Encoded(encoder.get(), Gaussian(kElements, frame, 1));
  StateStamp stamp;
  stamp.place = 9;
  stamp.step = 3;
  StringSink sink;
  ASSERT_TRUE(SaveState(encoder.get(), spec, Options(), stamp, &sink).ok());
  StringSource source(sink.text);
  const auto loaded = LoadEncoder(spec, Options(), 9, 3, &source);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::vector<float> x = Gaussian(kElements, 7, 1);
  EXPECT_EQ(Encoded(loaded->codec.get(), x), Encoded(encoder.get(), x));
  CodecOptions other = Options();
  other.shapes[1] = {1, 9, 12};
  StringSource again(sink.text);
  EXPECT_THAT(std::string(LoadEncoder(spec, other, 9, 3, &again).status().message()),
              HasSubstr("other sizes"));
}

TEST(ByMatrix, WrongBytesAndShapesAreErrors) {
  const CodecSpec spec = ParseCodec("lowrank(2)").value();
  auto encoder = MakeEncoder(spec, Options()).value();
  std::string payload = Encoded(encoder.get(), Gaussian(kElements, 1, 1));
  absl::Status status;
  for (const std::string& bad : {payload + "x", payload.substr(1), std::string()}) {
    Decoded(spec, bad, &status);
    EXPECT_THAT(std::string(status.message()), HasSubstr("bytes where the tensors take 408"));
  }
  CodecOptions wrong = Options();
  wrong.shapes.pop_back();
  EXPECT_FALSE(MakeEncoder(spec, wrong).ok());
  wrong.shapes = {{1, -1, -kElements}};
  EXPECT_FALSE(MakeDecoder(spec, wrong).ok());
  EXPECT_THAT(
      std::string(
          MakeEncoder(ParseCodec("lowrank(2) | zstd").value(), Options()).status().message()),
      HasSubstr("zstd"));
}

}  // namespace
}  // namespace isthmus::compress
