// Decoders on bytes that no encoder made: always a Status or a whole tensor, never a crash (run it
// under the sanitizers), never a silent change.
#include <algorithm>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

const char* const kTexts[] = {"none",
                              "bf16",
                              "quant(3)",
                              "quant(4, group=32)",
                              "delta(quant(3))",
                              "delta(quant(2), cold=quant(4))",
                              "none | zstd",
                              "delta(quant(3)) | zstd",
                              "sign",
                              "topk(0.2)",
                              "topk(0.1, global)",
                              "randomk(0.3)",
                              "cocktail(0.5, 0.5, 4)",
                              "lowrank(2)",
                              "lep(quant(3))",
                              "predict(quant(3))",
                              "delta(quant(3), cold=predict(topk(0.2)))",
                              "randomk(0.5, values=topk(0.5))",
                              "autoencoder(9, values=quant(4))",
                              "ef(sign(group=32))"};

struct Frames {
  explicit Frames(const std::string& text) : pair(text, 2, 9) {
    pair.tokens = {1, 2, 3, 2};
    for (uint64_t f = 0; f < 2; ++f) payloads.push_back(pair.Encode(Gaussian(36, 1, f), {4, 5}));
  }
  // A decoder that has had the first frame.
  std::unique_ptr<Decoder> WarmDecoder() {
    std::unique_ptr<Decoder> decoder = *MakeDecoder(pair.spec, pair.options);
    EXPECT_TRUE(Decode(decoder.get(), payloads[0], 1).ok());
    return decoder;
  }
  absl::Status Decode(Decoder* decoder, const std::string& payload, uint64_t version) {
    std::vector<float> y(36);
    const std::vector<uint32_t> ids = {4, 5};
    FrameContext context;
    context.sample_ids = ids;
    const std::vector<char> exact(
        payload.begin(), payload.end());  // its own allocation: reads past the end are seen
    return decoder->Decode(absl::string_view(exact.data(), exact.size()), version, context,
                           View(&y, pair.Dims(2)));
  }
  Pair pair;
  std::vector<std::string> payloads;
};

TEST(Hostile, TruncatedAtEveryLength) {
  for (const char* text : kTexts) {
    Frames frames(text);
    std::unique_ptr<Decoder> decoder = frames.WarmDecoder();
    const uint64_t hash = decoder->StateHash().value();
    for (size_t n = 0; n < frames.payloads[1].size(); ++n) {
      const absl::Status status = frames.Decode(decoder.get(), frames.payloads[1].substr(0, n), 2);
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << text << " at " << n << ": " << status;
      ASSERT_EQ(decoder->StateHash().value(), hash) << text << " at " << n;
    }
    for (size_t n = 1; n < 20; ++n) {
      ASSERT_FALSE(frames.Decode(decoder.get(), frames.payloads[1] + std::string(n, 'x'), 2).ok())
          << text;
    }
    EXPECT_TRUE(frames.Decode(decoder.get(), frames.payloads[1], 2).ok()) << text;
  }
}

TEST(Hostile, EveryBitFlipped) {
  for (const char* text : kTexts) {
    Frames frames(text);
    for (const std::string& payload : frames.payloads) {
      const bool cold = &payload == &frames.payloads[0];
      for (size_t bit = 0; bit < 8 * payload.size(); ++bit) {
        std::unique_ptr<Decoder> decoder =
            cold ? *MakeDecoder(frames.pair.spec, frames.pair.options) : frames.WarmDecoder();
        std::string bad = payload;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
        frames.Decode(decoder.get(), bad, cold ? 1 : 2)
            .IgnoreError();  // values may change unseen here: the frame's checksum is for that
      }
    }
  }
}

TEST(Hostile, RandomBytes) {
  for (const char* text : kTexts) {
    Frames frames(text);
    std::unique_ptr<Decoder> decoder = frames.WarmDecoder();
    for (uint64_t i = 0; i < 3000; ++i) {
      std::string bytes(RandomBelow(2, i, 0, 200), '\0');
      for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<char>(RandomBits(3, i, k));
      if (!bytes.empty()) bytes[0] = static_cast<char>(bytes[0] & 3);
      frames.Decode(decoder.get(), bytes, decoder->version() + 1).IgnoreError();
    }
  }
}

}  // namespace
}  // namespace isthmus::compress
