#include "compress/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

const char* const kTexts[] = {"none",
                              "bf16",
                              "fp16",
                              "quant(1)",
                              "quant(2)",
                              "quant(3, token)",
                              "quant(4, group=32)",
                              "quant(5, rms)",
                              "quant(6, stochastic)",
                              "quant(7, symmetric)",
                              "quant(8)",
                              "delta(quant(3))",
                              "delta(quant(2, stochastic), cold=bf16)",
                              "delta(fp16, cold=quant(8))",
                              "sign",
                              "sign(token)",
                              "topk(0.1)",
                              "topk(0.3, global, values=quant(4, group=32))",
                              "randomk(0.2)",
                              "randomk(0.2, scaled, values=quant(8, token))",
                              "cocktail(0.5, 0.3, 4)",
                              "lowrank(2)",
                              "lowrank(3, values=bf16)",
                              "ef(quant(2))",
                              "lep(topk(0.2))",
                              "delta(topk(0.2, values=quant(4, token)))",
                              "delta(lowrank(2))",
                              "delta(sign)",
                              "predict(quant(3))",
                              "delta(quant(3), cold=predict(quant(4)))",
                              "delta(quant(3), buffer=4)",
                              "delta(bf16, cold=quant(8, group=256), buffer=8)",
                              "predict(quant(3, token, symmetric), context=3, next)",
                              "sign(group=32)",
                              "randomk(0.5, values=topk(0.5))",
                              "lep(lowrank(2))"};
const std::pair<int64_t, int64_t> kShapes[] = {{0, 0}, {0, 5},  {5, 0},  {1, 1},   {1, 2},
                                               {3, 1}, {1, 31}, {7, 13}, {2, 257}, {33, 33}};

// What proto/codec/codec_size.h promises to the planner is what encoders make.
TEST(Codec, SizesAreThoseAnnounced) {
  for (const char* text : kTexts) {
    for (auto [positions, hidden] : kShapes) {
      for (const char* suffix : {"", " | zstd"}) {
        Pair pair(std::string(text) + suffix, positions, hidden);
        for (size_t samples : {0u, 1u, 3u}) {
          const TensorDims dims = pair.Dims(samples);
          const std::vector<float> x = Gaussian(static_cast<size_t>(dims.elements()), 1);
          for (bool warm : {false, true}) {
            const std::string payload =
                pair.Encode(x, Ids(samples, static_cast<uint32_t>(samples * 10)));
            EXPECT_LE(static_cast<int64_t>(payload.size()), MaxEncodedBytes(pair.spec, dims))
                << text << suffix;
            if (suffix[0] == '\0') {
              EXPECT_EQ(static_cast<int64_t>(payload.size()), EncodedBytes(pair.spec, dims, warm))
                  << text;
            }
          }
        }
      }
    }
  }
}

bool Finite(const std::vector<float>& y) {
  return std::all_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); });
}

// All alike, or one element that is not as the others, twice: a defined result within the size that
// was announced, the same state at both ends, and nothing of it left in the frame that follows.
TEST(Codec, NumbersThatBreakOthers) {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* text : kTexts) {
    for (const auto& [positions, hidden] : kShapes) {
      for (float value : {0.0f, -0.0f, 1.0f, -3.5f, 1e-42f, 0x1p-126f, 3e38f, inf, -inf, nan}) {
        for (bool all : {true, false}) {
          const std::string what =
              absl::StrCat(text, ", ", positions, "x", hidden, " of ", value, all ? "" : " once");
          Pair pair(text, positions, hidden);
          const size_t n = static_cast<size_t>(positions * hidden);
          std::vector<float> x = all ? std::vector<float>(n, value) : Gaussian(n, 3);
          if (n > 0) x[n / 2] = value;
          for (int visit = 0; visit < 2; ++visit) {
            const std::vector<float> y = pair.RoundTrip(x, {5});
            ASSERT_LE(pair.payload_bytes, MaxEncodedBytes(pair.spec, pair.Dims(1))) << what;
            ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value()) << what;
            if (std::fabs(value) < 1e30f) {
              ASSERT_TRUE(Finite(y)) << what;
            }
            if (all && value == 0) {
              ASSERT_EQ(y, x) << what;
            }
          }
          const std::vector<float> good = Gaussian(n, 4);
          ASSERT_TRUE(Finite(pair.RoundTrip(good, {5}))) << what;
          ASSERT_TRUE(Finite(pair.RoundTrip(good, {6}))) << what;
          ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value()) << what;
        }
      }
    }
  }
}

TEST(Codec, EveryDtypeInAndOut) {
  for (const char* text : kTexts) {
    for (DType in : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (DType out : {DType::kF32, DType::kF16, DType::kBf16}) {
        Pair pair(text, 5, 19);
        const size_t n = 2 * 5 * 19;
        std::vector<float> x = Gaussian(n, 4);
        std::vector<char> from(n * 4), to(n * 4);
        FromFloats(x.data(), n, in, from.data());
        ToFloats(from.data(), in, n, x.data());
        Pair wide(text, 5, 19);
        for (int visit = 0; visit < 2; ++visit) {
          const std::vector<float> expected = wide.RoundTrip(x, {0, 1});  // as fp32 in and out
          const std::vector<uint32_t> ids = {0, 1};
          FrameContext context;
          const std::vector<uint32_t> tokens(10, 3);
          context.sample_ids = ids;
          context.token_ids = tokens;
          std::string payload;
          ASSERT_TRUE(
              pair.encoder->Encode({from.data(), in, Device::kCpu, pair.Dims(2)}, context, &payload)
                  .ok());
          ASSERT_TRUE(pair.decoder
                          ->Decode(payload, pair.encoder->version(), context,
                                   {to.data(), out, Device::kCpu, pair.Dims(2)})
                          .ok());
          std::vector<char> rounded(n * 4);
          FromFloats(expected.data(), n, out, rounded.data());
          EXPECT_EQ(std::string(to.data(), n * DTypeBytes(out)),
                    std::string(rounded.data(), n * DTypeBytes(out)))
              << text;
        }
      }
    }
  }
}

TEST(Codec, SeedsDecideStochasticRounding) {
  CodecOptions a = Pair::Options(8, 8), b = a;
  b.seed = 8;
  const std::vector<float> x = Gaussian(64, 1);
  Pair one("quant(3, stochastic)", a), same("quant(3, stochastic)", a),
      other("quant(3, stochastic)", b);
  const std::string first = one.Encode(x, {0});
  EXPECT_EQ(first, same.Encode(x, {0}));
  EXPECT_NE(first, other.Encode(x, {0}));
  EXPECT_NE(first, one.Encode(x, {0}));  // the next frame draws anew
}

// The engine narrows and widens; on the wire there are its channels alone.
TEST(Codec, AnAutoencoderIsTheCodecOfItsValues) {
  const std::vector<float> x = Gaussian(5 * 3, 1);
  Pair coded("autoencoder(3, values=quant(4, token))", 5, 3), inner("quant(4, token)", 5, 3);
  EXPECT_EQ(coded.Encode(x, {0}), inner.Encode(x, {0}));
  Pair exact("autoencoder(3)", 5, 3);
  EXPECT_EQ(exact.Encode(x, {0}).size(), 4 * x.size());
  const absl::Status status = MakeEncoder(Spec("autoencoder(3)"), Pair::Options(5, 4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(Codec, RefusesAWrongSpecAndAnAbsurdBoundary) {
  CodecSpec spec;
  spec.set_kind(CodecSpec::QUANT);
  spec.set_bits(9);
  EXPECT_EQ(MakeEncoder(spec, Pair::Options(1, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeDecoder(spec, Pair::Options(1, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeEncoder(Spec("none"), Pair::Options(int64_t{1} << 40, int64_t{1} << 40)).ok());
  EXPECT_FALSE(MakeEncoder(Spec("none"), Pair::Options(-1, 4)).ok());
}

}  // namespace
}  // namespace isthmus::compress
