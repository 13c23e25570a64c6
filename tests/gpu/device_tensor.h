// Tensors on the device for tests: values that break others, uploads, comparisons. Thread: one
// owner.
#ifndef ISTHMUS_TESTS_GPU_DEVICE_TENSOR_H_
#define ISTHMUS_TESTS_GPU_DEVICE_TENSOR_H_

#include <cuda_runtime_api.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "compress/cuda/device_codec.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {

enum class Values { kNormal, kAwkward, kNotFinite };

// Normal numbers; the awkward ones have zeros, subnormals, tiny and huge ones among them.
inline std::vector<float> Numbers(size_t n, uint64_t seed, Values values) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x = Gaussian(n, seed);
  const float odd[] = {0,      -0.0f, 1e-40f, -1e-42f, 0x1p-126f, 1e-31f, 1e30f,
                       -3e38f, 65504, 65520,  1e-8f,   kInf,      -kInf,  -kInf / kInf};
  if (values == Values::kNormal) return x;
  const uint64_t kinds = values == Values::kAwkward ? 11 : 14;
  for (size_t i = 0; i < n; ++i) {
    if (RandomBelow(seed, 9, i, 20) == 0) x[i] = odd[RandomBelow(seed, 10, i, kinds)];
  }
  return x;
}

// A host tensor of any dtype and its twin on the device, `shift` bytes from an aligned address.
class Tensor {
 public:
  Tensor(DType dtype, const TensorDims& dims, size_t shift = 0)
      : dtype_(dtype), dims_(dims), shift_(shift) {
    host_.assign(static_cast<size_t>(dims.elements()) * DTypeBytes(dtype), '\x5a');
    Check(cudaMalloc(&device_, host_.size() + shift + 16));
    Upload();
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() { Check(cudaFree(device_)); }

  void Set(const std::vector<float>& x) {
    FromFloats(x.data(), x.size(), dtype_, host_.data());
    Upload();
  }
  TensorView OnHost() const { return {host_.data(), dtype_, Device::kCpu, dims_}; }
  TensorView OnDevice() const { return {at(), dtype_, Device::kCuda, dims_}; }
  MutableTensorView OnHost() { return {host_.data(), dtype_, Device::kCpu, dims_}; }
  MutableTensorView OnDevice() { return {at(), dtype_, Device::kCuda, dims_}; }
  std::string Download() const {
    std::string bytes(host_.size(), '\0');
    Check(cudaMemcpy(bytes.data(), at(), bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }
  const std::string& host() const { return host_; }

 private:
  static void Check(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }
  void Upload() { Check(cudaMemcpy(at(), host_.data(), host_.size(), cudaMemcpyHostToDevice)); }
  char* at() const { return static_cast<char*>(device_) + shift_; }

  const DType dtype_;
  const TensorDims dims_;
  const size_t shift_;
  std::string host_;
  void* device_ = nullptr;
};

inline CodecOptions OnDevice(CodecOptions options) {
  options.device = Device::kCuda;
  return options;
}

// Where two strings first differ, or "".
inline std::string Difference(const std::string& expected, const std::string& got) {
  if (expected.size() != got.size())
    return std::to_string(got.size()) + " bytes instead of " + std::to_string(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == got[i]) continue;
    return "byte " + std::to_string(i) + " of " + std::to_string(got.size()) + " is " +
           std::to_string(static_cast<uint8_t>(got[i])) + " instead of " +
           std::to_string(static_cast<uint8_t>(expected[i]));
  }
  return "";
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_GPU_DEVICE_TENSOR_H_
