// Sums of gradients: many tensors in one launch. 6 bytes read and 4 written an element.
#include <cuda_bf16.h>

#include <algorithm>

#include "worker/engine/cuda/kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace isthmus::engine {
namespace {

constexpr int kThreads = 256;
constexpr int kPieces = 128;  // of a launch: they are its parameters, of which there may be 4 KB
constexpr int kBlocks = 64;   // of a piece, at most

struct Pieces {
  Bf16Sum at[kPieces];
};

struct alignas(16) Eight {
  __nv_bfloat16 at[8];
};

__global__ void AddAll(const __grid_constant__ Pieces pieces) {
  const Bf16Sum piece = pieces.at[blockIdx.y];
  const __nv_bfloat16* const from = static_cast<const __nv_bfloat16*>(piece.from);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < piece.elements / 8; i += stride) {
    const Eight add = reinterpret_cast<const Eight*>(from)[i];
    float4* const to = reinterpret_cast<float4*>(piece.to) + 2 * i;
    float4 low = to[0], high = to[1];
    low.x += __bfloat162float(add.at[0]);
    low.y += __bfloat162float(add.at[1]);
    low.z += __bfloat162float(add.at[2]);
    low.w += __bfloat162float(add.at[3]);
    high.x += __bfloat162float(add.at[4]);
    high.y += __bfloat162float(add.at[5]);
    high.z += __bfloat162float(add.at[6]);
    high.w += __bfloat162float(add.at[7]);
    to[0] = low;
    to[1] = high;
  }
  for (int64_t i = piece.elements / 8 * 8 + first; i < piece.elements; i += stride)
    piece.to[i] += __bfloat162float(from[i]);
}

}  // namespace

const char* AddBf16Kernel(const Queue& on, const Bf16Sum* sums, int64_t count) {
  const OnDevice current(on.device);
  for (int64_t begin = 0; begin < count; begin += kPieces) {
    const int n = static_cast<int>(std::min<int64_t>(kPieces, count - begin));
    Pieces pieces;
    int64_t most = 1;
    for (int i = 0; i < n; ++i) {
      pieces.at[i] = sums[begin + i];
      most = std::max(most, pieces.at[i].elements);
    }
    const int64_t blocks = std::min<int64_t>((most / 8 + kThreads - 1) / kThreads + 1, kBlocks);
    AddAll<<<dim3(static_cast<unsigned>(blocks), n), kThreads, 0, StreamOf(on)>>>(pieces);
  }
  return LastError();
}

}  // namespace isthmus::engine
