// delta(quant) with either end on a device: the same payloads, the same buffers, the same results.
#include "compress/cuda/device_delta.h"
#include "compress/cuda/device_store.h"
#include "proto/codec/codec_size.h"
#include "tests/gpu/device_tensor.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

std::vector<float> Near(const std::vector<float>& x, uint64_t seed, float distance) {
  std::vector<float> y = Gaussian(x.size(), seed);
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] + distance * y[i];
  return y;
}

// Distinct, below `of`.
std::vector<uint32_t> SomeIds(uint64_t stream, uint64_t count, uint64_t of) {
  std::vector<uint32_t> ids;
  for (uint64_t i = 0; ids.size() < count; ++i) {
    const uint32_t id = static_cast<uint32_t>(RandomBelow(5, stream, i, of));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

TEST(GpuDelta, EveryWidthOverManyVisits) {
  uint64_t seed = 1;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const char* more :
         {"", ", symmetric", ", token", ", group=64", ", group=100", ", rms", ", stochastic"}) {
      const std::string text = "delta(quant(" + std::to_string(bits) + more + "))";
      for (auto [positions, hidden] : {std::pair<int64_t, int64_t>{9, 64}, {5, 37}, {200, 128}}) {
        Four four(text, Pair::Options(positions, hidden));
        std::vector<float> x =
            Numbers(static_cast<size_t>(2 * positions * hidden), ++seed, Values::kAwkward);
        for (int visit = 0; visit < 4; ++visit) {
          SCOPED_TRACE(text + " " + std::to_string(positions) + "x" + std::to_string(hidden) +
                       " visit " + std::to_string(visit));
          four.Frame(x, {4, 9}, static_cast<DType>(seed % 3));
          if (::testing::Test::HasFatalFailure()) return;
          x = Near(x, ++seed, 0.1f);
        }
      }
    }
  }
}

// Inner and cold codecs without a fused kernel.
TEST(GpuDelta, OverAnyCodec) {
  uint64_t seed = 900;
  for (const char* text :
       {"delta(topk(0.1))", "delta(topk(0.1, global))", "delta(randomk(0.2))",
        "delta(cocktail(0.5, 0.3, 4))", "delta(bf16)", "delta(none)", "delta(sign)",
        "delta(quant(4), cold=topk(0.5, values=fp16))", "delta(quant(4), cold=randomk(0.5))",
        "delta(fp16, cold=cocktail(0.5, 0.5, 8))"}) {
    for (auto [positions, hidden] : {std::pair<int64_t, int64_t>{9, 64}, {5, 37}, {1, 1}}) {
      CodecOptions options = Pair::Options(positions, hidden);
      options.buffer_memory_bytes = 3 * 2 * positions * hidden;  // one is forgotten
      Four four(text, options);
      const size_t n = static_cast<size_t>(positions * hidden);
      std::vector<float> x = Numbers(4 * n, ++seed, Values::kAwkward);
      for (uint32_t visit = 0; visit < 6; ++visit) {
        SCOPED_TRACE(std::string(text) + " " + std::to_string(positions) + "x" +
                     std::to_string(hidden) + " visit " + std::to_string(visit));
        std::vector<float> y = x;
        if (visit == 3) y[n] = std::numeric_limits<float>::quiet_NaN();
        if (visit == 4) y[0] = -std::numeric_limits<float>::infinity();
        y.resize((visit == 2 ? 4 : 2) * n);
        const std::vector<uint32_t> ids = visit == 2 ? Ids(4) : std::vector<uint32_t>{visit % 2, 2};
        four.Frame(y, ids, static_cast<DType>(seed % 3));
        if (::testing::Test::HasFatalFailure()) return;
        x = Near(x, ++seed, 0.1f);
      }
    }
  }
}

// More positions than the blocks of a cluster take at once, up to the most in one pass.
TEST(GpuDelta, LongSamples) {
  uint64_t seed = 40;
  for (int64_t positions : {1025, 2500, 4096}) {
    for (const char* text : {"delta(quant(3))", "delta(quant(4, symmetric))", "delta(quant(7))"}) {
      for (int dtype = 0; dtype < 3; ++dtype) {
        SCOPED_TRACE(std::string(text) + " " + std::to_string(positions) + " positions, dtype " +
                     std::to_string(dtype));
        Four four(text, Pair::Options(positions, 128));
        std::vector<float> x = Gaussian(static_cast<size_t>(positions * 128), ++seed);
        for (int visit = 0; visit < 2; ++visit) {
          four.Frame(x, {7}, static_cast<DType>(dtype));
          if (::testing::Test::HasFatalFailure()) return;
          x = Near(x, ++seed, 0.1f);
        }
      }
    }
  }
}

TEST(GpuDelta, BoundaryOfGpt2Xl) {
  for (const char* text : {"delta(quant(3))", "delta(quant(4, token))", "delta(quant(2, group=32))",
                           "delta(quant(4), cold=quant(8))", "delta(quant(4), cold=bf16)",
                           "delta(quant(4), cold=fp16)"}) {
    Four four(text, Pair::Options(1024, 1600));
    std::vector<float> x = Gaussian(1024 * 1600, 3);
    for (uint64_t visit = 0; visit < 3; ++visit) {
      SCOPED_TRACE(std::string(text) + " visit " + std::to_string(visit));
      four.Frame(x, {7}, visit == 0 ? DType::kBf16 : static_cast<DType>(visit));
      if (::testing::Test::HasFatalFailure()) return;
      x = Near(x, visit + 10, 0.05f);
    }
  }
}

// Least recently used samples are forgotten at the same frame everywhere; some frames have more
// samples than there is room for.
TEST(GpuDelta, ForgetsTheSameSamples) {
  CodecOptions options = Pair::Options(3, 64);
  options.buffer_memory_bytes = 5 * 2 * 3 * 64;
  Four four("delta(quant(4))", options);
  for (uint64_t frame = 0; frame < 60; ++frame) {
    const uint64_t count = 1 + RandomBelow(5, 1, frame, 7);
    const std::vector<uint32_t> ids = SomeIds(frame + 10, count, 12);
    SCOPED_TRACE("frame " + std::to_string(frame));
    four.Frame(Gaussian(count * 3 * 64, frame), ids, DType::kBf16);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(four.device.encoder->stats().evicted_samples, 5);
  EXPECT_EQ(four.device.encoder->stats().evicted_samples,
            four.cpu.encoder->stats().evicted_samples);
  EXPECT_EQ(four.device.encoder->stats().key_frame_samples,
            four.cpu.encoder->stats().key_frame_samples);
}

TEST(GpuDelta, NotFiniteSamplesFallBackAndAreForgotten) {
  for (const char* text : {"delta(quant(4))", "delta(quant(4, token))", "delta(quant(4, rms))",
                           "delta(quant(4), cold=quant(8))", "delta(quant(4), cold=bf16)"}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      Four four(text, Pair::Options(4, 64));
      std::vector<float> x = Gaussian(3 * 256, 1);
      const float inf = std::numeric_limits<float>::infinity();
      for (int frame = 0; frame < 5; ++frame) {
        SCOPED_TRACE(std::string(text) + " frame " + std::to_string(frame));
        std::vector<float> y = x;
        if (frame == 0) y[300] = inf;              // a key frame
        if (frame == 2) y[10] = -inf / inf;        // a difference
        if (frame == 3) y[2 * 256 + 5] = 3.4e38f;  // not finite in bf16 only
        four.Frame(y, {1, 2, 3}, dtype);
        if (::testing::Test::HasFatalFailure()) return;
        x = Near(x, static_cast<uint64_t>(frame), 0.1f);
      }
    }
  }
}

TEST(GpuDelta, LostRepeatedAndHostileFramesChangeNothing) {
  Four four("delta(quant(4))", Pair::Options(2, 64));
  const std::vector<uint32_t> ids = {1};
  FrameContext context;
  context.sample_ids = ids;
  four.Frame(Gaussian(128, 1), ids, DType::kF32);
  four.Frame(Gaussian(128, 2), ids, DType::kF32);
  Tensor out(DType::kF32, four.cpu.Dims(1));
  Decoder& decoder = *four.device.decoder;
  const uint64_t hash = decoder.StateHash().value();
  const std::string good = four.last;
  EXPECT_EQ(decoder.Decode(good, 2, context, out.OnDevice()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decoder.Decode(good, 4, context, out.OnDevice()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decoder.Decode(good, 3, context, out.OnDevice()).code(), absl::StatusCode::kDataLoss);
  std::string next = good;
  next[1] = 3;  // the sample's next version
  std::string nan = next;
  nan[5] = '\xc0', nan[6] = '\x7f';
  std::string kind = next;
  kind[0] = 7;
  for (const std::string& bytes : {nan, kind, next + "x", next.substr(0, 30), std::string()}) {
    EXPECT_EQ(decoder.Decode(bytes, 3, context, out.OnDevice()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(decoder.StateHash().value(), hash);
  four.Frame(Gaussian(128, 3), ids, DType::kF32);
}

// Buffers in device memory, pinned memory and a file, brought ahead or not: nothing but the speed
// differs from the host's.
TEST(GpuTiers, ChangeTheSpeedAlone) {
  TempDirectory directory;
  for (const char* text : {"delta(quant(4))", "delta(quant(3), buffer=4)", "delta(topk(0.2))"}) {
    for (auto [on_device, in_memory, on_disk] : {std::tuple<int64_t, int64_t, int64_t>{4, 12, 0},
                                                 {1, 12, 0},
                                                 {3, 6, 6},
                                                 {1, 1, 11},
                                                 {12, 12, 0}}) {
      SCOPED_TRACE(std::string(text) + ": " + std::to_string(on_device) + " of " +
                   std::to_string(in_memory) + " + " + std::to_string(on_disk));
      CodecOptions options = Pair::Options(3, 64);
      const int64_t entry = BufferBytes(Spec(text), 1, 3, 64);
      options.buffer_memory_bytes = in_memory * entry;
      options.buffer_disk_bytes = on_disk * entry;
      options.device_buffer_bytes = on_device * 512;  // of which a buffer takes one or two 256
      if (on_disk > 0) options.spill_directory = directory.path();
      Four four(text, options);
      for (uint64_t frame = 0; frame < 60; ++frame) {
        const std::vector<uint32_t> ids = SomeIds(frame, 1 + frame % 3, 14);
        // What comes next, now and then something else.
        std::vector<uint32_t> next = SomeIds(frame + (frame % 5 == 0 ? 7 : 0), 1 + frame % 3, 14);
        for (uint32_t id : SomeIds(frame + 1, 1 + (frame + 1) % 3, 14)) next.push_back(id);
        if (frame % 7 != 0) four.Prefetch(next);
        SCOPED_TRACE("frame " + std::to_string(frame));
        four.Frame(Gaussian(ids.size() * 3 * 64, frame), ids, DType::kBf16);
        if (::testing::Test::HasFatalFailure()) return;
        if (frame % 20 == 19) four.Exchange(true);
        if (::testing::Test::HasFatalFailure()) return;
      }
      const CodecStats stats = four.device.encoder->stats();
      EXPECT_EQ(stats.evicted_samples, four.cpu.encoder->stats().evicted_samples);
      EXPECT_GT(stats.buffer_device_bytes, 0);
      EXPECT_LE(stats.buffer_device_bytes, std::max<int64_t>(2 * on_device, 3) * entry);
      if (on_device < in_memory) {
        EXPECT_GT(stats.buffer_memory_bytes, 0);
      }
      if (on_disk > 0) {
        EXPECT_GT(stats.buffer_disk_bytes, 0);
      }
    }
  }
}

// More than the device gives: what does not fit there lies in the host's memory.
TEST(GpuTiers, BeyondDeviceMemoryComesTheHost) {
  Pair device("delta(quant(4))", [] {
    CodecOptions options = OnDevice(Pair::Options(1024, 1600));
    options.buffer_memory_bytes = int64_t{1} << 50;
    options.device_buffer_bytes = 8 << 20;  // two of 3.3 MB
    return options;
  }());
  ASSERT_TRUE(device.encoder != nullptr);
  const TensorDims dims = device.Dims(2);
  Tensor in(DType::kBf16, dims);
  for (uint32_t frame = 0; frame < 8; ++frame) {
    in.Set(Gaussian(2 * 1024 * 1600, frame % 4));
    FrameContext context;
    const std::vector<uint32_t> ids = {frame % 4, 10 + frame % 4};
    context.sample_ids = ids;
    std::string payload;
    const absl::Status status =
        device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(device.encoder->stats().delta_samples, 8);
  EXPECT_EQ(device.encoder->stats().buffer_device_bytes, 2 * 2 * 1024 * 1600);
  EXPECT_EQ(device.encoder->stats().buffer_memory_bytes, 6 * 2 * 1024 * 1600);
}

// Nothing but the buffers of the frame in hand lies on a device that has no room to spare.
TEST(GpuTiers, WithoutRoomToSpareAFramesBuffersAloneLieOnTheDevice) {
  ASSERT_TRUE(cuda::FreeDeviceBytes().ok()) << cuda::FreeDeviceBytes().status();
  EXPECT_GT(*cuda::FreeDeviceBytes(), 64 << 20);
  for (const bool spare : {false, true}) {
    CodecOptions options = Pair::Options(64, 256);
    options.buffer_memory_bytes = 1 << 20;
    options.device_buffer_bytes = spare ? 1 << 20 : 1;  // worker/link/codec_options.h
    Pair device("delta(quant(4))", OnDevice(options));
    ASSERT_TRUE(device.encoder != nullptr);
    Tensor in(DType::kBf16, device.Dims(2));
    for (uint32_t frame = 0; frame < 6; ++frame) {
      in.Set(Gaussian(2 * 64 * 256, frame % 3));
      FrameContext context;
      const std::vector<uint32_t> ids = {frame % 3, 10 + frame % 3};
      context.sample_ids = ids;
      std::string payload;
      const absl::Status status =
          device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload);
      ASSERT_TRUE(status.ok()) << status;
    }
    const int64_t entry = 2 * 64 * 256;
    EXPECT_EQ(device.encoder->stats().delta_samples, 6);
    EXPECT_EQ(device.encoder->stats().buffer_device_bytes, (spare ? 6 : 2) * entry);
    EXPECT_EQ(device.encoder->stats().buffer_memory_bytes, (spare ? 0 : 4) * entry);
  }
}

// A frame that the device has no room for is an error that says what to do.
TEST(GpuTiers, AFrameTooLargeForTheDeviceNamesTheRemedy) {
  CodecOptions options = Pair::Options(1 << 20, 1 << 12);  // 8 GB a sample
  options.buffer_memory_bytes = int64_t{1} << 50;
  options.device_buffer_bytes = int64_t{1} << 50;
  auto queue = cuda::Queue::Make(nullptr);
  ASSERT_TRUE(queue.ok()) << queue.status();
  auto buffers =
      cuda::DeviceBuffers::Make(0, {options.positions << 10, options.hidden}, options);  // 8 TB
  ASSERT_TRUE(buffers.ok()) << buffers.status();
  auto store = cuda::MakeDeviceStore(*buffers, options, &*queue);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<uint32_t> ids = {1};
  std::vector<MessageStore::Slot> plan;
  (*store)->Plan(ids, &plan);
  ASSERT_TRUE((*store)->Begin(ids, plan).ok());
  const absl::Status status = (*store)->Buffer(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("smaller micro-batches"), absl::string_view::npos) << status;
}

// Quantised buffers: the host's bits.
TEST(GpuDelta, QuantisedBuffers) {
  uint64_t seed = 7000;
  for (const char* text :
       {"delta(quant(4), buffer=8)", "delta(quant(3), buffer=4)", "delta(quant(2), buffer=2)",
        "delta(quant(4, token), buffer=8, cold=quant(8))", "delta(topk(0.1), buffer=4)",
        "delta(quant(4, group=64), buffer=8, cold=predict(quant(4)))"}) {
    for (auto [positions, hidden] :
         {std::pair<int64_t, int64_t>{9, 64}, {5, 37}, {1, 1}, {200, 128}}) {
      CodecOptions options = Pair::Options(positions, hidden);
      options.buffer_memory_bytes = 5 * BufferBytes(Spec(text), 1, positions, hidden);
      Four four(text, options);
      const size_t n = static_cast<size_t>(positions * hidden);
      std::vector<float> x = Numbers(3 * n, ++seed, Values::kAwkward);
      for (uint32_t visit = 0; visit < 6; ++visit) {
        SCOPED_TRACE(std::string(text) + " " + std::to_string(positions) + "x" +
                     std::to_string(hidden) + " visit " + std::to_string(visit));
        std::vector<float> y = x;
        if (visit == 3) y[n] = std::numeric_limits<float>::quiet_NaN();
        four.tokens.assign(3 * static_cast<size_t>(positions), visit);
        four.Frame(y, {visit / 2, 7, 8 + visit % 2}, static_cast<DType>(seed % 3));
        if (::testing::Test::HasFatalFailure()) return;
        x = Near(x, ++seed, 0.1f);
        if (visit == 3) four.Exchange(true);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::compress
