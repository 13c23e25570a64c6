// Codecs on a device against the CPU's: payloads and decoded tensors, byte for byte.
#include "compress/cuda/device_body.h"
#include "compress/cuda/device_codec.h"
#include "compress/cuda/device_low_rank.h"
#include "compress/cuda/device_memory.h"
#include "compress/cuda/device_top_k.h"
#include "compress/cuda/kernels/kernels.h"
#include "compress/simd/quantize.h"
#include "tests/gpu/device_tensor.h"

namespace isthmus::compress {
namespace {

const DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

struct Case {
  std::string text;
  DType dtype = DType::kF32;
  TensorDims dims;
  Values values = Values::kNormal;
  size_t shift = 0;
};

// Encodes on both, compares, and decodes the payload on both.
void ExpectEqual(const Case& c, uint64_t seed) {
  SCOPED_TRACE(c.text + " dtype " + std::to_string(static_cast<int>(c.dtype)) + " " +
               std::to_string(c.dims.samples) + "x" + std::to_string(c.dims.positions) + "x" +
               std::to_string(c.dims.hidden) + " shift " + std::to_string(c.shift) + " seed " +
               std::to_string(seed));
  Four four(c.text, Pair::Options(c.dims.positions, c.dims.hidden));
  const std::vector<float> x = Numbers(static_cast<size_t>(c.dims.elements()), seed, c.values);
  for (int frame = 1; frame <= 2; ++frame) {  // stochastic rounding draws anew
    four.Frame(x, Ids(static_cast<size_t>(c.dims.samples)), c.dtype, c.shift);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(GpuCodec, QuantOfEveryWidthScaleAndRounding) {
  const TensorDims shapes[] = {{1, 1, 1}, {2, 3, 5}, {1, 17, 64}, {3, 5, 130}, {2, 130, 192}};
  uint64_t seed = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const char* scale :
         {"", ", token", ", group=32", ", group=64", ", group=100", ", group=256"}) {
      for (const char* more : {"", ", symmetric", ", rms", ", stochastic"}) {
        for (const TensorDims& dims : shapes) {
          const DType dtype = kDTypes[seed % 3];
          const Values values = static_cast<Values>(seed / 3 % 3);
          ++seed;
          ExpectEqual({"quant(" + std::to_string(bits) + scale + more + ")", dtype, dims, values},
                      seed);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Shapes and addresses on both sides of what the one-pass kernels take.
TEST(GpuCodec, QuantOnBothSidesOfTheFastPaths) {
  const TensorDims shapes[] = {{1, 1024, 1600}, {3, 1000, 128}, {1, 1025, 64}, {1, 2500, 64},
                               {1, 4096, 64},   {1, 4097, 64},  {33, 2, 64},   {1, 3, 2048},
                               {1, 3, 2112},    {1, 2, 32768},  {1, 2, 32832}, {2, 129, 576}};
  uint64_t seed = 1000;
  for (const TensorDims& dims : shapes) {
    for (const char* text :
         {"quant(3)", "quant(4, symmetric)", "quant(5, token)", "quant(8, token, symmetric)",
          "quant(4, group=64)", "quant(6, group=256)", "sign"}) {
      for (DType dtype : kDTypes) {
        for (Values values : {Values::kNormal, Values::kNotFinite}) {
          ++seed;
          ExpectEqual({text, dtype, dims, values}, seed);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
      ExpectEqual({text, DType::kBf16, dims, Values::kAwkward, 2}, ++seed);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// A channel for each scale there is: the kernels find quotients of scales without dividing.
TEST(GpuCodec, EveryScale) {
  const int64_t hidden = (kScaleMax - kScaleMin) / 64 * 64 + 64;
  std::vector<float> x;
  for (int64_t i = 0; i < hidden; ++i)
    x.push_back(Bf16ToFloat(static_cast<uint16_t>(kScaleMin + i)));
  for (int bits = 1; bits <= 8; ++bits) {
    for (const char* more : {"", ", symmetric"}) {
      SCOPED_TRACE(std::to_string(bits) + more);
      Four four("delta(quant(" + std::to_string(bits) + more + "))", Pair::Options(1, hidden));
      four.Frame(std::vector<float>(x.size()), {0}, DType::kF32);
      four.Frame(x, {0}, DType::kF32);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GpuCodec, TheShapesOfGpt2XlEncodeInOnePass) {
  using cuda::QuantFormat;
  const cuda::Matrix matrix{1024, 1600};
  for (DType dtype : kDTypes) {
    for (cuda::ScaleBy by :
         {cuda::ScaleBy::kChannel, cuda::ScaleBy::kToken, cuda::ScaleBy::kGroup}) {
      QuantFormat format;
      format.scale_by = by;
      format.group = 64;
      EXPECT_TRUE(cuda::EncodesInOnePass(format, matrix, dtype));
      EXPECT_FALSE(cuda::EncodesInOnePass(format, {1024, 1601}, dtype));
    }
    EXPECT_TRUE(cuda::EncodesInOnePass(QuantFormat(), {4096, 64}, dtype));
    EXPECT_FALSE(cuda::EncodesInOnePass(QuantFormat(), {4097, 64}, dtype));
  }
}

TEST(GpuCodec, PlainAndSignAndZstd) {
  uint64_t seed = 5000;
  for (const char* text :
       {"none", "bf16", "fp16", "sign", "sign(token)", "quant(4) | zstd", "none | zstd"}) {
    for (DType dtype : kDTypes) {
      for (Values values : {Values::kNormal, Values::kAwkward, Values::kNotFinite}) {
        ExpectEqual({text, dtype, {2, 7, 37}, values}, ++seed);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(GpuCodec, TopKOfEachToken) {
  uint64_t seed = 6000;
  for (const char* text : {"topk(0.05)", "topk(0.3)", "topk(0.9)", "topk(1)", "topk(0.001)",
                           "topk(0.1, values=quant(4, group=32))", "topk(0.1, values=fp16)",
                           "topk(0.02, values=none)"}) {
    for (const TensorDims& dims :
         {TensorDims{1, 1, 1}, TensorDims{2, 7, 37}, TensorDims{2, 33, 600},
          TensorDims{1, 3, 20000}, TensorDims{1, 0, 5}}) {
      for (DType dtype : kDTypes) {
        for (Values values : {Values::kNormal, Values::kAwkward, Values::kNotFinite}) {
          ExpectEqual({text, dtype, dims, values}, ++seed);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
  ExpectEqual({"topk(0.05)", DType::kBf16, {2, 1024, 1600}}, ++seed);
}

// randomk, topk of the sample, and cocktail, which is one in the other.
TEST(GpuCodec, RandomAndLargestOfTheSample) {
  uint64_t seed = 7000;
  for (const char* text :
       {"randomk(0.1)", "randomk(0.1, scaled)", "randomk(1, scaled)", "randomk(0.001)",
        "randomk(0.3, scaled, values=quant(4, group=32))", "topk(0.05, global)",
        "topk(0.3, global)", "topk(1, global)", "topk(0.001, global)",
        "topk(0.1, global, values=quant(3, group=64))", "topk(0.02, global, values=none)",
        "cocktail(0.1, 0.2, 4)", "cocktail(1, 1, 8)", "cocktail(0.5, 0.02, 1)"}) {
    for (const TensorDims& dims :
         {TensorDims{1, 1, 1}, TensorDims{2, 7, 37}, TensorDims{2, 33, 600},
          TensorDims{1, 3, 60000}, TensorDims{1, 0, 5}, TensorDims{0, 2, 3}}) {
      for (DType dtype : kDTypes) {
        for (Values values : {Values::kNormal, Values::kAwkward, Values::kNotFinite}) {
          ExpectEqual({text, dtype, dims, values}, ++seed);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
    ExpectEqual({text, DType::kBf16, {2, 1024, 1600}}, ++seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Many equal magnitudes: the first of them are kept, over the borders of blocks.
TEST(GpuCodec, LargestOfTheSampleWithTies) {
  for (double ratio : {0.001, 0.25, 0.6}) {
    Four four("topk(" + std::to_string(ratio) + ", global)", Pair::Options(13, 2000));
    std::vector<float> x(13 * 2000);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = (i % 3 == 0 ? -1.0f : 1.0f) * static_cast<float>(RandomBelow(4, 1, i, 3));
    four.Frame(x, {0}, DType::kF32);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

double Distance(const std::vector<float>& x, const std::string& bytes) {
  std::vector<float> y(x.size());
  std::memcpy(y.data(), bytes.data(), bytes.size());
  return RelativeError(x, y);
}

// The factors differ from the CPU's in their last bits, so what counts is what is lost: as much as
// on the CPU, to a thousandth of the input, and either end decodes the other's payload.
TEST(GpuCodec, LowRankLosesWhatTheCpuLoses) {
  for (const char* text :
       {"lowrank(1)", "lowrank(4)", "lowrank(16, values=bf16)", "lowrank(128)"}) {
    for (const TensorDims& dims :
         {TensorDims{1, 5, 3}, TensorDims{2, 64, 40}, TensorDims{1, 200, 320}}) {
      SCOPED_TRACE(std::string(text) + " " + std::to_string(dims.hidden));
      Pair cpu(text, dims.positions, dims.hidden);
      Pair device(text, OnDevice(Pair::Options(dims.positions, dims.hidden)));
      ASSERT_TRUE(device.encoder != nullptr && device.decoder != nullptr);
      Tensor in(DType::kF32, dims), out(DType::kF32, dims);
      const std::vector<float> x = Gaussian(static_cast<size_t>(dims.elements()), 5);
      in.Set(x);
      const std::vector<uint32_t> ids = Ids(static_cast<size_t>(dims.samples));
      FrameContext context;
      context.sample_ids = ids;
      std::string expected, payload;
      for (uint64_t frame = 1; frame <= 6; ++frame) {  // the warm start settles
        ASSERT_TRUE(cpu.encoder->Encode(std::as_const(in).OnHost(), context, &expected).ok());
        const absl::Status encoded =
            device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload);
        ASSERT_TRUE(encoded.ok()) << encoded;
        ASSERT_EQ(payload.size(), expected.size());
        ASSERT_TRUE(cpu.decoder->Decode(expected, frame, context, out.OnHost()).ok());
      }
      const double lost = Distance(x, out.host());
      ASSERT_TRUE(device.decoder->Decode(payload, 7, context, out.OnDevice()).ok());
      EXPECT_NEAR(Distance(x, out.Download()), lost, 1e-3);
      ASSERT_TRUE(cpu.decoder->Decode(payload, 7, context, out.OnHost()).ok());
      EXPECT_NEAR(Distance(x, out.host()), lost, 1e-3);
    }
  }
}

TEST(GpuCodec, LowRankOfZerosAndOfWhatIsNotFinite) {
  const TensorDims dims{1, 8, 16};
  Pair device("lowrank(4)", OnDevice(Pair::Options(8, 16)));
  Tensor in(DType::kBf16, dims), out(DType::kF32, dims);
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  std::vector<float> bad = Gaussian(128, 1);
  bad[7] = std::numeric_limits<float>::infinity();
  const std::vector<float> inputs[] = {std::vector<float>(128, 0.0f), bad, Gaussian(128, 2)};
  for (size_t i = 0; i < 3; ++i) {
    in.Set(inputs[i]);
    std::string payload;
    ASSERT_TRUE(device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload).ok());
    ASSERT_TRUE(device.decoder->Decode(payload, i + 1, context, out.OnDevice()).ok());
    std::vector<float> y(128);
    std::memcpy(y.data(), out.Download().data(), 512);
    for (float v : y) {
      ASSERT_EQ(std::isnan(v), i == 1);
      if (i == 0) {
        ASSERT_EQ(v, 0.0f);
      }
    }
    if (i == 2) {
      EXPECT_LT(RelativeError(inputs[2], y), 0.95);  // and the warm start lives again
    }
  }
}

TEST(GpuCodec, EmptyTensors) {
  for (const char* text : {"none", "quant(4)", "quant(3, token)", "quant(3, group=32)"}) {
    for (const TensorDims& dims : {TensorDims{0, 4, 8}, TensorDims{2, 0, 8}, TensorDims{2, 4, 0}}) {
      ExpectEqual({text, DType::kBf16, dims}, 1);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GpuCodec, PinnedMemoryHoldsThePayloadAndFeedsTheDecoder) {
  const TensorDims dims{2, 33, 64};
  const CodecOptions options = OnDevice(Pair::Options(33, 64));
  auto encoder = cuda::MakeDeviceEncoder(Spec("quant(4)"), options);
  auto decoder = cuda::MakeDeviceDecoder(Spec("quant(4)"), options);
  ASSERT_TRUE(encoder.ok() && decoder.ok());
  Tensor in(DType::kBf16, dims), out(DType::kBf16, dims);
  in.Set(Gaussian(static_cast<size_t>(dims.elements()), 3));
  const std::vector<uint32_t> ids = Ids(2);
  FrameContext context;
  context.sample_ids = ids;
  Pair cpu("quant(4)", 33, 64);
  std::string expected;
  ASSERT_TRUE(cpu.encoder->Encode(std::as_const(in).OnHost(), context, &expected).ok());
  const absl::StatusOr<absl::string_view> payload =
      (*encoder)->EncodePinned(std::as_const(in).OnDevice(), context);
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(Difference(expected, std::string(*payload)), "");
  const absl::StatusOr<char*> pinned =
      (*decoder)->PinnedPayload(static_cast<int64_t>(expected.size()));
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  expected.copy(*pinned, expected.size());
  ASSERT_TRUE((*decoder)->Decode({*pinned, expected.size()}, 1, context, out.OnDevice()).ok());
  ASSERT_TRUE(cpu.decoder->Decode(expected, 1, context, out.OnHost()).ok());
  EXPECT_EQ(Difference(out.host(), out.Download()), "");
}

TEST(GpuCodec, HostileBytesAreRefusedAsOnTheHost) {
  const TensorDims dims{1, 4, 64};
  Pair cpu("quant(4)", 4, 64);
  Pair device("quant(4)", OnDevice(Pair::Options(4, 64)));
  const std::string good = cpu.Encode(Gaussian(256, 1), {0});
  Tensor out(DType::kF32, dims);
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  std::string bad_scale = good;
  bad_scale[3] = '\xff';
  for (const std::string& bytes :
       {std::string(), good.substr(1), good + "x", bad_scale, good.substr(0, 100)}) {
    EXPECT_EQ(device.decoder->Decode(bytes, 1, context, out.OnDevice()).code(),
              absl::StatusCode::kInvalidArgument)
        << bytes.size();
  }
  EXPECT_TRUE(device.decoder->Decode(good, 1, context, out.OnDevice()).ok());
  EXPECT_EQ(device.decoder->Decode(good, 2, context, out.OnHost()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GpuCodec, WhatHasNoKernelSaysSo) {
  const absl::Status status =
      MakeEncoder(Spec("topk(0.1)"), OnDevice(Pair::Options(4, cuda::kMaxTopKHidden + 1))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("no CUDA kernel for samples of 4 x 49153"),
            absl::string_view::npos)
      << status;
}

TEST(GpuMemory, ErrorsNameWhatWasTried) {
  cuda::DeviceMemory memory;
  const absl::Status status = memory.Reserve(int64_t{1} << 50);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("1125899906842624 bytes"), absl::string_view::npos) << status;
  EXPECT_TRUE(memory.Reserve(1024).ok());  // and the device still works
  EXPECT_EQ(cuda::KernelStatus("text", "quant").message(), "quant: text");
}

}  // namespace
}  // namespace isthmus::compress
