#include "compress/codecs/delta.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

// T1.6: the first visit reproduces the activation exactly, the buffer is its bf16.
TEST(Delta, FirstVisitIsExact) {
  Pair pair("delta(quant(3))", 4, 33);
  const std::vector<float> a = Gaussian(2 * 4 * 33, 1);
  EXPECT_EQ(pair.RoundTrip(a, {10, 11}), a);
  EXPECT_EQ(pair.payload_bytes, EncodedBytes(pair.spec, pair.Dims(2), false));
  EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
  // Coming again with exactly the bf16 of itself, there is no difference to send: all codes are
  // zero's.
  std::vector<float> rounded = a;
  for (float& v : rounded) v = Bf16ToFloat(FloatToBf16(v));
  EXPECT_EQ(pair.RoundTrip(rounded, {10, 11}), rounded);
  EXPECT_EQ(pair.payload_bytes, EncodedBytes(pair.spec, pair.Dims(2), true));
}

// T1.4: with a fixed activation the error shrinks by 2^-(b-1) a visit, down to the precision of the
// buffer.
TEST(Delta, ErrorContractsWithEveryVisit) {
  const int64_t positions = 64, hidden = 16;
  std::vector<float> a = Gaussian(positions * hidden, 3);
  float largest = 0;
  for (float v : a) largest = std::max(largest, std::fabs(v));
  for (int bits : {2, 3, 4}) {
    Pair pair("delta(quant(" + std::to_string(bits) + "))", positions, hidden);
    pair.RoundTrip(std::vector<float>(a.size(), 0.0f), {0});  // m := 0
    for (int visit = 1; visit <= 8; ++visit) {
      const std::vector<float> y = pair.RoundTrip(a, {0});
      float error = 0;
      for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::fabs(a[i] - y[i]));
      const float buffer_precision =
          largest / 128;  // half a unit in the last place of bf16 before, and again now
      const float most = largest * std::pow(2.0f, static_cast<float>(-(bits - 1) * visit));
      EXPECT_LE(error, most + buffer_precision) << bits << " bits, visit " << visit;
      // And no faster: the largest positive elements saturate at each visit.
      EXPECT_GT(error, 0.5f * most - buffer_precision) << bits << " bits, visit " << visit;
    }
  }
  Pair one("delta(quant(1))", positions, hidden);  // levels -s and 0 only: never converges
  one.RoundTrip(std::vector<float>(a.size(), 0.0f), {0});
  const float stuck = *std::max_element(a.begin(), a.end());
  for (int visit = 0; visit < 8; ++visit) {
    const std::vector<float> y = one.RoundTrip(a, {0});
    float error = 0;
    for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::fabs(a[i] - y[i]));
    EXPECT_GE(error, stuck) << visit;
  }
}

// T1.5, on every sort of inner codec, over random orders, with random sizes of frames.
TEST(Delta, BothEndsStayIdentical) {
  for (const char* text :
       {"delta(quant(3))", "delta(quant(2, token, stochastic))", "delta(quant(4, rms))",
        "delta(bf16)", "delta(fp16, cold=fp16)", "delta(none)",
        "delta(quant(4, group=32), cold=bf16) | zstd", "delta(quant(1, symmetric), cold=quant(8))",
        "delta(quant(3), buffer=8)", "delta(bf16, cold=fp16, buffer=4)",
        "delta(quant(2, token, stochastic), buffer=2)", "delta(topk(0.2))",
        "delta(randomk(0.3, scaled), buffer=8)", "delta(cocktail(0.5, 0.5, 4))",
        "delta(lowrank(2))", "delta(sign(token))"}) {
    Pair pair(text, 3, 37);
    for (uint64_t frame = 0; frame < 60; ++frame) {
      std::vector<uint32_t> ids;
      for (uint64_t i = 0; i < 1 + frame % 4; ++i) {
        const uint32_t id = static_cast<uint32_t>(RandomBelow(5, frame, i, 12));
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      const std::vector<float> a = Gaussian(ids.size() * 3 * 37, 6, frame % 7);
      pair.RoundTrip(a, ids);
      ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value())
          << text << ", frame " << frame;
    }
    EXPECT_EQ(pair.encoder->stats().delta_samples, pair.decoder->stats().delta_samples);
    EXPECT_GT(pair.encoder->stats().delta_samples, 60);
  }
}

// Both ends forget the same samples in the same order, with tiny caps and whatever the tiers.
TEST(Delta, BothEndsEvictAlike) {
  TempDirectory directory;
  const int64_t entry = 2 * 2 * 9;
  for (auto [memory, disk] : {std::pair<int64_t, int64_t>{3, 0}, {1, 4}, {0, 5}, {0, 0}, {2, 1}}) {
    CodecOptions options = Pair::Options(2, 9);
    options.buffer_memory_bytes = memory * entry;
    options.buffer_disk_bytes = disk * entry;
    options.spill_directory = directory.path();
    Pair pair("delta(quant(4))", options);
    for (uint64_t frame = 0; frame < 300; ++frame) {
      std::vector<uint32_t> ids;
      for (uint64_t i = 0; i < 1 + frame % 5; ++i) {
        const uint32_t id = static_cast<uint32_t>(RandomBelow(8, frame, i, 9));
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      pair.RoundTrip(Gaussian(ids.size() * 18, 9, frame), ids);
      ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value())
          << memory << "+" << disk << ", frame " << frame;
    }
    const CodecStats stats = pair.encoder->stats();
    EXPECT_EQ(stats.evicted_samples, pair.decoder->stats().evicted_samples);
    if (memory + disk > 0) {
      EXPECT_GT(stats.evicted_samples, 10);
    }
    EXPECT_LE(stats.buffer_memory_bytes, std::max<int64_t>(memory, 1) * entry);
    EXPECT_LE(stats.buffer_disk_bytes, disk * entry);
  }
}

// The spill tier changes nothing but speed.
TEST(Delta, SpilledBuffersGiveTheSameBytes) {
  TempDirectory directory;
  CodecOptions small = Pair::Options(4, 16);
  small.buffer_memory_bytes = 2 * 4 * 16;  // one sample
  small.buffer_disk_bytes = 1 << 20;
  small.spill_directory = directory.path();
  Pair in_memory("delta(quant(3))", 4, 16), spilled("delta(quant(3))", small);
  for (uint64_t frame = 0; frame < 30; ++frame) {
    const std::vector<uint32_t> ids = Ids(3, static_cast<uint32_t>(frame % 5));
    const std::vector<float> a = Gaussian(3 * 64, 11, frame);
    spilled.encoder->Prefetch(ids);
    ASSERT_EQ(in_memory.Encode(a, ids), spilled.Encode(a, ids)) << frame;
    ASSERT_EQ(in_memory.encoder->StateHash().value(), spilled.encoder->StateHash().value())
        << frame;
  }
  EXPECT_GT(spilled.encoder->stats().buffer_disk_bytes, 0);
}

TEST(Delta, DetectsLostRepeatedAndReorderedFrames) {
  Pair pair("delta(quant(3))", 2, 8);
  const std::vector<uint32_t> ids = {1, 2};
  std::vector<std::string> frames;
  for (uint64_t f = 0; f < 4; ++f) frames.push_back(pair.Encode(Gaussian(32, 1, f), ids));
  std::vector<float> y;
  ASSERT_TRUE(pair.Decode(frames[0], 1, ids, &y).ok());
  ASSERT_TRUE(pair.Decode(frames[1], 2, ids, &y).ok());
  const uint64_t hash = pair.decoder->StateHash().value();
  EXPECT_EQ(pair.Decode(frames[1], 2, ids, &y).code(), absl::StatusCode::kDataLoss);  // repeated
  EXPECT_EQ(pair.Decode(frames[0], 1, ids, &y).code(), absl::StatusCode::kDataLoss);  // stale
  EXPECT_EQ(pair.Decode(frames[3], 4, ids, &y).code(), absl::StatusCode::kDataLoss);  // one lost
  // The header's number is made to fit, but the sample's own number is not.
  EXPECT_EQ(pair.Decode(frames[1], 3, ids, &y).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(pair.Decode(frames[3], 3, ids, &y).code(), absl::StatusCode::kDataLoss);
  // A difference to a buffer that this end does not have.
  EXPECT_EQ(pair.Decode(frames[2], 3, {1, 77}, &y).code(), absl::StatusCode::kDataLoss);
  // A key frame for a sample that has a buffer.
  EXPECT_EQ(pair.Decode(frames[0], 3, ids, &y).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(pair.decoder->StateHash().value(), hash);
  EXPECT_EQ(pair.decoder->version(), 2u);
  // Nothing of it was absorbed: the right frames still fit.
  ASSERT_TRUE(pair.Decode(frames[2], 3, ids, &y).ok());
  ASSERT_TRUE(pair.Decode(frames[3], 4, ids, &y).ok());
  EXPECT_EQ(pair.decoder->StateHash().value(), pair.encoder->StateHash().value());
}

TEST(Delta, NonFiniteSamplesGoInFullAndAreForgotten) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* text :
       {"delta(quant(3))", "delta(bf16)", "delta(quant(3, rms), cold=quant(4))"}) {
    for (float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      Pair pair(text, 2, 10);
      std::vector<float> a = Gaussian(40, 1);
      for (int round = 0; round < 2; ++round) {  // cold, then warm
        std::vector<float> b = a;
        b[23] = bad;  // in the second sample
        const std::vector<float> y = pair.RoundTrip(b, {5, 6});
        for (size_t i = 20; i < 40; ++i) {
          EXPECT_EQ(FloatBits(y[i]), FloatBits(b[i]))
              << text << " " << bad << " " << i;  // exact, NaN and all
        }
        for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(std::isfinite(y[i]));
        EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
        const int64_t keys = pair.encoder->stats().key_frame_samples;
        pair.RoundTrip(a, {5, 6});  // 6 is cold again
        EXPECT_EQ(pair.encoder->stats().key_frame_samples, keys + 1) << text << " " << bad;
        EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
      }
    }
  }
}

// Finite in fp32, but inf as bf16: not a buffer either. Warm, the scale saturates and both ends go
// on alike.
TEST(Delta, HugeActivations) {
  Pair pair("delta(quant(3))", 2, 10);
  std::vector<float> a = Gaussian(20, 1);
  a[3] = 3.4e38f;
  EXPECT_EQ(pair.RoundTrip(a, {1}), a);
  EXPECT_EQ(pair.RoundTrip(a, {1}), a);
  EXPECT_EQ(pair.encoder->stats().key_frame_samples, 2);
  pair.RoundTrip(Gaussian(20, 2), {1});
  for (float v : pair.RoundTrip(a, {1})) EXPECT_TRUE(std::isfinite(v));
  EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
}

TEST(Delta, RefusesFramesWithAnIdTwiceOrWithoutIds) {
  Pair pair("delta(quant(3))", 2, 4);
  const std::vector<float> a = Gaussian(16, 1);
  std::string payload;
  FrameContext context;
  const std::vector<uint32_t> twice = {3, 3};
  context.sample_ids = twice;
  EXPECT_EQ(pair.encoder->Encode(View(a, pair.Dims(2)), context, &payload).code(),
            absl::StatusCode::kInvalidArgument);
  context.sample_ids = {};
  EXPECT_EQ(pair.encoder->Encode(View(a, pair.Dims(2)), context, &payload).code(),
            absl::StatusCode::kInvalidArgument);
  std::vector<float> y;
  const std::string good = pair.Encode(a, {3, 4});
  EXPECT_EQ(pair.Decode(good, 1, {3, 3}, &y).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(pair.Decode(good, 1, {3, 4}, &y).ok());
}

TEST(Delta, ADecoderThatMetAnImpossibleFrameStops) {
  Pair pair("delta(quant(3))", 1, 4);
  std::string payload = pair.Encode({1, 2, 3, 4}, {1});
  const float inf = std::numeric_limits<float>::infinity();
  std::memcpy(payload.data() + 5, &inf, 4);  // an encoder sends this as kind 2
  std::vector<float> y;
  EXPECT_EQ(pair.Decode(payload, 1, {1}, &y).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(pair.Decode(payload, 1, {1}, &y).ok());
}

TEST(Delta, RefusesADifferenceThatIsNan) {
  Pair pair("delta(quant(3))", 1, 4);
  std::vector<float> y;
  pair.RoundTrip({1, 2, 3, 4}, {1});
  std::string payload = pair.Encode({2, 3, 4, 5}, {1});
  const uint16_t nan = kScaleNan;
  std::memcpy(payload.data() + 5, &nan, 2);
  EXPECT_EQ(pair.Decode(payload, 2, {1}, &y).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Delta, HalfPrecisionTensors) {
  Pair pair("delta(quant(4))", 2, 21);
  const std::vector<float> a = Gaussian(42, 2);
  std::vector<uint16_t> in(42), out(42);
  FloatsToBf16(a.data(), 42, in.data());
  const std::vector<uint32_t> ids = {9};
  FrameContext context;
  context.sample_ids = ids;
  for (int visit = 0; visit < 3; ++visit) {
    std::string payload;
    ASSERT_TRUE(
        pair.encoder
            ->Encode({in.data(), DType::kBf16, Device::kCpu, pair.Dims(1)}, context, &payload)
            .ok());
    ASSERT_TRUE(pair.decoder
                    ->Decode(payload, pair.encoder->version(), context,
                             {out.data(), DType::kBf16, Device::kCpu, pair.Dims(1)})
                    .ok());
    EXPECT_EQ(in, out);
    EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
  }
}

// AQ-SGD once more in a few lines, around inner codecs that do not work in one pass with the
// buffer's update: the body is the inner codec's own of a - m, the receiver computes with m + what
// it decoded, and bf16 of that is the next m.
TEST(Delta, AroundAnyInnerCodecIsTheAlgorithmAsWritten) {
  constexpr size_t kHeader = 5;  // kind, version
  for (const char* inner : {"topk(0.3)", "topk(0.5, global, values=none)", "bf16", "fp16"}) {
    Pair delta(absl::StrCat("delta(", inner, ")"), 4, 24), plain(inner, 4, 24);
    std::vector<float> a = Gaussian(4 * 24, 3), m(a.size());
    delta.RoundTrip(a, {9});
    std::transform(a.begin(), a.end(), m.begin(),
                   [](float v) { return Bf16ToFloat(FloatToBf16(v)); });
    for (int visit = 1; visit <= 5; ++visit) {
      const std::vector<float> drift = Gaussian(a.size(), 4, visit);
      std::vector<float> difference(a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        a[i] += 0.1f * drift[i];
        difference[i] = a[i] - m[i];
      }
      const std::string body = plain.Encode(difference, {9});
      const std::string payload = delta.Encode(a, {9});
      ASSERT_EQ(payload.substr(kHeader), body) << inner << ", visit " << visit;
      ASSERT_EQ(payload[0], 1) << "a warm visit";
      std::vector<float> decoded, received;
      ASSERT_TRUE(plain.Decode(body, plain.encoder->version(), {9}, &decoded).ok());
      ASSERT_TRUE(delta.Decode(payload, delta.encoder->version(), {9}, &received).ok());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(received[i], m[i] + decoded[i]) << inner << ", visit " << visit << ", " << i;
        m[i] = Bf16ToFloat(FloatToBf16(m[i] + decoded[i]));
      }
    }
  }
}

// A home whose buffers can be written and not be read back.
class UnreadableHome : public BufferHome {
 public:
  absl::StatusOr<uint16_t*> Fetch(uint32_t id) override { return words_[id].data(); }
  absl::StatusOr<const uint16_t*> Look(uint32_t id, uint16_t*) override {
    return absl::UnavailableError(absl::StrCat("reading the buffer of sample ", id));
  }
  absl::Status Put(uint32_t, const uint16_t*) override { return absl::OkStatus(); }
  void Drop(uint32_t) override {}
  void Prefetch(absl::Span<const uint32_t>) override {}
  const absl::Status& status() const override { return status_; }
  int64_t in_memory() const override { return static_cast<int64_t>(words_.size()); }
  int64_t late_reads() const override { return 0; }
  int64_t buffers_made() const override { return in_memory(); }

 private:
  std::map<uint32_t, std::array<uint16_t, 64>> words_;
  const absl::Status status_;
};

// Two ends that can't read their buffers must not agree that they are the same.
TEST(Delta, ABufferThatCanNotBeReadHasNoHash) {
  CodecOptions options = Pair::Options(2, 4);
  absl::StatusOr<DeltaState> state = DeltaState::Make(Spec("delta(quant(3))"), options);
  ASSERT_TRUE(state.ok()) << state.status();
  MessageStore::Options store;
  store.entry_elements = 8;
  store.memory_bytes = 1 << 10;
  store.make_home = [](const BufferLayout&) { return std::make_unique<UnreadableHome>(); };
  state->store = MessageStore::Make(store).value();
  DeltaEncoder encoder(*std::move(state));
  EXPECT_TRUE(encoder.StateHash().ok()) << "no buffers yet";
  const std::vector<uint32_t> ids = {5};
  const std::vector<float> x = Gaussian(8, 1);
  std::string payload;
  FrameContext context;
  context.sample_ids = ids;
  ASSERT_TRUE(encoder.Encode(View(x, {1, 2, 4}), context, &payload).ok());
  const absl::StatusOr<uint64_t> hash = encoder.StateHash();
  EXPECT_TRUE(absl::IsUnavailable(hash.status())) << hash.status();
  EXPECT_THAT(std::string(hash.status().message()), testing::HasSubstr("sample 5"));
}

}  // namespace
}  // namespace isthmus::compress
