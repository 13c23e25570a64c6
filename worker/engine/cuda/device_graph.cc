#include "worker/engine/device_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

namespace isthmus::engine {
namespace {

class CudaGraph : public DeviceGraph {
 public:
  void Record(const std::function<void()>& work, DeviceGraph* before) override {
    const at::cuda::MempoolId_t pool = before != nullptr
                                           ? static_cast<CudaGraph*>(before)->graph_.pool()
                                           : at::cuda::MempoolId_t{0, 0};
    // Of this thread: those of codecs and links go on beside it.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (...) {  // what went wrong is told by the first one
      }
      throw;
    }
    graph_.capture_end();
  }
  void Replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> DeviceGraph::Make(c10::Device device) {
  if (!device.is_cuda() || c10::cuda::getCurrentCUDAStream(device.index()) ==
                               c10::cuda::getDefaultCUDAStream(device.index()))
    return nullptr;
  return std::make_unique<CudaGraph>();
}

}  // namespace isthmus::engine
