#include "compress/cuda/device_codec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

using ::testing::HasSubstr;

// What a build without CUDA says, and says early: when the codec is made. With CUDA, tests/gpu has
// the tests.
TEST(DeviceCodec, WithoutCudaTheStubSaysSo) {
  if (cuda::BuiltWithCuda()) GTEST_SKIP() << "this build has the kernels";
  CodecOptions options = Pair::Options(4, 8);
  options.device = Device::kCuda;
  for (const char* text : {"quant(4)", "delta(quant(3)) | zstd", "none", "kept(bf16)"}) {
    const absl::Status encoder = MakeEncoder(Spec(text), options).status();
    EXPECT_EQ(encoder.code(), absl::StatusCode::kUnimplemented) << text;
    EXPECT_THAT(std::string(encoder.message()), HasSubstr("built without CUDA"));
    EXPECT_THAT(std::string(encoder.message()), HasSubstr("-DISTHMUS_CUDA=ON"));
    EXPECT_EQ(MakeDecoder(Spec(text), options).status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(cuda::MakeDeviceEncoder(Spec(text), options).status().code(),
              absl::StatusCode::kUnimplemented);
  }
}

TEST(DeviceCodec, HostCodecsRefuseDeviceTensors) {
  Pair pair("quant(4)", 4, 8);
  std::vector<float> x(32);
  TensorView view = View(x, {1, 4, 8});
  view.device = Device::kCuda;
  std::string payload;
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  const absl::Status status = pair.encoder->Encode(view, context, &payload);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CodecOptions::device"));
}

}  // namespace
}  // namespace isthmus::compress
