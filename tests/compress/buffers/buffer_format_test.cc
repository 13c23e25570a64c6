#include "compress/buffers/buffer_format.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "proto/codec/codec_size.h"
#include "tests/compress/pair.h"
#include "tests/compress/reference.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

std::string DeltaText(int bits) { return "delta(quant(3), buffer=" + std::to_string(bits) + ")"; }

TEST(BufferFormat, Bf16IsWorkedOnInPlace) {
  BufferFormat format(0, {3, 5});
  EXPECT_EQ(format.words(), 15);
  std::vector<uint16_t> stored(15, 7);
  format.Open(stored.data(), false);
  for (int64_t p = 0; p < 3; ++p) EXPECT_EQ(format.Row(p), stored.data() + 5 * p);
  format.Close();
  EXPECT_EQ(stored, std::vector<uint16_t>(15, 7));
}

// Bit for bit what the reference keeps, and the size that the planner reckons with, for odd shapes
// and numbers of any magnitude.
TEST(BufferFormat, EqualsTheReference) {
  for (int bits : {2, 4, 8}) {
    for (auto [positions, hidden] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 33}, {64, 50}, {3, 201}, {2, 0}, {0, 4}}) {
      BufferFormat format(bits, {positions, hidden});
      EXPECT_EQ(2 * format.words(), BufferBytes(Spec(DeltaText(bits)), 1, positions, hidden));
      const size_t n = static_cast<size_t>(positions * hidden);
      std::vector<uint16_t> m(n);
      FloatsToBf16(Gaussian(n, 5).data(), n, m.data());
      if (n > 0) m[0] = FloatToBf16(3e38f);  // its scale is the largest that there is
      if (n > 2) m[2] = FloatToBf16(1e-36f);
      if (n > 3) m[3] = 0x8000;
      std::vector<uint16_t> stored(static_cast<size_t>(format.words()), 0xffff);
      format.Open(stored.data(), true);
      for (int64_t p = 0; p < positions; ++p) {
        std::copy_n(m.begin() + p * hidden, hidden, format.Row(p));
        format.Changed(p);
      }
      format.Close();
      std::string body = ReferenceStoreBuffer(bits, positions, hidden, &m);
      body.resize(2 * stored.size());
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(stored.data()), body.size()), body)
          << bits << " bits, " << positions << " x " << hidden;
      format.Open(stored.data(), false);
      std::vector<uint16_t> again(n);
      for (int64_t p = positions - 1; p >= 0; --p)
        std::copy_n(format.Row(p), hidden, again.begin() + p * hidden);
      EXPECT_EQ(again, m);
      for (uint16_t v : m) EXPECT_TRUE(std::isfinite(Bf16ToFloat(v)));
    }
  }
}

// Visits of one sample by the codec and by the reference.
void CompareWithTheReference(int64_t positions, int64_t hidden, const char* inner) {
  const size_t n = static_cast<size_t>(positions * hidden);
  for (int bits : {2, 4, 8}) {
    Pair pair("delta(" + std::string(inner) + ", buffer=" + std::to_string(bits) + ")", positions,
              hidden);
    std::vector<float> a = Gaussian(n, 1);
    pair.RoundTrip(a, {4});
    std::vector<uint16_t> m(n);
    FloatsToBf16(a.data(), n, m.data());
    ReferenceStoreBuffer(bits, positions, hidden, &m);
    for (uint64_t visit = 1; visit < 5; ++visit) {
      a = visit == 3 ? std::vector<float>(n, 0.0f) : Gaussian(n, 1, visit);
      std::vector<float> sum;
      const std::string body =
          ReferenceDeltaEncode(pair.spec.inner(), a, positions, hidden, &m, &sum);
      ReferenceStoreBuffer(bits, positions, hidden, &m);
      const std::string payload = pair.Encode(a, {4});
      EXPECT_EQ(payload.substr(5), body) << bits << " bits, visit " << visit;
      std::vector<float> y;
      ASSERT_TRUE(pair.Decode(payload, visit + 1, {4}, &y).ok());
      EXPECT_EQ(y, sum) << bits << " bits, visit " << visit;
      EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
    }
  }
}

TEST(BufferFormat, TheDeltaCodecEqualsTheReference) {
  for (const char* inner :
       {"quant(3)", "quant(4)", "quant(4, token)", "quant(4, group=32)", "quant(8, symmetric)"}) {
    for (auto [positions, hidden] :
         {std::pair<int64_t, int64_t>{1, 1}, {5, 37}, {1, 130}, {3, 201}, {16, 64}}) {
      CompareWithTheReference(positions, hidden, inner);
    }
  }
}

// The caps count what is stored: 8 bits hold about twice the samples of bf16, 4 bits four times.
TEST(BufferFormat, FewerBitsHoldMoreSamples) {
  TempDirectory directory;
  CodecOptions options = Pair::Options(8, 16);
  options.buffer_memory_bytes = 2 * 256;  // two samples as bf16
  options.buffer_disk_bytes = 256;        // and one more
  options.spill_directory = directory.path();
  // Bytes of a sample: 128 elements, 16 scales.
  for (auto [text, capacity] : {std::pair<const char*, size_t>{"delta(quant(3))", 3},
                                {"delta(quant(3), buffer=8)", 512 / 160 + 256 / 160},
                                {"delta(quant(3), buffer=4)", 512 / 96 + 256 / 96},
                                {"delta(quant(3), buffer=2)", 512 / 64 + 256 / 64}}) {
    Pair pair(text, options);
    const std::vector<uint32_t> ids = Ids(capacity + 1);
    for (int pass = 0; pass < 2; ++pass) {
      for (uint32_t id : ids) pair.RoundTrip(Gaussian(128, 3, id), {id});
      EXPECT_EQ(pair.encoder->stats().delta_samples, 0) << text;  // one too many: always forgotten
    }
    Pair fits(text, options);
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < capacity; ++i) fits.RoundTrip(Gaussian(128, 3, i), {ids[i]});
    }
    EXPECT_EQ(fits.encoder->stats().delta_samples, static_cast<int64_t>(capacity)) << text;
    EXPECT_EQ(fits.encoder->StateHash().value(), fits.decoder->StateHash().value());
  }
}

// With a fixed activation the error shrinks to what the buffer loses, once more divided by the
// levels of the inner codec: |a - m| is at most a channel's scale / 2^(bits - 1).
TEST(BufferFormat, TheErrorEndsAtTheBuffersPrecision) {
  const int64_t positions = 64, hidden = 16;
  const std::vector<float> a = Gaussian(positions * hidden, 3);
  float largest = 0;
  for (float v : a) largest = std::max(largest, std::fabs(v));
  float last = largest;
  for (int bits : {2, 4, 8}) {
    Pair pair(DeltaText(bits), positions, hidden);
    float error = 0;
    for (int visit = 0; visit < 10; ++visit) {
      const std::vector<float> y = pair.RoundTrip(a, {0});
      error = 0;
      for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::fabs(a[i] - y[i]));
    }
    // Scales are rounded up to bf16, and so is the buffer that is worked on: 2 % more.
    EXPECT_LE(error, 1.02f * largest / static_cast<float>(1 << (bits - 1)) / 4 + largest / 128)
        << bits;
    EXPECT_LT(error, last) << bits;
    last = error;
  }
}

TEST(BufferFormat, NonFiniteSamplesAreForgottenHugeOnesStayFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int bits : {2, 4, 8}) {
    Pair pair(DeltaText(bits), 2, 10);
    const std::vector<float> a = Gaussian(20, 1);
    std::vector<float> bad = a;
    bad[7] = inf;
    pair.RoundTrip(a, {1});
    const std::vector<float> y = pair.RoundTrip(bad, {1});
    EXPECT_EQ(y, bad);  // fp32, exact
    EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
    EXPECT_EQ(pair.RoundTrip(a, {1}), a) << "a key frame again";
    std::vector<float> huge = a;
    huge[3] = 1e38f;  // over the largest scale
    for (int visit = 0; visit < 4; ++visit) {
      for (float v : pair.RoundTrip(huge, {1})) EXPECT_TRUE(std::isfinite(v));
      EXPECT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
    }
  }
}

}  // namespace
}  // namespace isthmus::compress
