// Tensors in the memory of a GPU at the edge of a stage, and lanes on which codecs work there.
#ifndef ISTHMUS_WORKER_ENGINE_DEVICE_LANE_H_
#define ISTHMUS_WORKER_ENGINE_DEVICE_LANE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device_lane.h"
#include "worker/engine/engine_options.h"

namespace isthmus::engine {

// Null on a CPU, and where LibTorch does not give its streams away: codecs then work on the host.
absl::StatusOr<std::unique_ptr<worker::DeviceLane>> MakeDeviceLane(const EngineOptions& options);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_DEVICE_LANE_H_
