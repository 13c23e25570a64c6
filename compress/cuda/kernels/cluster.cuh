// Thread block clusters and asynchronous copies, in PTX: what the per-channel encoder needs of
// them.
//
// Thread: device functions, compute capability 9.0 or later.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_CLUSTER_CUH_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_CLUSTER_CUH_

#include <cstdint>

namespace isthmus::compress::cuda {

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline uint32_t ClusterBlocks() {
  uint32_t n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}

__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}

// `barrier`, in shared memory, expects `bytes` from the cluster. Every thread calls it, and
// WaitForCluster before anything is sent to another block.
__device__ inline void OpenBarrier(uint64_t* barrier, uint32_t bytes) {
  if (threadIdx.x == 0) {
    const uint32_t at = SharedAddress(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ inline void WaitForCluster() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Stores `value` at `to` in block `rank` of the cluster, and counts it there.
__device__ inline void SendTo(uint32_t rank, uint4* to, uint64_t* barrier, const uint4& value) {
  uint32_t remote, remote_barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(SharedAddress(to)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote_barrier)
      : "r"(SharedAddress(barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(remote_barrier)
      : "memory");
}

// Until all that the barrier expects is here.
__device__ inline void WaitForBytes(uint64_t* barrier) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(barrier))
        : "memory");
  }
}

// 16 bytes from device to shared memory, or as many zeros; `from` is an address either way. They
// are there, for the thread that copied them, after WaitForCopies.
__device__ inline void CopyAsync(uint4* to, const void* from, bool zeros) {
  const int bytes = zeros ? 0 : 16;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(bytes)
               : "memory");
}

__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_CLUSTER_CUH_
