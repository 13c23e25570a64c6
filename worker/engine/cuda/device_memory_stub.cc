// Linked where there is no nvcc.
#include "worker/engine/device_memory.h"

namespace isthmus::engine {

void ReleaseDeviceMemory() {}

}  // namespace isthmus::engine
