// Codecs on one core against memcpy and the scalar reference. Rates are bytes of a tensor in fp32 a
// second of CPU time, whatever the dtype coded.
//   codec_bench [--benchmark_filter=...]
// `moved` is what a codec must move through memory for each of these bytes, so that memcpy's rate
// of the moment x 2 / moved, `predicted`, is a bound where memory is what limits; `GB` is measured.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "benchmark/benchmark.h"
#include "compress/codec.h"
#include "compress/simd/convert.h"
#include "compress/simd/pack.h"
#include "compress/simd/quantize.h"
#include "compress/simd/quantize_delta.h"
#include "proto/codec/codec_text.h"
#include "tests/compress/reference.h"

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

// What memcpy does now, in GB/s: the median of a few copies of the sample. Measured beside every
// codec, since the machine may have other work.
double MemcpyRate(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  std::vector<double> rates(31);
  for (double& rate : rates) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(y.data(), x.data(), 4 * x.size());
    benchmark::ClobberMemory();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rate = 4e-9 * static_cast<double>(x.size()) / took.count();
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

// Side by side, in GB/s: measured, predicted from what is moved for each element, and memcpy.
void Report(double bytes_moved_per_element, const std::vector<float>& x, benchmark::State* state) {
  const double memcpy_rate = MemcpyRate(x), moved = bytes_moved_per_element / 4;
  const double predicted = 2 * memcpy_rate / moved,
               gigabytes = 4e-9 * static_cast<double>(x.size());
  using benchmark::Counter;
  state->SetBytesProcessed(static_cast<int64_t>(state->iterations() * 4 * x.size()));
  state->counters["moved"] = moved;
  state->counters["memcpy_GB/s"] = memcpy_rate;
  state->counters["predicted_GB/s"] = predicted;
  state->counters["GB"] = Counter(gigabytes, Counter::kIsIterationInvariantRate);
  state->counters["of_predicted"] =
      Counter(gigabytes / predicted, Counter::kIsIterationInvariantRate);
}

// Both ends of a codec on one sample that keeps changing.
class Ends {
 public:
  Ends(const std::string& text, DType dtype)
      : dtype_(dtype),
        encoder_(*MakeEncoder(*ParseCodec(text), Options())),
        decoder_(*MakeDecoder(*ParseCodec(text), Options())) {
    context_.sample_ids = ids_;
    context_.token_ids = Tokens();
    for (size_t i = 0; i < 2; ++i) {
      x_[i] = Input(kPositions * kHidden, i);
      in_[i].resize(x_[i].size() * DTypeBytes(dtype));
      FromFloats(x_[i].data(), x_[i].size(), dtype, in_[i].data());
    }
    out_.resize(in_[0].size());
  }

  const std::vector<float>& x() const { return x_[0]; }
  size_t payload_bytes() const { return payload_.size(); }

  void Encode(benchmark::State* state) {
    odd_ = !odd_;
    if (!encoder_->Encode({in_[odd_].data(), dtype_, Device::kCpu, dims_}, context_, &payload_)
             .ok())
      state->SkipWithError("encode");
  }
  void Decode(benchmark::State* state) {
    if (!decoder_
             ->Decode(payload_, encoder_->version(), context_,
                      {out_.data(), dtype_, Device::kCpu, dims_})
             .ok())
      state->SkipWithError("decode");
  }

 private:
  const DType dtype_;
  const TensorDims dims_{1, kPositions, kHidden};
  std::unique_ptr<Encoder> encoder_;
  std::unique_ptr<Decoder> decoder_;
  const std::vector<uint32_t> ids_ = {0};
  FrameContext context_;
  std::vector<float> x_[2];
  std::vector<char> in_[2], out_;
  std::string payload_;
  bool odd_ = false;
};

void Encode(benchmark::State& state, const std::string& text, DType dtype, double moved) {
  Ends ends(text, dtype);
  ends.Encode(&state);
  for (auto _ : state) {
    ends.Encode(&state);
    benchmark::ClobberMemory();
  }
  Report(moved, ends.x(), &state);
  state.counters["ratio"] =
      static_cast<double>(4 * ends.x().size()) / static_cast<double>(ends.payload_bytes());
}

// A stateful decoder takes each frame once: the next one is made while the clock stands.
void Decode(benchmark::State& state, const std::string& text, DType dtype, double moved) {
  Ends ends(text, dtype);
  ends.Encode(&state);
  ends.Decode(&state);
  for (auto _ : state) {
    state.PauseTiming();
    ends.Encode(&state);
    state.ResumeTiming();
    ends.Decode(&state);
    benchmark::ClobberMemory();
  }
  Report(moved, ends.x(), &state);
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

// The kernels on one row, which stays in the first-level cache: what the arithmetic alone costs.
void Kernel(benchmark::State& state, int which) {
  const Levels levels(4, false);
  const std::vector<float> x = Input(kHidden);
  const std::vector<float> inverse(kHidden, 2.0f), step(kHidden, 0.5f);
  std::vector<uint32_t> max_bits(kHidden);
  std::vector<uint16_t> m(kHidden), largest(kHidden);
  std::vector<uint8_t> codes(kHidden), packed(kHidden);
  std::vector<float> y(kHidden);
  const auto each = [](const std::vector<float>& v) { return RowScales{v.data(), 1}; };
  for (auto _ : state) {
    if (which == 0) MaxBitsInto(x.data(), kHidden, max_bits.data());
    if (which == 1) QuantizeRow(levels, x.data(), each(inverse), kHidden, codes.data());
    if (which == 2) PackCodes(codes.data(), kHidden, 4, packed.data());
    if (which == 3) PackCodes(codes.data(), kHidden, 3, packed.data());
    if (which == 4)
      QuantizeDeltaRow(levels, x.data(), each(inverse), each(step), kHidden, m.data(),
                       codes.data());
    if (which == 5) UnpackCodes(packed.data(), kHidden, 4, codes.data());
    if (which == 6) DequantizeRow(levels, codes.data(), each(step), kHidden, y.data());
    if (which == 7)
      DequantizeDeltaRow(levels, codes.data(), each(step), kHidden, m.data(), y.data());
    if (which == 8) MaxBitsOfDifferenceInto(x.data(), m.data(), kHidden, max_bits.data());
    if (which == 9) DequantizeToBf16(levels, codes.data(), step.data(), kHidden, m.data());
    if (which == 10) MaxOfBf16Into(m.data(), kHidden, largest.data());
    if (which == 12)
      DequantizeToBf16Against(levels, codes.data(), step.data(), x.data(), kHidden, m.data(),
                              max_bits.data());
    if (which == 11) QuantizeBf16(levels, m.data(), inverse.data(), kHidden, codes.data());
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
BENCHMARK_CAPTURE(Kernel, max_bits_of_difference, 8);
BENCHMARK_CAPTURE(Kernel, dequantize_to_bf16, 9);
BENCHMARK_CAPTURE(Kernel, dequantize_to_bf16_against, 12);
BENCHMARK_CAPTURE(Kernel, max_of_bf16, 10);
BENCHMARK_CAPTURE(Kernel, quantize_bf16, 11);
BENCHMARK_CAPTURE(ReferenceEncode, quant4, "quant(4)");
BENCHMARK_CAPTURE(Spilled, as_they_come, false)->UseRealTime();
BENCHMARK_CAPTURE(Spilled, prefetched, true)->UseRealTime();

// What each codec moves through memory, in bytes an element, its input and output having `e`.
void RegisterCodecs() {
  struct Case {
    const char* text;
    double encode, decode;  // without input and output
    int reads;              // of the input, to encode
  };
  const double b3 = 0.375, b4 = 0.5, b5 = 0.625;  // bytes of a code
  const Case cases[] = {
      {"bf16", 2, 2, 1},
      {"quant(4)", b4, b4, 2},
      {"quant(3)", b3, b3, 2},
      {"quant(5)", b5, b5, 2},
      {"quant(4, symmetric)", b4, b4, 2},
      // Scales of a row: found and used while it is in the cache.
      {"quant(4, token)", b4, b4, 1},
      {"quant(4, group=32)", b4 + 2 / 32., b4 + 2 / 32., 1},
      {"quant(4, group=64)", b4 + 2 / 64., b4 + 2 / 64., 1},
      {"quant(4, group=128)", b4 + 2 / 128., b4 + 2 / 128., 1},
      // The buffer is read for the scales, read and written for the codes; decoding, read and
      // written once.
      {"delta(quant(4))", 6 + b4, 4 + b4, 2},
      {"delta(quant(3))", 6 + b3, 4 + b3, 2},
      {"delta(quant(4, token))", 4 + b4, 4 + b4, 1},
      {"delta(quant(4, group=64))", 4 + b4 + 2 / 64., 4 + b4 + 2 / 64., 1},
      // The stored buffer is read and written, and in between it is there as bf16: written, read
      // and written, read; decoding, written and read.
      {"delta(quant(4), buffer=8)", 8 + b4 + 2, 4 + b4 + 2, 2},
      {"delta(quant(4), buffer=4)", 8 + b4 + 1, 4 + b4 + 1, 2},
      {"delta(quant(4), buffer=2)", 8 + b4 + 0.5, 4 + b4 + 0.5, 2},
      {"delta(quant(3), buffer=8)", 8 + b3 + 2, 4 + b3 + 2, 2},
      // The tables and their sums, twice each, beside the sample, its prediction and its copy.
      {"predict(quant(3, token), context=3)", 104, 104, 1},
  };
  const std::pair<const char*, DType> dtypes[] = {
      {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBf16}};
  for (const Case& c : cases) {
    for (const auto& [name, dtype] : dtypes) {
      const double e = static_cast<double>(DTypeBytes(dtype));
      const std::string end = std::string("/") + c.text + "/" + name;
      benchmark::RegisterBenchmark(("Encode" + end).c_str(), Encode, c.text, dtype,
                                   c.reads * e + c.encode);
      benchmark::RegisterBenchmark(("Decode" + end).c_str(), Decode, c.text, dtype, e + c.decode);
    }
  }
}

}  // namespace
}  // namespace isthmus::compress

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  isthmus::compress::RegisterCodecs();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
