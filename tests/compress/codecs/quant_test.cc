#include "compress/codecs/quant.h"

#include <cmath>
#include <limits>

#include "compress/buffers/buffer_format.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"
#include "tests/compress/reference.h"

namespace isthmus::compress {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> AllQuant() {
  std::vector<std::string> texts;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const char* scale : {"", ", token", ", group=32", ", group=100"}) {
      for (const char* more : {"", ", rms", ", symmetric", ", rms, symmetric"}) {
        texts.push_back("quant(" + std::to_string(bits) + scale + more + ")");
      }
    }
  }
  return texts;
}

// Values that break others, mixed into normal ones.
std::vector<float> Awkward(size_t n, uint64_t seed, bool finite) {
  std::vector<float> x = Gaussian(n, seed);
  const float odd[] = {0,      -0.0f, 1e-40f, -1e-42f, 0x1p-126f, 1e-31f, 1e30f,
                       -3e38f, 65504, 65520,  1e-8f,   kInf,      -kInf,  kNan};
  const uint64_t kinds = finite ? 11 : 14;
  for (size_t i = 0; i < n; ++i) {
    if (RandomBelow(seed, 9, i, 20) == 0) x[i] = odd[RandomBelow(seed, 10, i, kinds)];
  }
  return x;
}

TEST(Quant, FastEqualsReferenceBitForBit) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {1, 7},   {3, 5},  {2, 33},
                                                {5, 130}, {17, 64}, {4, 201}};
  for (const std::string& text : AllQuant()) {
    uint64_t seed = 0;
    for (auto [positions, hidden] : shapes) {
      for (int kind = 0; kind < 3; ++kind) {
        const size_t n = static_cast<size_t>(positions * hidden);
        const std::vector<float> x =
            kind == 0 ? Gaussian(n, ++seed) : Awkward(n, ++seed, kind == 1);
        Pair pair(text, positions, hidden);
        const std::string payload = pair.Encode(x, {0});
        ASSERT_EQ(payload, ReferenceQuantEncode(pair.spec, x, positions, hidden))
            << text << " " << positions << "x" << hidden << " " << kind;
        std::vector<float> y;
        ASSERT_TRUE(pair.Decode(payload, 1, {0}, &y).ok());
        const std::vector<float> reference =
            ReferenceQuantDecode(pair.spec, payload, positions, hidden);
        for (size_t i = 0; i < n; ++i) {
          if (std::isnan(reference[i])) {
            ASSERT_TRUE(std::isnan(y[i])) << text;
          } else {
            ASSERT_EQ(FloatBits(y[i]), FloatBits(reference[i])) << text;
          }
        }
      }
    }
  }
}

TEST(Quant, ZerosConstantsAndTinyNumbersNeverBecomeNan) {
  for (const std::string& text : AllQuant()) {
    for (float value : {0.0f, -0.0f, 1.0f, -3.5f, 1e-44f, 1e-31f, 3e38f}) {
      Pair pair(text, 3, 11);
      const std::vector<float> x(33, value);
      for (float v : pair.RoundTrip(x, {0})) {
        ASSERT_TRUE(std::isfinite(v)) << text << " of " << value;
        if (std::fabs(value) < 1e-30f) {
          ASSERT_EQ(v, 0.0f) << text;
        } else {
          ASSERT_LE(std::fabs(v), 2.02f * std::fabs(value)) << text << " of " << value;
        }
      }
    }
  }
}

TEST(Quant, NonFiniteElementsStayInTheirScaleGroup) {
  std::vector<float> x(40, 1.0f);
  x[13] = kNan;  // position 1, channel 3
  x[24] = kInf;  // position 2, channel 4
  Pair channel("quant(4)", 4, 10);
  const std::vector<float> y = channel.RoundTrip(x, {0});
  for (size_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(std::isnan(y[i]), i % 10 == 3 || i % 10 == 4) << i;
  Pair token("quant(4, token)", 4, 10);
  const std::vector<float> z = token.RoundTrip(x, {0});
  for (size_t i = 0; i < z.size(); ++i)
    EXPECT_EQ(std::isnan(z[i]), i / 10 == 1 || i / 10 == 2) << i;
}

TEST(Quant, CodesOfASampleDoNotDependOnItsNeighbours) {
  Pair one("quant(3)", 8, 6), two("quant(3)", 8, 6);
  std::vector<float> a = Gaussian(48, 1), b = Gaussian(48, 2);
  const std::string alone = one.Encode(a, {5});
  std::vector<float> both = a;
  for (float v : b) both.push_back(1000 * v);
  EXPECT_EQ(two.Encode(both, {5, 6}).substr(0, alone.size()), alone);
}

TEST(Quant, RefusesScalesThatNoEncoderMakes) {
  Pair pair("quant(4)", 2, 3);
  const std::string good = pair.Encode(Gaussian(6, 1), {0});
  std::vector<float> y;
  for (uint16_t scale : {0xbf80, 0x7f80, 0x7fc1, 0x0001, 0x7181, 0xffff}) {
    std::string bad = good;
    std::memcpy(bad.data() + 2, &scale, 2);
    EXPECT_EQ(pair.Decode(bad, 1, {0}, &y).code(), absl::StatusCode::kInvalidArgument) << scale;
  }
}

// The one-pass delta against its definition, bit for bit.
TEST(Quant, FusedDeltaEqualsReference) {
  for (const char* text :
       {"quant(2)", "quant(3)", "quant(4)", "quant(8)", "quant(1, symmetric)", "quant(3, token)",
        "quant(5, group=32)", "quant(4, group=100, symmetric)"}) {
    for (auto [positions, hidden] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 130}, {16, 64}}) {
      const CodecSpec spec = Spec(text);
      const size_t n = static_cast<size_t>(positions * hidden);
      QuantCodec codec(spec, {positions, hidden}, 0);
      std::vector<uint16_t> m(n), m_reference, m_receiver;
      FloatsToBf16(Gaussian(n, 3).data(), n, m.data());
      for (int visit = 0; visit < 4; ++visit) {
        std::vector<float> a = visit == 2 ? Awkward(n, 4, true) : Gaussian(n, 4);
        for (float& v : a) v = std::fabs(v) > 1e29f ? 1.0f : v;
        m_reference = m;
        m_receiver = m;
        std::vector<float> sum_reference, sum(n);
        const std::string expected =
            ReferenceDeltaEncode(spec, a, positions, hidden, &m_reference, &sum_reference);
        std::string body;
        ArrayRows rows(a.data(), hidden), out(sum.data(), hidden);
        BufferFormat buffer(0, {positions, hidden});
        buffer.Open(m.data(), false);
        ASSERT_TRUE(codec.EncodeDelta(rows, buffer, &body)) << text;
        ASSERT_EQ(body, expected) << text;
        ASSERT_EQ(m, m_reference) << text;
        buffer.Open(m_receiver.data(), false);
        ASSERT_TRUE(codec.DecodeDelta(body, buffer, out));
        ASSERT_EQ(m_receiver, m_reference) << text;
        ASSERT_EQ(sum, sum_reference) << text;
      }
    }
  }
}

TEST(Quant, FusedDeltaSaysWhenItIsNotFinite) {
  for (const char* text : {"quant(4)", "quant(4, token)", "quant(4, group=32)"}) {
    QuantCodec codec(Spec(text), {2, 40}, 0);
    BufferFormat buffer(0, {2, 40});
    for (float bad : {kNan, kInf, -kInf}) {
      std::vector<float> a(80, 1.0f);
      a[77] = bad;
      ArrayRows rows(a.data(), 40);
      std::vector<uint16_t> m(80, 0);
      buffer.Open(m.data(), false);
      std::string body = "before";
      EXPECT_FALSE(codec.EncodeDelta(rows, buffer, &body)) << text;
      EXPECT_EQ(body, "before") << text;
    }
  }
}

}  // namespace
}  // namespace isthmus::compress
