// LibTorch keeps memory of a GPU that it has used once, for what it computes next. Others on the
// card can't have it. Thread: any.
#ifndef ISTHMUS_WORKER_ENGINE_DEVICE_MEMORY_H_
#define ISTHMUS_WORKER_ENGINE_DEVICE_MEMORY_H_

namespace isthmus::engine {

// Gives what no tensor holds back to the cards. Nothing without a GPU, or in a build without CUDA.
void ReleaseDeviceMemory();

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_DEVICE_MEMORY_H_
