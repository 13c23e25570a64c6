#include "compress/codecs/at_indices.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"
#include "tests/compress/reference.h"

namespace isthmus::compress {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Both directions of a boundary.
struct Boundary {
  Boundary(const char* forward, const char* backward, int64_t positions, int64_t hidden)
      : forward(forward, positions, hidden),
        spec(Bound(Spec(backward), forward)),
        encoder(MakeEncoder(spec, this->forward.options).value()),
        decoder(MakeDecoder(spec, this->forward.options).value()) {}

  // A micro-batch upwards: its indices at both ends.
  void Forward(const std::vector<float>& x, size_t samples) {
    y = forward.RoundTrip(x, Ids(samples));
    upper.assign(forward.decoder->indices().begin(), forward.decoder->indices().end());
    lower.assign(forward.encoder->indices().begin(), forward.encoder->indices().end());
  }
  absl::Status Encode(const std::vector<float>& g, size_t samples) {
    const std::vector<uint32_t> ids = Ids(samples);
    FrameContext context;
    context.sample_ids = ids;
    context.indices = upper;
    return encoder->Encode(View(g, forward.Dims(samples)), context, &payload);
  }
  absl::Status Decode(absl::string_view bytes, size_t samples) {
    const std::vector<uint32_t> ids = Ids(samples);
    FrameContext context;
    context.sample_ids = ids;
    context.indices = lower;
    const TensorDims dims = forward.Dims(samples);
    received.assign(static_cast<size_t>(dims.elements()), -12345.0f);
    const std::vector<char> exact(bytes.begin(), bytes.end());  // reads past the end are seen
    return decoder->Decode(absl::string_view(exact.data(), exact.size()), encoder->version(),
                           context, View(&received, dims));
  }
  std::vector<bool> Sent() const {
    std::vector<bool> sent(y.size());
    const size_t n = static_cast<size_t>(forward.options.positions * forward.options.hidden);
    const size_t kept = lower.size() / (y.size() / n);
    for (size_t i = 0; i < lower.size(); ++i) sent[i / kept * n + lower[i]] = true;
    return sent;
  }

  Pair forward;
  CodecSpec spec;
  std::unique_ptr<Encoder> encoder;
  std::unique_ptr<Decoder> decoder;
  std::vector<float> y, received;
  std::vector<uint32_t> upper, lower;
  std::string payload;
};

const char* const kForward[] = {"topk(0.1)",    "topk(0.1, global, values=quant(4, token)) | zstd",
                                "randomk(0.1)", "randomk(0.13, scaled, values=none)",
                                "topk(1)",      "randomk(1, scaled)"};

TEST(AtIndices, BothEndsKnowTheIndicesOfTheForwardPass) {
  for (const char* text : kForward) {
    Boundary b(text, "kept", 6, 50);
    b.Forward(Gaussian(900, 1), 3);
    EXPECT_EQ(b.lower, b.upper) << text;
    EXPECT_EQ(b.lower.size() % 3, 0u) << text;
    const std::vector<bool> sent = b.Sent();
    for (size_t i = 0; i < sent.size(); ++i) {
      if (!sent[i]) {
        ASSERT_EQ(b.y[i], 0) << text << ", element " << i;
      }
    }
  }
  Pair none("quant(4)", 6, 50);
  none.RoundTrip(Gaussian(300, 1), {0});
  EXPECT_THAT(none.encoder->indices(), IsEmpty());
  Pair nested("randomk(0.5, values=topk(0.1))", 6, 50);
  nested.RoundTrip(Gaussian(300, 1), {0});
  EXPECT_THAT(nested.encoder->indices(), IsEmpty());
}

// T3.3: the gradient is not zero at the K indices of the forward pass alone, where it is exact; K
// values travel and no place.
TEST(AtIndices, TheGradientIsExactAtTheIndicesAndZeroElsewhere) {
  Boundary b("topk(0.1, values=none)", "kept", 6, 50);
  for (uint64_t frame = 0; frame < 3; ++frame) {
    b.Forward(Gaussian(600, 1, frame), 2);
    const std::vector<float> g = Gaussian(600, 2, frame);
    ASSERT_TRUE(b.Encode(g, 2).ok());
    ASSERT_TRUE(b.Decode(b.payload, 2).ok());
    size_t kept = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      EXPECT_EQ(b.received[i], b.y[i] != 0 ? g[i] : 0) << i;
      kept += b.received[i] != 0;
    }
    EXPECT_EQ(kept, 2u * 6 * 5);
    EXPECT_EQ(b.payload.size(), kept * 4);
    EXPECT_EQ(b.forward.payload_bytes, 2 * (30 * 4 + IndexSetBytes(300, 30)));
  }
}

TEST(AtIndices, AllElementsAreTheDenseGradient) {
  for (const char* text : {"topk(1)", "topk(1, global)", "randomk(1)", "randomk(1, scaled)"}) {
    Boundary b(text, "kept", 7, 13);
    b.Forward(Gaussian(182, 1), 2);
    const std::vector<float> g = Gaussian(182, 2);
    ASSERT_TRUE(b.Encode(g, 2).ok());
    ASSERT_TRUE(b.Decode(b.payload, 2).ok());
    EXPECT_EQ(b.received, g) << text;
    EXPECT_EQ(b.payload.size(), 4 * g.size());
  }
}

TEST(AtIndices, EqualsTheReferenceForAnyShapeAndValues) {
  for (const char* text : kForward) {
    for (const char* backward : {"kept", "kept(quant(4))", "kept(quant(8, group=32)) | zstd"}) {
      for (const auto& [positions, hidden] : {std::pair{1, 1}, {5, 1}, {1, 17}, {4, 33}}) {
        Boundary b(text, backward, positions, hidden);
        const size_t n = static_cast<size_t>(positions) * static_cast<size_t>(hidden);
        b.Forward(Gaussian(n, 3), 1);
        const std::vector<float> g = Gaussian(n, 4);
        ASSERT_TRUE(b.Encode(g, 1).ok());
        ASSERT_LE(static_cast<int64_t>(b.payload.size()),
                  MaxEncodedBytes(b.spec, b.forward.Dims(1)));
        ASSERT_TRUE(b.Decode(b.payload, 1).ok());
        const std::vector<bool> sent = b.Sent();
        std::vector<float> list = ReferenceKept(g, sent);
        std::string body(reinterpret_cast<const char*>(list.data()), 4 * list.size());
        const CodecSpec values = ValuesOf(b.spec);
        if (values.kind() == CodecSpec::QUANT) {
          const int64_t rows = b.spec.global() ? 1 : positions;
          const int64_t columns = static_cast<int64_t>(list.size()) / rows;
          body = ReferenceQuantEncode(values, list, rows, columns);
          list = ReferenceQuantDecode(values, body, rows, columns);
        }
        const std::string what = std::string(text) + " / " + backward;
        if (!b.spec.zstd()) {
          ASSERT_EQ(b.payload, body) << what;
          ASSERT_EQ(static_cast<int64_t>(body.size()),
                    EncodedBytes(b.spec, b.forward.Dims(1), true));
        }
        ASSERT_EQ(b.received, ReferenceUnkept(list, sent, b.spec.scaled())) << what;
      }
    }
  }
}

// The derivative of what the forward codec does, times the gradient of its output: by differences
// of the codec itself, its indices held.
TEST(AtIndices, IsTheGradientOfTheForwardCodec) {
  for (const char* text : {"topk(0.2, values=none)", "randomk(0.23, values=none)",
                           "randomk(0.23, scaled, values=none)"}) {
    Boundary b(text, "kept", 3, 10);
    const std::vector<float> x = Gaussian(30, 5), g = Gaussian(30, 6);
    b.Forward(x, 1);
    ASSERT_TRUE(b.Encode(g, 1).ok());
    ASSERT_TRUE(b.Decode(b.payload, 1).ok());
    const std::vector<float> y = b.y;
    int compared = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      std::vector<float> moved = x;
      moved[i] *= 1.25f;  // a topk keeps the same indices: a larger one stays, a smaller is not
                          // among the largest (of these numbers)
      Boundary again(text, "kept", 3, 10);  // draws alike
      again.Forward(moved, 1);
      if (again.lower != b.lower) continue;
      ++compared;
      double change = 0;
      for (size_t j = 0; j < y.size(); ++j) change += (double{again.y[j]} - y[j]) * g[j];
      EXPECT_NEAR(change / (double{moved[i]} - x[i]), b.received[i],
                  1e-5 * (1 + std::fabs(b.received[i])))
          << text << ", element " << i;
    }
    EXPECT_GT(compared, 20) << text;
  }
}

TEST(AtIndices, ScaledRunsScaleTheGradientToo) {
  Boundary b("randomk(0.25, scaled)", "kept", 1, 12);
  b.Forward(Gaussian(12, 1), 1);
  const std::vector<float> g(12, 1.0f);
  ASSERT_TRUE(b.Encode(g, 1).ok());
  ASSERT_TRUE(b.Decode(b.payload, 1).ok());
  ASSERT_THAT(b.lower, SizeIs(3));
  for (uint32_t place : b.lower) EXPECT_EQ(b.received[place], 4);
  EXPECT_EQ(std::count(b.received.begin(), b.received.end(), 0.0f), 9);
}

TEST(AtIndices, NumbersThatAreNotFiniteStayWhereTheyAre) {
  Boundary b("topk(0.5, values=none)", "kept", 1, 8);
  b.Forward({1, 2, 3, 4, 5, 6, 7, 8}, 1);
  std::vector<float> g(8, std::numeric_limits<float>::quiet_NaN());
  g[7] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(b.Encode(g, 1).ok());
  ASSERT_TRUE(b.Decode(b.payload, 1).ok());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(b.received[i], 0) << i;
  EXPECT_TRUE(std::isnan(b.received[4]));
  EXPECT_EQ(b.received[7], g[7]);
}

TEST(AtIndices, AnEmptyFrameIsOne) {
  Boundary b("topk(0.5)", "kept", 2, 8);
  EXPECT_TRUE(b.Encode({}, 0).ok());
  EXPECT_THAT(b.payload, IsEmpty());
  EXPECT_TRUE(b.Decode("", 0).ok());
}

TEST(AtIndices, IndicesThatAreMissingOrWrongAreRefusedAtBothEnds) {
  Boundary b("topk(0.1)", "kept", 6, 50);
  const std::vector<float> g = Gaussian(600, 2);
  b.Forward(Gaussian(600, 1), 2);
  ASSERT_TRUE(b.Encode(g, 2).ok());
  const std::string good = b.payload;
  const std::vector<uint32_t> indices = b.lower;
  const auto refused = [&](const std::vector<uint32_t>& bad, const char* what) {
    b.upper = b.lower = bad;
    for (const absl::Status& status : {b.Encode(g, 2), b.Decode(good, 2)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
      EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    }
  };
  refused({}, "kept: 0 indices of the forward pass, where it kept 30 of each of 2 samples");
  refused(std::vector<uint32_t>(indices.begin(), indices.end() - 1), "kept: 59 indices");
  std::vector<uint32_t> bad = indices;
  bad[59] = 300;
  refused(bad, "kept: index 300 of sample 1 is out of order or not within its 300 elements");
  bad = indices;
  bad[31] = bad[30];
  refused(bad, "of sample 1 is out of order");
  bad = indices;
  std::swap(bad[3], bad[4]);
  refused(bad, "of sample 0 is out of order");
  b.upper = b.lower = indices;
  EXPECT_TRUE(b.Decode(good, 2).ok());
}

TEST(AtIndices, HostileBytesAreAStatusOrATensor) {
  for (const char* backward : {"kept", "kept(quant(5))", "kept(quant(3, group=32)) | zstd"}) {
    Boundary b("topk(0.2)", backward, 3, 40);
    b.Forward(Gaussian(240, 1), 2);
    ASSERT_TRUE(b.Encode(Gaussian(240, 2), 2).ok());
    const std::string good = b.payload;
    for (size_t n = 0; n < good.size(); ++n) {
      ASSERT_EQ(b.Decode(good.substr(0, n), 2).code(), absl::StatusCode::kInvalidArgument)
          << backward << " at " << n;
    }
    EXPECT_FALSE(b.Decode(good + "x", 2).ok()) << backward;
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      b.Decode(bad, 2).IgnoreError();
    }
    EXPECT_TRUE(b.Decode(good, 2).ok()) << backward;
  }
}

TEST(AtIndices, ACodecThatIsNotBoundIsRefused) {
  for (const char* text : {"kept", "kept | zstd"}) {
    const absl::Status status = MakeEncoder(Spec(text), Pair::Options(2, 8)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the forward codec of its boundary"));
    EXPECT_FALSE(MakeDecoder(Spec(text), Pair::Options(2, 8)).ok()) << text;
  }
  const CodecOptions huge = Pair::Options(int64_t{1} << 17, int64_t{1} << 16);
  EXPECT_THAT(std::string(MakeEncoder(Bound(Spec("kept")), huge).status().message()),
              HasSubstr("2^32"));
}

}  // namespace
}  // namespace isthmus::compress
