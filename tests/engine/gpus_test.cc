#include "worker/engine/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<Gpu> kTwo = {{"NVIDIA H200", int64_t{140} << 30, "GPU-1"},
                               {"NVIDIA L4", int64_t{22} << 30, "GPU-2"}};
const Build kWhole = {"2.11.0", true, true}, kOnCpu = {"1.13.1", false, false};

TEST(Gpus, TheDeviceNamesOne) {
  EXPECT_EQ(GpuOf("cuda", kTwo).model, "NVIDIA H200");
  EXPECT_EQ(GpuOf("cuda:1", kTwo).model, "NVIDIA L4");
  EXPECT_EQ(GpuOf("cuda:2", kTwo).model, "");
  EXPECT_EQ(GpuOf("cpu", kTwo).model, "");
}

TEST(Gpus, WordsSayDeviceLibraryAndPrecision) {
  EXPECT_EQ(ComputeWords({"cuda:1", 4}, kTwo, kWhole),
            "computes on cuda:1 (NVIDIA L4, 22.0 GiB) with LibTorch 2.11.0 and kernels of its own, "
            "products in the precision of the job");
  EXPECT_EQ(ComputeWords({"cpu", 4}, {}, kOnCpu),
            "computes on cpu with LibTorch 1.13.1, 4 threads, in fp32");
}

TEST(Gpus, ACardThatIsNotUsedIsNamed) {
  EXPECT_THAT(GpuWarning({"cpu", 4}, {}, kOnCpu), IsEmpty());
  EXPECT_THAT(GpuWarning({"cuda:0", 4}, kTwo, kWhole), IsEmpty());
  EXPECT_THAT(GpuWarning({"cpu", 4}, kTwo, kOnCpu), HasSubstr("deploy/setup.sh --cuda"));
  EXPECT_THAT(GpuWarning({"cpu", 4}, kTwo, kWhole), HasSubstr("--device cuda:0"));
  EXPECT_THAT(GpuWarning({"cuda:0", 4}, kTwo, {"2.11.0", true, false}), HasSubstr("nvcc"));
}

TEST(Gpus, AUuidIsWrittenAsNvidiaSmiDoes) {
  unsigned char bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<unsigned char>(15 * i);
  EXPECT_EQ(UuidText(bytes), "GPU-000f1e2d-3c4b-5a69-7887-96a5b4c3d2e1");
}

TEST(Gpus, WhatThisHostHas) {
  std::set<std::string> uuids;
  for (const Gpu& gpu : GpusOfHost()) {
    EXPECT_EQ(gpu.uuid.size(), 40u) << gpu.uuid;
    EXPECT_TRUE(uuids.insert(gpu.uuid).second) << gpu.uuid;
    EXPECT_FALSE(gpu.model.empty());
    EXPECT_GT(gpu.memory_bytes, 0);
  }
  EXPECT_FALSE(BuildOfEngine().torch.empty());
}

}  // namespace
}  // namespace isthmus::engine
