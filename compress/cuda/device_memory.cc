#include "compress/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::compress::cuda {

absl::Status CudaStatus(int cuda_error, absl::string_view what) {
  const cudaError_t error = static_cast<cudaError_t>(cuda_error);
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      cudaGetLastError();  // it is not sticky: the next call must not see it again
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return absl::FailedPreconditionError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status KernelStatus(Error error, absl::string_view what) {
  return error == nullptr ? absl::OkStatus() : absl::InternalError(absl::StrCat(what, ": ", error));
}

void DeviceMemory::Free::operator()(uint8_t* p) const { cudaFree(p); }

absl::Status DeviceMemory::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  data_.reset();
  bytes_ = 0;
  void* p = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&p, static_cast<size_t>(bytes)),
                             absl::StrCat("device memory of ", bytes, " bytes")));
  data_.reset(static_cast<uint8_t*>(p));
  bytes_ = bytes;
  return absl::OkStatus();
}

void PinnedMemory::Free::operator()(char* p) const { cudaFreeHost(p); }

absl::Status PinnedMemory::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  data_.reset();
  bytes_ = 0;
  void* p = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&p, static_cast<size_t>(bytes)),
                             absl::StrCat("pinned host memory of ", bytes, " bytes")));
  data_.reset(static_cast<char*>(p));
  bytes_ = bytes;
  return absl::OkStatus();
}

bool PinnedMemory::Holds(absl::string_view text) const {
  return !text.empty() && text.data() >= data_.get() &&
         text.data() + text.size() <= data_.get() + bytes_;
}

absl::StatusOr<Queue> Queue::Make(Stream borrowed) {
  cudaEvent_t mark = nullptr;
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "CUDA event of a codec"));
  Queue queue(borrowed, mark, false);
  if (borrowed != nullptr) return queue;
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreate(&stream), "CUDA stream of a codec"));
  queue.stream_ = stream;
  queue.owned_ = true;
  return queue;
}

Queue::~Queue() {
  if (mark_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(mark_));
  if (owned_) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

absl::Status Queue::ToHost(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                    static_cast<cudaStream_t>(stream_)),
                    "copy from the device");
}

absl::Status Queue::ToDevice(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                    static_cast<cudaStream_t>(stream_)),
                    "copy to the device");
}

absl::Status Queue::RowsToHost(void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                               int64_t bytes, int64_t rows) {
  if (bytes == 0 || rows == 0) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                        static_cast<size_t>(bytes), static_cast<size_t>(rows),
                        cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream_)),
      "copy from the device");
}

absl::Status Queue::RowsToDevice(void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                                 int64_t bytes, int64_t rows) {
  if (bytes == 0 || rows == 0) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                        static_cast<size_t>(bytes), static_cast<size_t>(rows),
                        cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream_)),
      "copy to the device");
}

absl::Status Queue::Zero(void* at, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(
      cudaMemsetAsync(at, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream_)),
      "clear of device memory");
}

absl::Status Queue::Wait() {
  return CudaStatus(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)),
                    "kernels of a codec");
}

absl::Status Queue::Mark() {
  return CudaStatus(
      cudaEventRecord(static_cast<cudaEvent_t>(mark_), static_cast<cudaStream_t>(stream_)),
      "CUDA event of a codec");
}

absl::Status Queue::WaitForMark() {
  return CudaStatus(cudaEventSynchronize(static_cast<cudaEvent_t>(mark_)), "kernels of a codec");
}

}  // namespace isthmus::compress::cuda
