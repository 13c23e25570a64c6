// DeviceGraph: work that is queued on a GPU, recorded once and queued again by one call (a CUDA
// graph), which costs the host next to nothing. What the work allocated while it was recorded is
// the graph's from then on: each replay writes the same memory. A build without CUDA links a stub.
// For worker/engine alone. Thread: one; its stream is not the default one (UseOwnStream).
#ifndef ISTHMUS_WORKER_ENGINE_DEVICE_GRAPH_H_
#define ISTHMUS_WORKER_ENGINE_DEVICE_GRAPH_H_

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace isthmus::engine {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  // Null: there are none for this device, in this build, or on the calling thread's stream.
  static std::unique_ptr<DeviceGraph> Make(c10::Device device);

  // Records what `work` queues on the calling thread's stream, and runs nothing of it. `before`: a
  // recorded one whose memory this one shares, as it is always replayed after it. Throws what
  // LibTorch throws.
  virtual void Record(const std::function<void()>& work, DeviceGraph* before) = 0;
  // Queues it on the calling thread's stream.
  virtual void Replay() = 0;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_DEVICE_GRAPH_H_
