// Codecs with state other than delta buffers, ef, lep and predict: the same payloads, results and
// state on a device as on the CPU, over several frames.
#include "compress/cuda/device_means.h"
#include "compress/cuda/device_predict.h"
#include "compress/cuda/device_random_k.h"
#include "compress/cuda/device_wrap.h"
#include "tests/gpu/device_tensor.h"

namespace isthmus::compress {
namespace {

constexpr std::pair<int64_t, int64_t> kShapes[] = {{9, 64}, {5, 37}, {1, 1}, {200, 128}};

std::string Where(const std::string& text, int64_t positions, int64_t hidden, uint64_t frame) {
  return text + " " + std::to_string(positions) + "x" + std::to_string(hidden) + " frame " +
         std::to_string(frame);
}

TEST(GpuFeedback, OverEveryCodec) {
  uint64_t seed = 1;
  for (const char* text :
       {"ef(quant(2))", "lep(quant(1))", "ef(quant(3, token))", "lep(quant(2, group=64))",
        "ef(sign)", "lep(topk(0.1))", "ef(topk(0.05, global))", "ef(randomk(0.2))",
        "lep(randomk(0.2, scaled))", "ef(cocktail(0.3, 0.3, 4))", "ef(bf16)", "lep(none)",
        "ef(quant(2, stochastic))", "lep(quant(4, rms))"}) {
    for (auto [positions, hidden] : kShapes) {
      Four four(text, Pair::Options(positions, hidden));
      for (uint64_t frame = 0; frame < 6; ++frame) {
        SCOPED_TRACE(Where(text, positions, hidden, frame));
        four.context.micro = static_cast<int32_t>(frame % 2);
        // More samples than are worked on at once; what is not finite leaves no residual.
        const size_t samples = frame == 4 ? 11 : 3;
        const Values values = static_cast<Values>(frame % 3);
        four.Frame(Numbers(samples * static_cast<size_t>(positions * hidden), ++seed, values),
                   Ids(samples), static_cast<DType>(frame / 2 % 3));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// The factors differ from the CPU's in their last bits: over frames of one input, what the receiver
// has adds up to it all the same.
TEST(GpuFeedback, LowRankLosesNothingOverTime) {
  constexpr int kFrames = 40;
  const TensorDims dims{1, 24, 32};
  Pair device("lep(lowrank(4))", OnDevice(Pair::Options(24, 32)));
  ASSERT_TRUE(device.encoder != nullptr && device.decoder != nullptr);
  Tensor in(DType::kF32, dims), out(DType::kF32, dims);
  const std::vector<float> x = Gaussian(24 * 32, 5);
  in.Set(x);
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  std::vector<float> mean(x.size());
  for (uint64_t frame = 1; frame <= kFrames; ++frame) {
    std::string payload;
    ASSERT_TRUE(device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload).ok());
    ASSERT_TRUE(device.decoder->Decode(payload, frame, context, out.OnDevice()).ok());
    std::vector<float> y(x.size());
    std::memcpy(y.data(), out.Download().data(), 4 * y.size());
    if (frame == 1) {
      EXPECT_GT(RelativeError(x, y), 0.5);
    }
    for (size_t i = 0; i < y.size(); ++i) mean[i] += y[i] / kFrames;
  }
  EXPECT_LT(RelativeError(x, mean), 0.2);
}

// Tokens of a small vocabulary; with `wide`, some need four bytes.
std::vector<uint32_t> Tokens(size_t n, uint64_t seed, bool wide) {
  std::vector<uint32_t> tokens(n);
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<uint32_t>(RandomBelow(seed, 3, i, 17));
    if (wide && i % 5 == 0) tokens[i] += 70000;
  }
  return tokens;
}

TEST(GpuPredict, TheSameMeansOverManyFrames) {
  uint64_t seed = 50;
  for (const char* text :
       {"predict(quant(3))", "predict(quant(2, token), context=2)", "predict(bf16, context=4)",
        "predict(quant(4, group=64), rate=0.5, context=3, next)", "predict(topk(0.2))",
        "predict(randomk(0.5))", "predict(none)", "predict(quant(3, stochastic), next)"}) {
    for (auto [positions, hidden] : kShapes) {
      for (int64_t rows : {100000, 40, 3}) {  // room for all, for a few tokens, for no positions
        CodecOptions options = Pair::Options(positions, hidden);
        options.predictor_bytes = 4 * hidden * (rows == 3 ? 3 : positions + rows);
        Four four(text, options);
        for (uint64_t frame = 0; frame < 6; ++frame) {
          SCOPED_TRACE(Where(text, positions, hidden, frame) + " rows " + std::to_string(rows));
          const size_t samples = frame == 4 ? 11 : frame == 3 ? 0 : 2;
          four.tokens = Tokens(samples * static_cast<size_t>(positions), ++seed, frame % 2 == 1);
          // What is not finite, or very large, is not learned from.
          const Values values = static_cast<Values>(frame % 3);
          four.Frame(Numbers(samples * static_cast<size_t>(positions * hidden), seed, values),
                     Ids(samples), static_cast<DType>(frame / 2 % 3));
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GpuPredict, BoundaryOfGpt2Xl) {
  Four four("predict(quant(3), context=2)", Pair::Options(1024, 1600));
  for (uint64_t frame = 0; frame < 3; ++frame) {
    SCOPED_TRACE(frame);
    four.tokens = Tokens(2 * 1024, frame, false);
    four.Frame(Gaussian(2 * 1024 * 1600, frame), Ids(2), DType::kBf16);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Key frames by predict: known samples bring no tokens, what is not finite is not learned from.
TEST(GpuPredict, AsTheCodecOfKeyFrames) {
  uint64_t seed = 500;
  for (auto [positions, hidden] : kShapes) {
    CodecOptions options = Pair::Options(positions, hidden);
    options.buffer_memory_bytes = 4 * 2 * positions * hidden;
    Four four("delta(quant(4), cold=predict(quant(4), context=2))", options);
    for (uint32_t frame = 0; frame < 8; ++frame) {
      SCOPED_TRACE(Where("delta", positions, hidden, frame));
      const size_t n = static_cast<size_t>(positions * hidden);
      std::vector<float> x = Gaussian(3 * n, ++seed);
      if (frame == 2) x[0] = std::numeric_limits<float>::infinity();
      if (frame == 3) x[n] = std::numeric_limits<float>::quiet_NaN();
      four.tokens = Tokens(3 * static_cast<size_t>(positions), seed, frame % 2 == 0);
      four.Frame(x, {frame, frame / 2 + 20, 40}, static_cast<DType>(frame % 3));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GpuPredict, TokensAndVersionsAreRequired) {
  Four four("predict(quant(3))", Pair::Options(4, 64));
  Tensor in(DType::kF32, four.cpu.Dims(1)), out(DType::kF32, four.cpu.Dims(1));
  std::string payload;
  const std::vector<uint32_t> ids = {0};
  four.context.sample_ids = ids;
  EXPECT_EQ(
      four.device.encoder->Encode(std::as_const(in).OnDevice(), four.context, &payload).code(),
      absl::StatusCode::kInvalidArgument);
  four.tokens = Tokens(4, 1, false);
  four.Frame(Gaussian(256, 1), ids, DType::kF32);
  Decoder& decoder = *four.device.decoder;
  const uint64_t hash = decoder.StateHash().value();
  EXPECT_EQ(decoder.Decode(four.last, 1, four.context, out.OnDevice()).code(),
            absl::StatusCode::kDataLoss);
  for (const std::string& bytes :
       {std::string(), four.last.substr(0, 8), four.last + "x", "\x03" + four.last.substr(1)}) {
    EXPECT_EQ(decoder.Decode(bytes, 2, four.context, out.OnDevice()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(decoder.StateHash().value(), hash);
  four.Frame(Gaussian(256, 2), ids, DType::kF32);
}

// Saved on a device and taken up on a host, and the other way round: the same bytes, and everything
// goes on as if nothing had been.
TEST(GpuState, MovesBetweenDeviceAndHost) {
  uint64_t seed = 9000;
  for (const char* text :
       {"ef(quant(2))", "lep(topk(0.1))", "predict(quant(3), context=3)", "ef(randomk(0.2))",
        "delta(quant(4))", "delta(quant(4), cold=predict(quant(4), context=2))",
        "delta(quant(2), buffer=8)", "quant(3, stochastic)", "randomk(0.3)",
        "ef(quant(4)) | zstd"}) {
    for (auto [positions, hidden] : kShapes) {
      Four four(text, Pair::Options(positions, hidden));
      for (uint64_t frame = 0; frame < 6; ++frame) {
        SCOPED_TRACE(Where(text, positions, hidden, frame));
        four.context.micro = static_cast<int32_t>(frame % 2);
        four.tokens = Tokens(2 * static_cast<size_t>(positions), ++seed, frame % 2 == 1);
        four.Frame(Numbers(2 * static_cast<size_t>(positions * hidden), seed, Values::kAwkward),
                   {static_cast<uint32_t>(frame % 3), 9}, static_cast<DType>(frame / 2 % 3));
        if (::testing::Test::HasFatalFailure()) return;
        if (frame % 2 == 1) four.Exchange(true);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// The factors of lowrank are the device's own: what it saves, it takes up.
TEST(GpuState, LowRankGoesOnFromItsWarmStart) {
  const CodecOptions options = OnDevice(Pair::Options(24, 32));
  Pair whole("lowrank(4)", options), parts("lowrank(4)", options);
  Tensor in(DType::kF32, whole.Dims(1)), out(DType::kF32, whole.Dims(1));
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  for (uint64_t frame = 0; frame < 6; ++frame) {
    in.Set(Gaussian(24 * 32, frame / 2));
    std::string expected, payload;
    ASSERT_TRUE(whole.encoder->Encode(std::as_const(in).OnDevice(), context, &expected).ok());
    ASSERT_TRUE(parts.encoder->Encode(std::as_const(in).OnDevice(), context, &payload).ok());
    ASSERT_EQ(Difference(expected, payload), "");
    for (Pair* pair : {&whole, &parts})
      ASSERT_TRUE(pair->decoder->Decode(payload, frame + 1, context, out.OnDevice()).ok());
    const std::string encoder = Saved(parts.encoder.get(), parts.spec, options);
    const std::string decoder = Saved(parts.decoder.get(), parts.spec, options);
    Four::Load(encoder, decoder, &parts);
    if (::testing::Test::HasFatalFailure()) return;
  }
  // The host goes on from there too, nearly as the device.
  Pair host("lowrank(4)", Pair::Options(24, 32));
  Four::Load(Saved(whole.encoder.get(), whole.spec, options),
             Saved(whole.decoder.get(), whole.spec, options), &host);
  const std::vector<float> x = Gaussian(24 * 32, 2);
  in.Set(x);
  std::string payload;
  ASSERT_TRUE(whole.encoder->Encode(std::as_const(in).OnDevice(), context, &payload).ok());
  const std::string on_host = host.Encode(x, ids);
  ASSERT_EQ(on_host.size(), payload.size());
  std::vector<float> a, b;
  ASSERT_TRUE(host.Decode(on_host, host.decoder->version() + 1, ids, &a).ok());
  ASSERT_TRUE(host.Decode(payload, host.decoder->version() + 1, ids, &b).ok());
  EXPECT_LT(RelativeError(a, b), 1e-4);
}

// Bytes that no codec writes, and those of another place, are refused as on the host.
TEST(GpuState, HostileStateIsRefused) {
  for (const char* text : {"ef(quant(2))", "predict(quant(3))", "delta(quant(4))", "lowrank(2)"}) {
    Pair pair(text, OnDevice(Pair::Options(5, 64)));
    Tensor in(DType::kF32, pair.Dims(1));
    in.Set(Gaussian(5 * 64, 1));
    const std::vector<uint32_t> ids = {0}, tokens(5, 3);
    FrameContext context;
    context.sample_ids = ids;
    context.token_ids = tokens;
    std::string payload;
    ASSERT_TRUE(pair.encoder->Encode(std::as_const(in).OnDevice(), context, &payload).ok());
    const std::string good = Saved(pair.encoder.get(), pair.spec, pair.options);
    ASSERT_GT(good.size(), 100u);
    for (size_t n = 0; n < good.size(); n += 1 + good.size() / 40) {
      StringSource cut(good.substr(0, n));
      EXPECT_FALSE(LoadEncoder(pair.spec, pair.options, 11, 5, &cut).ok()) << text << " " << n;
      std::string changed = good;
      changed[n] = static_cast<char>(changed[n] ^ 16);
      StringSource flipped(changed);
      EXPECT_FALSE(LoadEncoder(pair.spec, pair.options, 11, 5, &flipped).ok()) << text << " " << n;
    }
  }
}

}  // namespace
}  // namespace isthmus::compress
