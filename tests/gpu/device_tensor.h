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
#include "tests/compress/string_state.h"

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
  if (options.device_buffer_bytes == 0) options.device_buffer_bytes = 64 << 20;
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

// A sender and a receiver on the host and on the device. All frames go through all four.
struct Four {
  Four(const std::string& text, const CodecOptions& options)
      : cpu(text, options), device(text, OnDevice(options)) {}

  // Encodes x for ids; the payloads must be equal, what the receivers have, and all state.
  // `shift`: of the tensors, from an aligned address.
  void Frame(const std::vector<float>& x, const std::vector<uint32_t>& ids, DType dtype,
             size_t shift = 0) {
    ASSERT_TRUE(device.encoder != nullptr && device.decoder != nullptr);
    const TensorDims dims = cpu.Dims(ids.size());
    Tensor in(dtype, dims, shift), out(dtype, dims, shift);
    in.Set(x);
    context.sample_ids = ids;
    context.token_ids = tokens;
    std::string expected, payload;
    ASSERT_TRUE(cpu.encoder->Encode(std::as_const(in).OnHost(), context, &expected).ok());
    const absl::Status encoded =
        device.encoder->Encode(std::as_const(in).OnDevice(), context, &payload);
    ASSERT_TRUE(encoded.ok()) << encoded;
    ASSERT_EQ(Difference(expected, payload), "");
    const uint64_t version = cpu.encoder->version();
    ASSERT_EQ(device.encoder->version(), version);
    ASSERT_TRUE(cpu.decoder->Decode(payload, version, context, out.OnHost()).ok());
    const absl::Status decoded = device.decoder->Decode(payload, version, context, out.OnDevice());
    ASSERT_TRUE(decoded.ok()) << decoded;
    ASSERT_EQ(Difference(out.host(), out.Download()), "");
    ASSERT_EQ(device.decoder->token_ids(), cpu.decoder->token_ids());
    ASSERT_EQ(device.encoder->indices(), cpu.encoder->indices());
    ASSERT_EQ(device.decoder->indices(), cpu.decoder->indices());
    const uint64_t hash = cpu.encoder->StateHash().value();
    ASSERT_EQ(cpu.decoder->StateHash().value(), hash);
    ASSERT_EQ(device.encoder->StateHash().value(), hash);
    ASSERT_EQ(device.decoder->StateHash().value(), hash);
    ASSERT_EQ(device.encoder->stats().payload_bytes, cpu.encoder->stats().payload_bytes);
    last = payload;
  }

  // All four end and are made anew from what the others' state is: the host's ends from the
  // device's, the device's from the host's. `same`: those are equal.
  void Exchange(bool same) {
    const std::string host_encoder = Saved(cpu.encoder.get(), cpu.spec, cpu.options);
    const std::string host_decoder = Saved(cpu.decoder.get(), cpu.spec, cpu.options);
    const std::string encoder = Saved(device.encoder.get(), device.spec, device.options);
    const std::string decoder = Saved(device.decoder.get(), device.spec, device.options);
    ASSERT_FALSE(host_encoder.empty() || encoder.empty() || decoder.empty());
    if (same) {
      ASSERT_EQ(Difference(host_encoder, encoder), "");
    }
    ASSERT_EQ(Difference(host_decoder, decoder), "");
    Load(host_encoder, host_decoder, &device);
    Load(encoder, decoder, &cpu);
  }

  static void Load(const std::string& encoder, const std::string& decoder, Pair* pair) {
    StringSource from_encoder(encoder), from_decoder(decoder);
    auto e = LoadEncoder(pair->spec, pair->options, 11, 5, &from_encoder);
    auto d = LoadDecoder(pair->spec, pair->options, 11, 5, &from_decoder);
    ASSERT_TRUE(e.ok() && d.ok()) << e.status() << d.status();
    EXPECT_EQ(AgreementHash(*e).value(), AgreementHash(*d).value());
    pair->encoder = std::move(e->codec);
    pair->decoder = std::move(d->codec);
  }

  void Prefetch(const std::vector<uint32_t>& ids) {
    for (Pair* pair : {&cpu, &device}) {
      pair->encoder->Prefetch(ids);
      pair->decoder->Prefetch(ids);
    }
  }

  Pair cpu, device;
  FrameContext context;          // micro of the next frame
  std::vector<uint32_t> tokens;  // of the next frame, where the codec takes them
  std::string last;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_GPU_DEVICE_TENSOR_H_
