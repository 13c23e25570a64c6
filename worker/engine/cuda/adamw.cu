// One pass over gradient, weight and moments: 16 bytes read and 12 written an element. Rounded
// intrinsics only, in the order of adamw.cc: the bits of the CPU.
#include <algorithm>

#include "worker/engine/cuda/kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace isthmus::engine {
namespace {

constexpr int kThreads = 256;

__device__ inline void Update(const AdamWFactors& f, float gradient, float* weight, float* avg,
                              float* avg_sq) {
  const float g = __fmul_rn(gradient, f.gradient_scale);
  const float m = __fadd_rn(__fmul_rn(f.beta1, *avg), __fmul_rn(f.beta1_rest, g));
  const float v = __fadd_rn(__fmul_rn(f.beta2, *avg_sq), __fmul_rn(__fmul_rn(f.beta2_rest, g), g));
  *avg = m;
  *avg_sq = v;
  const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v), f.root_scale), f.epsilon);
  *weight = __fsub_rn(__fmul_rn(*weight, f.keep), __fmul_rn(f.step_size, __fdiv_rn(m, root)));
}

__global__ void UpdateAll(AdamWFactors f, const float* __restrict__ gradient,
                          float* __restrict__ weight, float* __restrict__ avg,
                          float* __restrict__ avg_sq, int64_t elements) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < elements / 4; i += stride) {
    const float4 g = reinterpret_cast<const float4*>(gradient)[i];
    float4 w = reinterpret_cast<float4*>(weight)[i];
    float4 m = reinterpret_cast<float4*>(avg)[i];
    float4 v = reinterpret_cast<float4*>(avg_sq)[i];
    Update(f, g.x, &w.x, &m.x, &v.x);
    Update(f, g.y, &w.y, &m.y, &v.y);
    Update(f, g.z, &w.z, &m.z, &v.z);
    Update(f, g.w, &w.w, &m.w, &v.w);
    reinterpret_cast<float4*>(weight)[i] = w;
    reinterpret_cast<float4*>(avg)[i] = m;
    reinterpret_cast<float4*>(avg_sq)[i] = v;
  }
  for (int64_t i = elements / 4 * 4 + first; i < elements; i += stride)
    Update(f, gradient[i], weight + i, avg + i, avg_sq + i);
}

}  // namespace

bool HaveKernels() { return true; }

const char* AdamWKernel(const Queue& on, const AdamWFactors& factors, const float* gradient,
                        float* weight, float* avg, float* avg_sq, int64_t elements) {
  if (elements == 0) return nullptr;
  const OnDevice current(on.device);
  const int64_t blocks = std::min<int64_t>((elements / 4 + kThreads) / kThreads, 132 * 16);
  UpdateAll<<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(on)>>>(factors, gradient, weight,
                                                                          avg, avg_sq, elements);
  return LastError();
}

}  // namespace isthmus::engine
