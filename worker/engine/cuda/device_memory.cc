#include "worker/engine/device_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include "worker/engine/runtime.h"

namespace isthmus::engine {

void ReleaseDeviceMemory() {
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return;  // nothing was computed there
  Logged("giving unused memory of a GPU back",
         [] { c10::cuda::CUDACachingAllocator::emptyCache(); });
}

}  // namespace isthmus::engine
