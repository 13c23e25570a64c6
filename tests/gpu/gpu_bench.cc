// Kernels of the codecs on a device against a device-to-device copy, and whole encoders against
// the bus.
//   gpu_bench [--only=TEXT] [SAMPLES...]   samples of 1024 x 1600 elements (default 1 2 4 8 32);
//                                          TEXT is in the names of the codecs to measure
//
// For each case: the fewest bytes it must move, the time that the copy's rate predicts for them,
// the time measured, and the share of the copy's rate that makes; beside it, what a copy of as many
// bytes takes at this size. Launches are replayed from a graph that goes round enough sets of
// buffers to keep them out of the cache. Median of 15 replays.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/rng.h"
#include "compress/cuda/device_codec.h"
#include "compress/cuda/kernels/kernels.h"
#include "compress/simd/convert.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress::cuda {
namespace {

constexpr Matrix kSample = {1024, 1600};
constexpr int64_t kOutOfCache = int64_t{400} << 20;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void Check(Error error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "gpu_bench: %s\n", error);
  std::exit(1);
}
template <typename T>
T Check(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(value.status().message()).c_str());
  std::exit(1);
}

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Everything the cases use: sets of buffers, each for up to `samples` samples of fp32.
class Bench {
 public:
  explicit Bench(int64_t samples) : samples_(samples) {
    Check(cudaStreamCreate(&stream_));
    Check(cudaEventCreate(&start_));
    Check(cudaEventCreate(&end_));
  }

  double copy_rate = 0;  // bytes a second, read and written
  std::string only;

  uint8_t* Allocate(int64_t bytes) {
    void* p = nullptr;
    Check(cudaMalloc(&p, static_cast<size_t>(bytes)));
    owned_.push_back(p);
    return static_cast<uint8_t*>(p);
  }
  void Free() {
    for (void* p : owned_) Check(cudaFree(p));
    owned_.clear();
  }

  // Seconds of one of `launches` launches.
  double Time(int launches, const std::function<void(int, cudaStream_t)>& launch) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) launch(i, stream_);
    Check(cudaStreamEndCapture(stream_, &graph));
    Check(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> seconds;
    for (int replay = 0; replay < 18; ++replay) {
      Check(cudaEventRecord(start_, stream_));
      Check(cudaGraphLaunch(exec, stream_));
      Check(cudaEventRecord(end_, stream_));
      Check(cudaEventSynchronize(end_));
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, start_, end_));
      if (replay >= 3) seconds.push_back(ms * 1e-3 / launches);
    }
    Check(cudaGraphExecDestroy(exec));
    Check(cudaGraphDestroy(graph));
    return Median(seconds);
  }

  // A copy that moves `bytes`, read and written together. It is slower where the two ends are not
  // a multiple of a page apart, or a power of two.
  double TimeCopy(int64_t bytes) {
    constexpr int64_t kPage = 4096;
    const int64_t half = (bytes / 2 + kPage - 1) / kPage * kPage, pitch = half + 37 * kPage;
    const int sets = SetsOf(bytes);
    uint8_t* memory = Allocate(sets * 2 * pitch);
    Check(cudaMemset(memory, 0x35, static_cast<size_t>(sets * 2 * pitch)));
    const double seconds = Time(std::max(sets, 20), [&](int i, cudaStream_t stream) {
      uint8_t* from = memory + (i % sets) * 2 * pitch;
      Check(cudaMemcpyAsync(from + pitch, from, static_cast<size_t>(half), cudaMemcpyDeviceToDevice,
                            stream));
    });
    Free();
    return seconds * static_cast<double>(bytes) / static_cast<double>(2 * half);
  }

  static int SetsOf(int64_t bytes) {
    return static_cast<int>(std::max<int64_t>(kOutOfCache / bytes + 1, 2));
  }

  void Report(const char* name, DType dtype, int64_t bytes, double seconds) {
    const double predicted = static_cast<double>(bytes) / copy_rate, copied = TimeCopy(bytes);
    std::printf("| %s | %s | %lld | %.1f | %.1f | %.1f | %.0f %% | %.1f | %.0f %% |\n", name,
                dtype == DType::kF32 ? "fp32" : "bf16", static_cast<long long>(samples_),
                static_cast<double>(bytes) * 1e-6, predicted * 1e6, seconds * 1e6,
                100 * predicted / seconds, copied * 1e6, 100 * copied / seconds);
    std::fflush(stdout);
  }

  // Normal numbers, rounded to dtype, `n` of them, repeated from a block of a million.
  void Fill(void* to, DType dtype, int64_t n, uint64_t seed) {
    constexpr int64_t kBlock = 1 << 20;
    static std::map<std::pair<DType, uint64_t>, std::vector<uint8_t>> blocks;
    std::vector<uint8_t>& bytes = blocks[{dtype, seed % 4}];
    if (bytes.empty()) {
      std::vector<float> x(kBlock);
      for (size_t i = 0; i < x.size(); ++i) {
        float sum = -6.0f;
        for (uint64_t k = 0; k < 12; ++k)
          sum += static_cast<float>(RandomBits(seed % 4, k, i) >> 40) * 0x1p-24f;
        x[i] = sum;
      }
      bytes.resize(static_cast<size_t>(kBlock) * DTypeBytes(dtype));
      FromFloats(x.data(), x.size(), dtype, bytes.data());
    }
    for (int64_t at = 0; at < n; at += kBlock) {
      Check(cudaMemcpy(static_cast<uint8_t*>(to) + at * static_cast<int64_t>(DTypeBytes(dtype)),
                       bytes.data(),
                       static_cast<size_t>(std::min(kBlock, n - at)) * DTypeBytes(dtype),
                       cudaMemcpyHostToDevice));
    }
  }

  void Quant(const std::string& name, const QuantFormat& format, DType dtype, bool delta);

 private:
  const int64_t samples_;
  cudaStream_t stream_;
  cudaEvent_t start_, end_;
  std::vector<void*> owned_;
};

// Encoding and decoding of one format. With buffers, each set of them meets another set of tensors
// at each turn, so that differences stay large.
void Bench::Quant(const std::string& name, const QuantFormat& format, DType dtype, bool delta) {
  if (name.find(only) == std::string::npos) return;
  const int64_t n = samples_ * kSample.elements();
  const int64_t bytes = samples_ * EncodeBytesMoved(format, kSample, dtype, delta);
  const int sets = SetsOf(bytes);
  const int64_t body = LayoutOf(format, kSample).bytes;
  std::vector<uint8_t*> a, out, m, bodies;
  for (int i = 0; i < sets; ++i) {
    a.push_back(Allocate(n * static_cast<int64_t>(DTypeBytes(dtype))));
    out.push_back(Allocate(n * static_cast<int64_t>(DTypeBytes(dtype))));
    bodies.push_back(Allocate(samples_ * body));
    Fill(a.back(), dtype, n, static_cast<uint64_t>(i + 1));
    if (!delta) continue;
    m.push_back(Allocate(2 * n));
    Fill(m.back(), DType::kBf16, n, static_cast<uint64_t>(i + 1000));
  }
  uint32_t* flag = reinterpret_cast<uint32_t*>(Allocate(16));
  const auto encode = [&](int i, cudaStream_t stream) {
    std::vector<EncodeJob> jobs;
    const int set = i % sets, from = (i + i / sets) % sets;
    for (int64_t s = 0; s < samples_; ++s) {
      EncodeJob job;
      job.a = a[from] + s * kSample.elements() * static_cast<int64_t>(DTypeBytes(dtype));
      if (delta) job.m = reinterpret_cast<uint16_t*>(m[set]) + s * kSample.elements();
      job.body = bodies[set] + s * body;
      job.not_finite = flag;
      jobs.push_back(job);
    }
    Check(QuantEncode(format, kSample, dtype, jobs.data(), samples_, nullptr, stream));
  };
  const auto decode = [&](int i, cudaStream_t stream) {
    std::vector<DecodeJob> jobs;
    const int set = i % sets;
    for (int64_t s = 0; s < samples_; ++s) {
      DecodeJob job;
      job.body = bodies[set] + s * body;
      if (delta) job.m = reinterpret_cast<uint16_t*>(m[set]) + s * kSample.elements();
      job.out = out[set] + s * kSample.elements() * static_cast<int64_t>(DTypeBytes(dtype));
      jobs.push_back(job);
    }
    Check(QuantDecode(format, kSample, dtype, jobs.data(), samples_, stream));
  };
  const int launches = std::max(2 * sets, 20);
  const double encoding = Time(launches, encode), decoding = Time(launches, decode);
  Free();
  Report((name + " encode").c_str(), dtype, bytes, encoding);
  Report((name + " decode").c_str(), dtype,
         samples_ * DecodeBytesMoved(format, kSample, dtype, delta), decoding);
}

QuantFormat Format(int bits, ScaleBy by, bool symmetric = false) {
  QuantFormat format;
  format.bits = bits;
  format.scale_by = by;
  format.group = 64;
  format.symmetric = symmetric;
  return format;
}

// Whole encoders and decoders, payload in pinned memory, against the bus.
void Bus(const char* text, int64_t samples, Bench* bench) {
  const int64_t n = samples * kSample.elements();
  CodecOptions options;
  options.device = Device::kCuda;
  options.positions = kSample.positions;
  options.hidden = kSample.hidden;
  const CodecSpec spec = Check(ParseCodec(text));
  auto encoder = Check(MakeDeviceEncoder(spec, options));
  auto decoder = Check(MakeDeviceDecoder(spec, options));
  uint8_t* a[2] = {bench->Allocate(2 * n), bench->Allocate(2 * n)};
  uint8_t* out = bench->Allocate(2 * n);
  uint8_t* spare = bench->Allocate(8 * n);
  for (uint64_t i = 0; i < 2; ++i) bench->Fill(a[i], DType::kBf16, n, i + 1);
  std::vector<uint32_t> ids;
  for (int64_t s = 0; s < samples; ++s) ids.push_back(static_cast<uint32_t>(s));
  std::vector<uint32_t> tokens;
  for (int64_t i = 0; i < samples * kSample.positions; ++i)
    tokens.push_back(static_cast<uint32_t>(RandomBelow(1, 2, static_cast<uint64_t>(i), 50000)));
  FrameContext context;
  context.sample_ids = ids;
  context.token_ids = tokens;  // of predict
  const TensorDims dims{samples, kSample.positions, kSample.hidden};
  const auto now = [] { return std::chrono::steady_clock::now(); };
  std::vector<double> encoding, decoding, to_host, to_device;
  int64_t payload_bytes = 0;
  for (int frame = 0; frame < 24; ++frame) {
    const auto begin = now();
    const absl::string_view payload =
        Check(encoder->EncodePinned({a[frame % 2], DType::kBf16, Device::kCuda, dims}, context));
    const auto encoded = now();
    payload_bytes = static_cast<int64_t>(payload.size());
    char* pinned = Check(decoder->PinnedPayload(payload_bytes));
    payload.copy(pinned, payload.size());
    const auto received = now();
    const absl::Status status =
        decoder->Decode({pinned, payload.size()}, static_cast<uint64_t>(frame + 1), context,
                        {out, DType::kBf16, Device::kCuda, dims});
    if (!status.ok()) Check(Error("decode failed"));
    Check(cudaDeviceSynchronize());
    const auto decoded = now();
    Check(cudaMemcpy(pinned, spare, payload.size(), cudaMemcpyDeviceToHost));
    const auto copied = now();
    Check(cudaMemcpy(spare, pinned, payload.size(), cudaMemcpyHostToDevice));
    const auto copied_back = now();
    if (frame < 4) continue;
    encoding.push_back(std::chrono::duration<double>(encoded - begin).count());
    decoding.push_back(std::chrono::duration<double>(decoded - received).count());
    to_host.push_back(std::chrono::duration<double>(copied - decoded).count());
    to_device.push_back(std::chrono::duration<double>(copied_back - copied).count());
  }
  bench->Free();
  std::printf("| %s | %lld | %.2f | %.0f | %.0f | %.0f | %.0f |\n", text,
              static_cast<long long>(samples), static_cast<double>(payload_bytes) * 1e-6,
              Median(to_host) * 1e6, Median(encoding) * 1e6, Median(to_device) * 1e6,
              Median(decoding) * 1e6);
}

// Warm visits of `kVisited` samples, of which the device has room for `on_device`: what a visit
// costs its caller, while the device has other work of about half a millisecond between them.
void Tiers(const char* text, int64_t on_device, size_t ahead, Bench* bench) {
  constexpr uint32_t kVisited = 32;
  constexpr int64_t kBetween = int64_t{1} << 30;
  const CodecSpec spec = Check(ParseCodec(text));
  const int64_t entry = BufferBytes(spec, 1, kSample.positions, kSample.hidden);
  CodecOptions options;
  options.device = Device::kCuda;
  options.positions = kSample.positions;
  options.hidden = kSample.hidden;
  options.distinct_samples = kVisited;
  options.buffer_memory_bytes = kVisited * entry;
  options.device_buffer_bytes = on_device * (entry + 512);
  auto encoder = Check(MakeDeviceEncoder(spec, options));
  uint8_t* spare[2] = {bench->Allocate(kBetween), bench->Allocate(kBetween)};
  uint8_t* a = bench->Allocate(2 * kSample.elements());
  bench->Fill(a, DType::kBf16, kSample.elements(), 1);
  std::vector<uint32_t> order(2 * kVisited);
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i % kVisited;
  std::vector<double> visits;
  for (uint32_t frame = 0; frame < 4 * kVisited; ++frame) {
    const uint32_t id = frame % kVisited;
    if (ahead > 0) encoder->Prefetch({order.data() + id, ahead});
    Check(cudaMemcpy(spare[0], spare[1], kBetween, cudaMemcpyDeviceToDevice));
    Check(cudaDeviceSynchronize());
    FrameContext context;
    context.sample_ids = {order.data() + id, 1};
    const auto begin = std::chrono::steady_clock::now();
    Check(encoder->EncodePinned(
        {a, DType::kBf16, Device::kCuda, {1, kSample.positions, kSample.hidden}}, context));
    if (frame >= 2 * kVisited)
      visits.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  bench->Free();
  std::printf("| %s | %lld of %u | %s | %.1f | %.0f |\n", text, static_cast<long long>(on_device),
              kVisited, ahead > 0 ? "yes" : "no", static_cast<double>(entry) * 1e-6,
              Median(visits) * 1e6);
}

void Run(const std::string& only, const std::vector<int64_t>& counts) {
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0));
  double rate = 0;
  {
    Bench bench(1);
    for (int64_t bytes = int64_t{128} << 20; bytes <= int64_t{2} << 30; bytes *= 2)
      rate = std::max(rate, static_cast<double>(bytes) / bench.TimeCopy(bytes));
  }
  std::printf(
      "%s, %d multiprocessors, %.0f MiB of L2; copies of 64 MiB to 1 GiB move up to %.3f "
      "TB/s, read and written\n\n",
      device.name, device.multiProcessorCount, device.l2CacheSize / 1048576.0, rate * 1e-12);
  std::printf(
      "| codec | input | samples | MB moved | predicted us | measured us | of the copy's "
      "rate | copy of that size, us | of that |\n|---|---|---|---|---|---|---|---|---|\n");
  for (int64_t samples : counts) {
    Bench bench(samples);
    bench.copy_rate = rate;
    bench.only = only;
    const ScaleBy channel = ScaleBy::kChannel;
    bench.Quant("quant(4)", Format(4, channel), DType::kBf16, false);
    bench.Quant("quant(4, token)", Format(4, ScaleBy::kToken), DType::kBf16, false);
    bench.Quant("quant(4, group=64)", Format(4, ScaleBy::kGroup), DType::kBf16, false);
    bench.Quant("delta(quant(4))", Format(4, channel), DType::kBf16, true);
    bench.Quant("delta(quant(3))", Format(3, channel), DType::kBf16, true);
    if (samples != counts.back()) continue;
    bench.Quant("quant(2)", Format(2, channel), DType::kBf16, false);
    bench.Quant("quant(8)", Format(8, channel), DType::kBf16, false);
    bench.Quant("quant(3)", Format(3, channel), DType::kBf16, false);
    bench.Quant("quant(5)", Format(5, channel), DType::kBf16, false);
    bench.Quant("quant(4, symmetric)", Format(4, channel, true), DType::kBf16, false);
    bench.Quant("quant(3, symmetric)", Format(3, channel, true), DType::kBf16, false);
    bench.Quant("quant(3, group=64)", Format(3, ScaleBy::kGroup), DType::kBf16, false);
    bench.Quant("delta(quant(4, group=64))", Format(4, ScaleBy::kGroup), DType::kBf16, true);
    bench.Quant("delta(quant(4, token))", Format(4, ScaleBy::kToken), DType::kBf16, true);
    bench.Quant("quant(4)", Format(4, channel), DType::kF32, false);
    bench.Quant("delta(quant(4))", Format(4, channel), DType::kF32, true);
  }
  std::printf(
      "\n| codec, bf16, payload pinned | samples | payload MB | copy to host us | encode us "
      "| copy to device us | decode us |\n|---|---|---|---|---|---|---|\n");
  for (int64_t samples : {1, 8}) {
    Bench bench(samples);
    for (const char* text : {"none", "quant(4)", "delta(quant(4))", "ef(quant(4))",
                             "predict(quant(4, token))", "delta(topk(0.05))", "topk(0.05)",
                             "topk(0.05, global)", "randomk(0.1)", "cocktail(0.1, 0.2, 4)"}) {
      if (only.empty()) Bus(text, samples, &bench);
    }
  }
  if (!only.empty()) return;
  std::printf(
      "\n| codec, bf16, one sample a frame | buffers on the device | named ahead | MB a buffer | "
      "encode us |\n|---|---|---|---|---|\n");
  Bench bench(1);
  for (const char* text :
       {"delta(quant(4))", "delta(quant(4), buffer=8)", "delta(quant(4), buffer=4)"}) {
    Tiers(text, 32, 8, &bench);
    Tiers(text, 8, 8, &bench);
    Tiers(text, 8, 0, &bench);
  }
}

}  // namespace
}  // namespace isthmus::compress::cuda

int main(int argc, char** argv) {
  std::vector<int64_t> counts;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    int64_t samples = 0;
    if (absl::StartsWith(argv[i], "--only=")) {
      only = argv[i] + 7;
      continue;
    }
    if (!absl::SimpleAtoi(argv[i], &samples) || samples < 1) {
      std::fprintf(stderr, "gpu_bench: '%s' is not a number of samples\n", argv[i]);
      return 2;
    }
    counts.push_back(samples);
  }
  if (counts.empty()) counts = {1, 2, 4, 8, 32};
  isthmus::compress::cuda::Run(only, counts);
  return 0;
}
