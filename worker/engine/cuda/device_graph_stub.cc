// Linked where there is no nvcc.
#include "worker/engine/device_graph.h"

namespace isthmus::engine {

std::unique_ptr<DeviceGraph> DeviceGraph::Make(c10::Device) { return nullptr; }

}  // namespace isthmus::engine
