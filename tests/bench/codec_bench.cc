// Codecs on one core against memcpy and the scalar reference. Rates are fp32 input bytes a second
// of CPU time.
//   codec_bench [--benchmark_filter=...]
// `moved` is what a codec must move through memory for each byte of input, so that memcpy's rate x
// 2 / moved is a bound where data come from DRAM.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "benchmark/benchmark.h"
#include "compress/codec.h"
#include "compress/pack.h"
#include "compress/quantize.h"
#include "compress/reference.h"
#include "proto/codec_text.h"

namespace isthmus::compress {
namespace {

constexpr int64_t kPositions = 1024, kHidden = 1600;  // a GPT2-XL micro-batch of one sequence

std::vector<float> Input(size_t n, uint64_t stream = 0) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    float sum = -6.0f;
    for (uint64_t k = 0; k < 3; ++k) {
      const uint64_t r = RandomBits(1, stream, 3 * i + k);
      sum +=
          static_cast<float>(r & 0xffffffffu) * 0x1p-31f + static_cast<float>(r >> 32) * 0x1p-31f;
    }
    x[i] = sum;
  }
  return x;
}

CodecOptions Options() {
  CodecOptions options;
  options.positions = kPositions;
  options.hidden = kHidden;
  return options;
}

void Memcpy(benchmark::State& state) {
  const std::vector<float> x = Input(kPositions * kHidden);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    std::memcpy(y.data(), x.data(), 4 * x.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 4 * x.size()));
}

void ReferenceEncode(benchmark::State& state, const std::string& text) {
  const std::vector<float> x = Input(kPositions * kHidden);
  const CodecSpec spec = *ParseCodec(text);
  for (auto _ : state) benchmark::DoNotOptimize(ReferenceQuantEncode(spec, x, kPositions, kHidden));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 4 * x.size()));
}

// Token ids of one sample, of a vocabulary of bytes.
const std::vector<uint32_t>& Tokens() {
  static const std::vector<uint32_t> tokens = [] {
    std::vector<uint32_t> t(kPositions);
    for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<uint32_t>(i * i % 97);
    return t;
  }();
  return tokens;
}

void Encode(benchmark::State& state, const std::string& text, double moved) {
  const std::vector<float> x = Input(kPositions * kHidden), x2 = Input(kPositions * kHidden, 1);
  std::unique_ptr<Encoder> encoder = *MakeEncoder(*ParseCodec(text), Options());
  const std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  context.token_ids = Tokens();
  std::string payload;
  bool odd = false;
  const TensorDims dims{1, kPositions, kHidden};
  if (!encoder->Encode({x.data(), DType::kF32, Device::kCpu, dims}, context, &payload).ok())
    state.SkipWithError("encode");
  for (auto _ : state) {
    odd = !odd;
    if (!encoder
             ->Encode({odd ? x2.data() : x.data(), DType::kF32, Device::kCpu, dims}, context,
                      &payload)
             .ok())
      state.SkipWithError("encode");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 4 * x.size()));
  state.counters["moved"] = moved;
  state.counters["ratio"] = static_cast<double>(4 * x.size()) / static_cast<double>(payload.size());
}

// Warm visits of 4 times as many samples as memory holds, in another order every epoch; with
// `prefetch`, the samples of the next frames are named before each. Wall time: the file is written
// and read by another thread.
void Spilled(benchmark::State& state, bool prefetch) {
  constexpr uint32_t kSamples = 64;
  const std::vector<float> x = Input(kPositions * kHidden);
  CodecOptions options = Options();
  options.buffer_memory_bytes = kSamples / 4 * 2 * kPositions * kHidden;
  options.spill_directory = std::filesystem::temp_directory_path();
  options.distinct_samples = kSamples;
  auto encoder = MakeEncoder(*ParseCodec("delta(quant(3))"), options);
  if (!encoder.ok()) return state.SkipWithError(encoder.status().ToString().c_str());
  std::vector<uint32_t> order(kSamples);
  for (uint32_t i = 0; i < kSamples; ++i) order[i] = i;
  std::string payload;
  auto visit = [&](uint32_t i) {
    if (prefetch) (*encoder)->Prefetch({order.data() + i, std::min<size_t>(4, kSamples - i)});
    FrameContext context;
    context.sample_ids = {order.data() + i, 1};
    const TensorView view{x.data(), DType::kF32, Device::kCpu, {1, kPositions, kHidden}};
    if (!(*encoder)->Encode(view, context, &payload).ok()) state.SkipWithError("encode");
  };
  for (uint32_t i = 0; i < kSamples; ++i) visit(i);
  uint64_t epoch = 0;
  uint32_t next = kSamples;
  for (auto _ : state) {
    if (next == kSamples) {
      ++epoch;
      for (uint32_t i = kSamples - 1; i > 0; --i)
        std::swap(order[i], order[RandomBelow(1, epoch, i, i + 1)]);
      next = 0;
    }
    visit(next++);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 4 * x.size()));
}

// Encode and decode, since a stateful decoder takes each frame once.
void RoundTrip(benchmark::State& state, const std::string& text, double moved) {
  const std::vector<float> x = Input(kPositions * kHidden), x2 = Input(kPositions * kHidden, 1);
  std::vector<float> y(x.size());
  std::unique_ptr<Encoder> encoder = *MakeEncoder(*ParseCodec(text), Options());
  std::unique_ptr<Decoder> decoder = *MakeDecoder(*ParseCodec(text), Options());
  std::vector<uint32_t> ids = {0};
  FrameContext context;
  context.sample_ids = ids;
  context.token_ids = Tokens();
  std::string payload;
  bool odd = false;
  const TensorDims dims{1, kPositions, kHidden};
  for (auto _ : state) {
    odd = !odd;
    if (!encoder
             ->Encode({odd ? x2.data() : x.data(), DType::kF32, Device::kCpu, dims}, context,
                      &payload)
             .ok() ||
        !decoder
             ->Decode(payload, encoder->version(), context,
                      {y.data(), DType::kF32, Device::kCpu, dims})
             .ok()) {
      state.SkipWithError("round trip");
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 4 * x.size()));
  state.counters["moved"] = moved;
}

// The kernels on one row, which stays in the first-level cache: what the arithmetic alone costs.
void Kernel(benchmark::State& state, int which) {
  const Levels levels(4, false);
  const std::vector<float> x = Input(kHidden);
  const std::vector<float> inverse(kHidden, 2.0f), step(kHidden, 0.5f);
  std::vector<uint32_t> max_bits(kHidden);
  std::vector<uint16_t> m(kHidden);
  std::vector<uint8_t> codes(kHidden), packed(kHidden);
  std::vector<float> y(kHidden);
  for (auto _ : state) {
    if (which == 0) MaxBitsInto(x.data(), kHidden, max_bits.data());
    if (which == 1) QuantizeRow(levels, x.data(), inverse.data(), kHidden, codes.data());
    if (which == 2) PackCodes(codes.data(), kHidden, 4, packed.data());
    if (which == 3) PackCodes(codes.data(), kHidden, 3, packed.data());
    if (which == 4)
      QuantizeDeltaRow(levels, x.data(), inverse.data(), step.data(), kHidden, m.data(),
                       codes.data());
    if (which == 5) UnpackCodes(packed.data(), kHidden, 4, codes.data());
    if (which == 6) DequantizeRow(levels, codes.data(), step.data(), kHidden, y.data());
    if (which == 7)
      DequantizeDeltaRow(levels, codes.data(), step.data(), kHidden, m.data(), y.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * 4 * kHidden);
}

BENCHMARK(Memcpy);
BENCHMARK_CAPTURE(Kernel, max_bits, 0);
BENCHMARK_CAPTURE(Kernel, quantize, 1);
BENCHMARK_CAPTURE(Kernel, pack4, 2);
BENCHMARK_CAPTURE(Kernel, pack3, 3);
BENCHMARK_CAPTURE(Kernel, quantize_delta, 4);
BENCHMARK_CAPTURE(Kernel, unpack4, 5);
BENCHMARK_CAPTURE(Kernel, dequantize, 6);
BENCHMARK_CAPTURE(Kernel, dequantize_delta, 7);
BENCHMARK_CAPTURE(ReferenceEncode, quant4, "quant(4)");
BENCHMARK_CAPTURE(Encode, bf16, "bf16", (4 + 2) / 4.0);
BENCHMARK_CAPTURE(Encode, quant4, "quant(4)", (4 + 4 + 0.5) / 4.0);
BENCHMARK_CAPTURE(Encode, quant3, "quant(3)", (4 + 4 + 0.375) / 4.0);
BENCHMARK_CAPTURE(Encode, quant4_group64, "quant(4, group=64)", (4 + 4 + 0.5) / 4.0);
BENCHMARK_CAPTURE(Encode, delta4, "delta(quant(4))", (4 + 2 + 4 + 2 + 2 + 0.5) / 4.0);
BENCHMARK_CAPTURE(Encode, delta3, "delta(quant(3))", (4 + 2 + 4 + 2 + 2 + 0.375) / 4.0);
// Quantised buffers: read, opened as bf16, read twice to be put back, written (and through a copy).
BENCHMARK_CAPTURE(Encode, delta3_buffer8, "delta(quant(3), buffer=8)",
                  (14.375 + 1 + 2 + 2 + 2 + 1 + 1 + 1) / 4.0);
BENCHMARK_CAPTURE(Encode, delta3_buffer4, "delta(quant(3), buffer=4)",
                  (14.375 + 0.5 + 2 + 2 + 2 + 0.5 + 0.5 + 0.5) / 4.0);
BENCHMARK_CAPTURE(Encode, delta3_buffer2, "delta(quant(3), buffer=2)",
                  (14.375 + 0.25 + 2 + 2 + 2 + 0.25 + 0.25 + 0.25) / 4.0);
// predict: the tables and their sums, twice each, beside the sample, its prediction and its copy.
BENCHMARK_CAPTURE(Encode, predict3, "predict(quant(3, token), context=3)", 108 / 4.0);
BENCHMARK_CAPTURE(Spilled, as_they_come, false)->UseRealTime();
BENCHMARK_CAPTURE(Spilled, prefetched, true)->UseRealTime();
BENCHMARK_CAPTURE(RoundTrip, quant4, "quant(4)", (8.5 + 4.5) / 4.0);
BENCHMARK_CAPTURE(RoundTrip, delta4, "delta(quant(4))", (14.5 + 0.5 + 2 + 2 + 4) / 4.0);

}  // namespace
}  // namespace isthmus::compress

BENCHMARK_MAIN();
