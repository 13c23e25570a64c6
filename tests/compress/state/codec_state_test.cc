#include "compress/state/codec_state.h"

#include <gtest/gtest.h>

#include "tests/compress/pair.h"
#include "tests/compress/string_state.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

// Every node of the grammar (proto/codec/codec_text.h), and those that keep state within others.
constexpr const char* kCodecs[] = {
    "none",
    "bf16",
    "fp16",
    "quant(3)",
    "quant(4, stochastic)",
    "sign",
    "topk(0.2)",
    "topk(0.2, values=quant(4, token, stochastic))",
    "randomk(0.3, scaled)",
    "randomk(0.5, values=topk(0.3, global))",
    "lowrank(2)",
    "lowrank(2, values=quant(8, stochastic))",
    "autoencoder(6)",
    "cocktail(0.5, 0.5, 4)",
    "kept(bf16)",
    "kept(quant(4, stochastic))",
    "kept | zstd",
    "ef(quant(2))",
    "ef(lowrank(1))",
    "lep(topk(0.1))",
    "lep(lowrank(2))",
    "predict(quant(4))",
    "predict(quant(3, token), context=3)",
    "predict(quant(3, token), context=2, next)",
    "predict(quant(3, stochastic))",
    "delta(quant(3))",
    "delta(quant(3), buffer=8)",
    "delta(topk(0.5), cold=bf16, buffer=2)",
    "delta(quant(3, token, stochastic))",
    "delta(randomk(0.5))",
    "delta(lowrank(2))",
    "delta(quant(2), cold=quant(4))",
    "delta(quant(3), cold=predict(quant(4), context=2))",
    "none | zstd",
    "quant(8) | zstd",
    "lep(lowrank(2)) | zstd",
    "delta(quant(4), cold=predict(quant(4))) | zstd",
};

constexpr int64_t kPositions = 4, kHidden = 6;
const TensorDims kFrame{3, kPositions, kHidden};

CodecOptions Options() {
  CodecOptions options = Pair::Options(kPositions, kHidden);
  options.max_samples = 3;
  options.buffer_memory_bytes = 5 * 2 * kPositions * kHidden;  // five samples
  return options;
}

// Frame `f`: three of eight samples, which come again; slowly moving tensors.
struct TestFrame {
  explicit TestFrame(int f) : x(Gaussian(static_cast<size_t>(kFrame.elements()), 1)) {
    const std::vector<float> noise = Gaussian(x.size(), 2, static_cast<uint64_t>(f));
    for (size_t i = 0; i < x.size(); ++i) x[i] += 0.1f * noise[i];
    for (uint32_t s = 0; s < 3; ++s) ids.push_back((static_cast<uint32_t>(f) * 2 + s) % 8);
    for (size_t i = 0; i < 3 * kPositions; ++i)
      tokens.push_back(static_cast<uint32_t>(i * 5 + static_cast<size_t>(f)) % 9);
    context.sample_ids = ids;
    context.micro = f % 2;
    context.token_ids = tokens;
    for (size_t s = 0; s < 3; ++s) {
      for (uint32_t p = 0; p < kPositions; ++p) {  // two of six channels, as a topk(0.25) has
        indices.push_back(p * kHidden);
        indices.push_back(p * kHidden + 1 + static_cast<uint32_t>(f) % 5);
      }
    }
    context.indices = indices;
  }
  std::vector<float> x;
  std::vector<uint32_t> ids, tokens, indices;
  FrameContext context;
};

struct Passed {
  std::string payload;
  std::vector<float> y;
};

Passed Pass(Pair* pair, int f) {
  TestFrame frame(f);
  Passed out;
  const absl::Status sent =
      pair->encoder->Encode(View(frame.x, kFrame), frame.context, &out.payload);
  EXPECT_TRUE(sent.ok()) << sent;
  out.y.resize(frame.x.size());
  const absl::Status got = pair->decoder->Decode(out.payload, pair->encoder->version(),
                                                 frame.context, View(&out.y, kFrame));
  EXPECT_TRUE(got.ok()) << got;
  return out;
}

absl::Status LoadInto(Pair* pair, const std::string& encoder, const std::string& decoder) {
  StringSource from_encoder(encoder), from_decoder(decoder);
  auto e = LoadEncoder(pair->spec, pair->options, 11, 5, &from_encoder);
  if (!e.ok()) return e.status();
  auto d = LoadDecoder(pair->spec, pair->options, 11, 5, &from_decoder);
  if (!d.ok()) return d.status();
  EXPECT_EQ(AgreementHash(*e).value(), AgreementHash(*d).value());
  EXPECT_EQ(e->stamp.generation, 2u);
  pair->encoder = std::move(e->codec);
  pair->decoder = std::move(d->codec);
  return absl::OkStatus();
}

void ExpectGoesOn(const std::string& text, const CodecOptions& options) {
  Pair uninterrupted(text, options);
  for (int f = 0; f < 5; ++f) Pass(&uninterrupted, f);
  const std::string encoder = Saved(uninterrupted.encoder.get(), uninterrupted.spec, options);
  const std::string decoder = Saved(uninterrupted.decoder.get(), uninterrupted.spec, options);
  ASSERT_NE(encoder, "");
  ASSERT_NE(decoder, "");
  Pair resumed(text, options);
  const absl::Status loaded = LoadInto(&resumed, encoder, decoder);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(resumed.encoder->version(), 5u);
  EXPECT_EQ(resumed.encoder->StateHash().value(), uninterrupted.encoder->StateHash().value());
  for (int f = 5; f < 12; ++f) {
    const Passed want = Pass(&uninterrupted, f), got = Pass(&resumed, f);
    ASSERT_EQ(want.payload, got.payload) << "frame " << f;
    ASSERT_EQ(want.y, got.y) << "frame " << f;
    ASSERT_EQ(resumed.encoder->StateHash().value(), uninterrupted.encoder->StateHash().value());
    ASSERT_EQ(resumed.decoder->StateHash().value(), uninterrupted.decoder->StateHash().value());
  }
}

TEST(CodecState, EveryCodecGoesOnBitForBit) {
  for (const char* text : kCodecs) {
    SCOPED_TRACE(text);
    ExpectGoesOn(text, Options());
  }
}

TEST(CodecState, BuffersOnDiskAreSavedToo) {
  TempDirectory directory;
  CodecOptions options = Options();
  options.spill_directory = directory.path();
  options.buffer_memory_bytes = 2 * 2 * kPositions * kHidden;
  options.buffer_disk_bytes = 3 * 2 * kPositions * kHidden;
  ExpectGoesOn("delta(quant(3))", options);
}

// Where nothing is said to be kept, a fresh codec goes on as the old one would have.
TEST(CodecState, CodecsThatKeepNothingNeedNoState) {
  int without = 0;
  for (const char* text : kCodecs) {
    SCOPED_TRACE(text);
    Pair old(text, Options());
    if (KeepsState(old.spec)) continue;
    ++without;
    for (int f = 0; f < 5; ++f) Pass(&old, f);
    Pair fresh(text, Options());
    for (int f = 5; f < 8; ++f) {
      const Passed want = Pass(&old, f), got = Pass(&fresh, f);
      EXPECT_EQ(want.payload, got.payload);
      EXPECT_EQ(want.y, got.y);
    }
  }
  EXPECT_EQ(without, 8);
}

// And a fresh one would not, where state is kept: the test above can fail.
TEST(CodecState, FreshCodecsOfTheOthersPartFromTheOld) {
  for (const char* text : {"quant(4, stochastic)", "randomk(0.3, scaled)", "lowrank(2)",
                           "ef(quant(2))", "predict(quant(4))", "delta(quant(3))"}) {
    SCOPED_TRACE(text);
    Pair old(text, Options()), fresh(text, Options());
    EXPECT_TRUE(KeepsState(old.spec));
    for (int f = 0; f < 5; ++f) Pass(&old, f);
    EXPECT_NE(Pass(&old, 5).payload, Pass(&fresh, 5).payload);
  }
}

TEST(CodecState, TruncatedAtEveryLengthIsRefused) {
  for (const char* text : {"ef(quant(2))", "lep(lowrank(2)) | zstd", "predict(quant(4), context=2)",
                           "delta(quant(3), cold=predict(quant(4)))", "randomk(0.3)"}) {
    SCOPED_TRACE(text);
    Pair pair(text, Options());
    for (int f = 0; f < 3; ++f) Pass(&pair, f);
    const std::string whole = Saved(pair.encoder.get(), pair.spec, pair.options);
    for (size_t n = 0; n < whole.size(); ++n) {
      StringSource source(whole.substr(0, n));
      const auto loaded = LoadEncoder(pair.spec, pair.options, 11, 5, &source);
      ASSERT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss) << n << loaded.status();
      ASSERT_NE(loaded.status().message().find("ends in its"), absl::string_view::npos);
    }
  }
}

TEST(CodecState, AnyFlippedBitIsFound) {
  for (const char* text :
       {"ef(quant(2))", "lowrank(2) | zstd", "delta(quant(3), cold=predict(quant(4)))"}) {
    SCOPED_TRACE(text);
    Pair pair(text, Options());
    for (int f = 0; f < 3; ++f) Pass(&pair, f);
    std::string bytes = Saved(pair.decoder.get(), pair.spec, pair.options);
    for (size_t bit = 0; bit < 8 * bytes.size(); bit += 5) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      StringSource source(bytes);
      ASSERT_FALSE(LoadDecoder(pair.spec, pair.options, 11, 5, &source).ok()) << "bit " << bit;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
    StringSource source(bytes);
    EXPECT_TRUE(LoadDecoder(pair.spec, pair.options, 11, 5, &source).ok());
  }
}

TEST(CodecState, StateOfSomethingElseIsRefusedInWords) {
  Pair pair("delta(quant(3))", Options());
  Pass(&pair, 0);
  const std::string state = Saved(pair.encoder.get(), pair.spec, pair.options);
  const auto why = [&](const CodecSpec& spec, const CodecOptions& options, uint64_t place,
                       int64_t step) {
    StringSource source(state);
    return std::string(LoadEncoder(spec, options, place, step, &source).status().message());
  };
  EXPECT_EQ(why(pair.spec, pair.options, 11, 5), "");
  EXPECT_EQ(why(Spec("delta(quant(4))"), pair.options, 11, 5),
            "the state is of another codec than delta(quant(4))");
  EXPECT_EQ(why(pair.spec, pair.options, 12, 5), "the state is of another boundary of the model");
  EXPECT_EQ(why(pair.spec, pair.options, 11, 10), "the state is of step 5, not of 10");
  CodecOptions other = pair.options;
  other.distinct_samples = 9;
  EXPECT_NE(why(pair.spec, other, 11, 5).find("number of samples"), std::string::npos);
  other = pair.options;
  other.buffer_memory_bytes /= 2;  // two samples: the planner found less memory
  EXPECT_EQ(why(pair.spec, other, 11, 5),
            "the state has 3 delta buffers where at most 2 have room");
  StringSource source(state);
  EXPECT_EQ(LoadDecoder(pair.spec, pair.options, 11, 5, &source).status().message(),
            "the state is of the other end of the link");
}

TEST(CodecState, EndsThatPartedDoNotAgree) {
  Pair pair("delta(quant(3))", Options());
  Pass(&pair, 0);
  const std::string encoder = Saved(pair.encoder.get(), pair.spec, pair.options);
  Pass(&pair, 1);
  const std::string decoder = Saved(pair.decoder.get(), pair.spec, pair.options);
  StringSource from_encoder(encoder), from_decoder(decoder);
  const auto e = LoadEncoder(pair.spec, pair.options, 11, 5, &from_encoder);
  const auto d = LoadDecoder(pair.spec, pair.options, 11, 5, &from_decoder);
  ASSERT_TRUE(e.ok() && d.ok());
  EXPECT_NE(AgreementHash(*e).value(), AgreementHash(*d).value());
}

TEST(CodecState, AFullDiskIsTheSinksError) {
  Pair pair("delta(quant(3))", Options());
  Pass(&pair, 0);
  StringSink sink;
  sink.limit = 100;
  EXPECT_EQ(SaveState(pair.encoder.get(), pair.spec, pair.options, Stamp(), &sink).message(),
            "the disk is full");
  Pass(&pair, 1);  // the codec goes on
}

}  // namespace
}  // namespace isthmus::compress
