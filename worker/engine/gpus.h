// What there is to compute on: the GPUs of this host, as the driver names them, and in words what a
// daemon uses of them. Thread: any.
#ifndef ISTHMUS_WORKER_ENGINE_GPUS_H_
#define ISTHMUS_WORKER_ENGINE_GPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/engine_options.h"

namespace isthmus::engine {

struct Gpu {
  std::string model;  // "NVIDIA H200"
  int64_t memory_bytes = 0;
  std::string uuid;  // "GPU-2f1c...", the same in every process; empty: the driver does not say
};

// By the driver's library, if there is one; LibTorch need not know them. In the order of cuda:N.
std::vector<Gpu> GpusOfHost();

struct Build {
  std::string torch;     // version of LibTorch
  bool cuda = false;     // it has CUDA
  bool kernels = false;  // so has Isthmus itself
};
Build BuildOfEngine();

// "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" of 16 bytes, as nvidia-smi -L writes it.
std::string UuidText(const unsigned char* bytes);

// The one of `device`, of `gpus`; model empty: a CPU, or none of them.
Gpu GpuOf(const std::string& device, const std::vector<Gpu>& gpus);

// "computes on cuda:0 (NVIDIA H200, 139.8 GiB) with LibTorch 2.11.0 and kernels of its own,
// products in the precision of the job".
std::string ComputeWords(const EngineOptions& options, const std::vector<Gpu>& gpus,
                         const Build& build);

// What a user would want to know of a card that is not used, or not well; empty: nothing.
std::string GpuWarning(const EngineOptions& options, const std::vector<Gpu>& gpus,
                       const Build& build);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_GPUS_H_
