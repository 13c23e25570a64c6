// kept on a device: gradients at the indices that topk or randomk sent, from codecs on the device
// too, byte for byte as on the CPU; and the indices that those codecs answer.
#include "compress/cuda/device_kept.h"
#include "compress/cuda/kernels/at_indices.h"
#include "tests/gpu/device_tensor.h"

namespace isthmus::compress {
namespace {

// Both directions of a boundary, each with ends on the host and on the device.
struct Boundary {
  Boundary(const std::string& up, const std::string& down, int64_t positions, int64_t hidden)
      : forward(up, Pair::Options(positions, hidden)),
        backward(down, Pair::Options(positions, hidden)) {
    for (Pair* pair : {&backward.cpu, &backward.device}) {  // bound to this forward codec
      pair->spec = Bound(Spec(down), up.c_str());
      pair->encoder = MakeEncoder(pair->spec, pair->options).value();
      pair->decoder = MakeDecoder(pair->spec, pair->options).value();
    }
  }

  // An activation upwards. The four ends have the same indices: Four::Frame compares them.
  void Up(size_t samples, uint64_t seed, DType dtype) {
    forward.Frame(Gaussian(samples * elements(), seed), Ids(samples), dtype);
    const absl::Span<const uint32_t> sent = forward.device.encoder->indices();
    ASSERT_EQ(sent.empty(), samples * elements() == 0);
    indices.assign(sent.begin(), sent.end());
    backward.context.indices = indices;
  }
  size_t elements() const {
    return static_cast<size_t>(forward.cpu.options.positions * forward.cpu.options.hidden);
  }

  Four forward, backward;
  std::vector<uint32_t> indices;
};

const char* const kForward[] = {"topk(0.1)",         "topk(0.3, values=quant(4, group=32)) | zstd",
                                "topk(0.001)",       "topk(1)",
                                "topk(0.1, global)", "topk(0.6, global, values=none)",
                                "randomk(0.1)",      "randomk(0.13, scaled, values=none)",
                                "randomk(1, scaled)"};

TEST(GpuKept, EqualsTheHostForEveryForwardCodecAndValues) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};
  uint64_t seed = 20000;
  for (const char* up : kForward) {
    for (const char* down :
         {"kept", "kept(bf16)", "kept(fp16)", "kept(quant(8))", "kept(quant(4, group=32))",
          "kept(quant(3, stochastic))", "kept(quant(5, symmetric)) | zstd"}) {
      for (const TensorDims& dims : {TensorDims{1, 1, 1}, TensorDims{2, 7, 37},
                                     TensorDims{2, 33, 640}, TensorDims{1, 0, 5}}) {
        Boundary b(up, down, dims.positions, dims.hidden);
        for (uint64_t frame = 0; frame < 3; ++frame) {
          SCOPED_TRACE(std::string(up) + " / " + down + " " + std::to_string(dims.positions) + "x" +
                       std::to_string(dims.hidden) + " frame " + std::to_string(frame));
          // More samples, then fewer, than before.
          const size_t samples = static_cast<size_t>(dims.samples) + (frame == 1 ? 9 : 0);
          const DType dtype = kDTypes[++seed % 3];
          b.Up(samples, seed, dtype);
          if (::testing::Test::HasFatalFailure()) return;
          b.backward.Frame(Numbers(samples * b.elements(), seed, static_cast<Values>(seed / 3 % 3)),
                           Ids(samples), dtype, frame == 2 && dtype != DType::kF32 ? 2 : 0);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GpuKept, BoundaryOfGpt2Xl) {
  for (const char* up : {"topk(0.05)", "topk(0.05, global)", "randomk(0.1, scaled)"}) {
    SCOPED_TRACE(up);
    Boundary b(up, "kept(quant(8))", 1024, 1600);
    b.Up(2, 3, DType::kBf16);
    if (::testing::Test::HasFatalFailure()) return;
    b.backward.Frame(Gaussian(2 * b.elements(), 4), Ids(2), DType::kBf16);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(GpuKept, AnEmptyFrameIsOne) {
  Boundary b("topk(0.5)", "kept", 2, 8);
  b.Up(0, 1, DType::kF32);
  if (::testing::Test::HasFatalFailure()) return;
  b.backward.Frame({}, {}, DType::kF32);
}

// Frames one after the other are queued and not waited for: each has its own indices.
TEST(GpuKept, ManyFramesUnderWayKeepTheirIndices) {
  Boundary b("topk(0.2)", "kept", 64, 256);
  struct Frame {
    std::string payload;
    std::vector<uint32_t> indices;
    std::string expected;
  };
  std::vector<Frame> frames(12);
  std::vector<std::unique_ptr<Tensor>> outs;
  const std::vector<uint32_t> ids = Ids(2);
  FrameContext context;
  context.sample_ids = ids;
  Tensor in(DType::kF32, b.forward.cpu.Dims(2)), y(DType::kF32, b.forward.cpu.Dims(2));
  for (size_t i = 0; i < frames.size(); ++i) {
    b.Up(2, 100 + i, DType::kF32);
    if (::testing::Test::HasFatalFailure()) return;
    frames[i].indices = b.indices;
    context.indices = frames[i].indices;
    in.Set(Gaussian(2 * b.elements(), 200 + i));
    ASSERT_TRUE(
        b.backward.device.encoder->Encode(std::as_const(in).OnDevice(), context, &frames[i].payload)
            .ok());
    ASSERT_TRUE(b.backward.cpu.decoder->Decode(frames[i].payload, i + 1, context, y.OnHost()).ok());
    frames[i].expected = y.host();
    outs.push_back(std::make_unique<Tensor>(DType::kF32, b.forward.cpu.Dims(2)));
  }
  for (size_t i = 0; i < frames.size(); ++i) {
    context.indices = frames[i].indices;
    ASSERT_TRUE(
        b.backward.device.decoder->Decode(frames[i].payload, i + 1, context, outs[i]->OnDevice())
            .ok());
  }
  for (size_t i = 0; i < frames.size(); ++i)
    EXPECT_EQ(Difference(frames[i].expected, outs[i]->Download()), "") << i;
}

TEST(GpuKept, WrongIndicesAndBytesAreRefusedAsOnTheHost) {
  Boundary b("topk(0.1)", "kept", 6, 50);
  b.Up(2, 1, DType::kF32);
  if (::testing::Test::HasFatalFailure()) return;
  const std::vector<float> g = Gaussian(600, 2);
  b.backward.Frame(g, Ids(2), DType::kF32);
  if (::testing::Test::HasFatalFailure()) return;
  const std::string good = b.backward.last;
  Tensor in(DType::kF32, b.forward.cpu.Dims(2)), out(DType::kF32, b.forward.cpu.Dims(2));
  in.Set(g);
  FrameContext context = b.backward.context;
  const std::vector<uint32_t> ids = Ids(2);
  context.sample_ids = ids;
  std::string payload;
  std::vector<std::vector<uint32_t>> bad(5, b.indices);
  bad[0].clear();
  bad[1].pop_back();
  bad[2][59] = 300;
  bad[3][31] = bad[3][30];
  std::swap(bad[4][3], bad[4][4]);
  for (const std::vector<uint32_t>& indices : bad) {
    context.indices = indices;
    const absl::Status expected =
        b.backward.cpu.encoder->Encode(std::as_const(in).OnHost(), context, &payload);
    EXPECT_EQ(expected.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(b.backward.device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload),
              expected);
    EXPECT_EQ(b.backward.device.decoder->Decode(good, 2, context, out.OnDevice()), expected);
  }
  context.indices = b.indices;
  for (const std::string& bytes : {std::string(), good.substr(1), good + "x"}) {
    const absl::Status expected = b.backward.cpu.decoder->Decode(bytes, 2, context, out.OnHost());
    EXPECT_EQ(expected.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(b.backward.device.decoder->Decode(bytes, 2, context, out.OnDevice()), expected);
  }
  b.backward.Frame(g, Ids(2), DType::kF32);  // and all four go on
}

TEST(GpuKept, ACodecThatIsNotBoundIsRefusedAsOnTheHost) {
  const CodecOptions options = Pair::Options(2, 8);
  const CodecOptions huge = Pair::Options(int64_t{1} << 17, int64_t{1} << 16);
  for (const auto& [spec, o] :
       {std::pair{Spec("kept"), options}, {Bound(Spec("kept(quant(4))")), huge}}) {
    const absl::Status expected = MakeEncoder(spec, o).status();
    EXPECT_EQ(expected.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(MakeEncoder(spec, OnDevice(o)).status(), expected);
    EXPECT_EQ(MakeDecoder(spec, OnDevice(o)).status(), expected);
  }
}

// Saved on a device and taken up on a host, and the other way round.
TEST(GpuKept, StateMovesBetweenDeviceAndHost) {
  Boundary b("randomk(0.2)", "kept(quant(3, stochastic))", 9, 64);
  for (uint64_t frame = 0; frame < 4; ++frame) {
    SCOPED_TRACE(frame);
    b.Up(2, frame, DType::kF32);
    if (::testing::Test::HasFatalFailure()) return;
    b.backward.Frame(Gaussian(2 * b.elements(), 50 + frame), Ids(2), DType::kF32);
    if (::testing::Test::HasFatalFailure()) return;
    if (frame % 2 == 1) continue;
    b.forward.Exchange(true);
    b.backward.Exchange(true);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Nothing is answered for a frame that is no longer there.
TEST(GpuKept, IndicesAreThoseOfTheLastFrame) {
  const CodecOptions options = OnDevice(Pair::Options(6, 50));
  auto encoder = cuda::MakeDeviceEncoder(Spec("topk(0.1)"), options);
  auto decoder = cuda::MakeDeviceDecoder(Spec("topk(0.1)"), options);
  ASSERT_TRUE(encoder.ok() && decoder.ok());
  Tensor in(DType::kF32, {1, 6, 50}), out(DType::kF32, {1, 6, 50});
  in.Set(Gaussian(300, 1));
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  EXPECT_TRUE((*encoder)->indices().empty());
  std::string payload;
  ASSERT_TRUE((*encoder)->Encode(std::as_const(in).OnDevice(), context, &payload).ok());
  EXPECT_EQ((*encoder)->indices().size(), 30u);
  ASSERT_TRUE((*decoder)->Decode(payload, 1, context, out.OnDevice()).ok());
  EXPECT_EQ((*decoder)->indices(), (*encoder)->indices());
  EXPECT_FALSE((*decoder)->Decode("x", 2, context, out.OnDevice()).ok());
  EXPECT_TRUE((*decoder)->indices().empty());
  ASSERT_TRUE((*decoder)->Decode(payload, 2, context, out.OnDevice()).ok());
  ASSERT_TRUE((*decoder)->PinnedPayload(100).ok());
  EXPECT_TRUE((*decoder)->indices().empty());
}

}  // namespace
}  // namespace isthmus::compress
