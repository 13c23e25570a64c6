#include "worker/engine/gpus.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "worker/engine/cuda/kernels.h"

namespace isthmus::engine {
namespace {

constexpr int kMostGpus = 64;
constexpr int kUuidBytes = 16;

std::string Words(const Gpu& gpu) {
  return absl::StrFormat("%s, %.1f GiB", gpu.model,
                         static_cast<double>(gpu.memory_bytes) / (int64_t{1} << 30));
}

}  // namespace

std::vector<Gpu> GpusOfHost() {
  std::vector<Gpu> gpus;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // kept: it is not made to go
  if (driver == nullptr) return gpus;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto memory = reinterpret_cast<int (*)(size_t*, int)>(dlsym(driver, "cuDeviceTotalMem_v2"));
  // Of a part of a card (MIG), that part's.
  const auto uuid =
      reinterpret_cast<int (*)(unsigned char*, int)>(dlsym(driver, "cuDeviceGetUuid_v2"));
  if (init == nullptr || count == nullptr || get == nullptr || name == nullptr || memory == nullptr)
    return gpus;
  int n = 0;
  if (init(0) != 0 || count(&n) != 0) return gpus;
  for (int i = 0; i < n && i < kMostGpus; ++i) {
    int device = 0;
    char model[128] = {};
    size_t bytes = 0;
    if (get(&device, i) != 0 || name(model, sizeof(model) - 1, device) != 0 ||
        memory(&bytes, device) != 0)
      return gpus;
    unsigned char id[kUuidBytes] = {};
    const bool known = uuid != nullptr && uuid(id, device) == 0;
    gpus.push_back({model, static_cast<int64_t>(bytes), known ? UuidText(id) : ""});
  }
  return gpus;
}

std::string UuidText(const unsigned char* bytes) {
  std::string text = "GPU";
  for (int i = 0; i < kUuidBytes; ++i) {
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppendFormat(&text, "%s%02x", dash ? "-" : "", bytes[i]);
  }
  return text;
}

Build BuildOfEngine() { return {TORCH_VERSION, at::Context::hasCUDART(), HaveKernels()}; }

Gpu GpuOf(const std::string& device, const std::vector<Gpu>& gpus) {
  absl::string_view rest = device;
  size_t index = 0;
  if (!absl::ConsumePrefix(&rest, "cuda")) return Gpu();
  if (absl::ConsumePrefix(&rest, ":") && !absl::SimpleAtoi(rest, &index)) return Gpu();
  return index < gpus.size() ? gpus[index] : Gpu();
}

std::string ComputeWords(const EngineOptions& options, const std::vector<Gpu>& gpus,
                         const Build& build) {
  const Gpu gpu = GpuOf(options.device, gpus);
  if (gpu.model.empty()) {
    return absl::StrCat("computes on ", options.device, " with LibTorch ", build.torch, ", ",
                        options.threads, " threads, in fp32");
  }
  return absl::StrCat("computes on ", options.device, " (", Words(gpu), ") with LibTorch ",
                      build.torch, build.kernels ? " and kernels of its own" : "",
                      ", products in the precision of the job");
}

std::string GpuWarning(const EngineOptions& options, const std::vector<Gpu>& gpus,
                       const Build& build) {
  if (gpus.empty()) return "";
  if (!GpuOf(options.device, gpus).model.empty()) {
    if (build.kernels) return "";
    return absl::StrCat(
        "this isthmusd was built without nvcc: codecs work on the host, and what lies "
        "at boundaries crosses the bus in fp32; deploy/build.sh --cuda builds with it");
  }
  const std::string card =
      absl::StrCat("this host has ", gpus.size(), gpus.size() == 1 ? " GPU (" : " GPUs (",
                   Words(gpus[0]), ") and computes on its CPU: ");
  return absl::StrCat(card, build.cuda
                                ? "start with --device cuda:0 to use it"
                                : "this LibTorch has no CUDA; deploy/setup.sh --cuda brings one");
}

}  // namespace isthmus::engine
