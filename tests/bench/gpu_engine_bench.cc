// The engine of one daemon on a GPU: tokens a second, share of the card's arithmetic, memory, and
// where the time goes. gpu_engine_torch.py beside it is the same training in plain PyTorch;
// tests/gpu/run.sh runs both in one go.
//
//   gpu_engine_bench [SHAPE [PRECISION [STAGES [recompute]]]]    124m | xl | xl48,
//                                        fp32 | tf32 | bf16, 1 | 2; recompute: recipe.recompute
//   gpu_engine_bench SHAPE start FILE    the weights and tokens that it begins with, for
//                                        gpu_engine_torch.py: losses can then be compared
//   ISTHMUS_PROFILE=1: cudaProfilerStart and Stop around one micro-batch, for ncu
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/safetensors.h"
#include "proto/model/model_cost.h"
#include "tests/engine/pipeline.h"
#include "worker/engine/device_lane.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::engine {
namespace {

constexpr int kMicros = 8;
constexpr int kSteps = 5;
constexpr double kPeakFlops = 989e12;  // dense bf16 of an H100 or H200, by the data sheet

using Clock = std::chrono::steady_clock;

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

JobSpec Job(const std::string& shape, const std::string& precision, bool recompute = false) {
  // GPT2-XL's width, with a quarter of its layers or all of them.
  const bool xl = shape != "124m";
  JobSpec job = xl ? TinyJob(shape == "xl48" ? 48 : 12, 1600, 25, 1024, 50304)
                   : TinyJob(12, 768, 12, 1024, 50304);
  job.mutable_recipe()->set_micro_batch(xl ? 4 : 8);
  job.mutable_recipe()->set_global_batch(job.recipe().micro_batch() * kMicros);
  job.mutable_recipe()->set_precision(precision);
  job.mutable_recipe()->set_recompute(recompute);
  return job;
}

int64_t TokensOfMicro(const JobSpec& job) {
  return job.recipe().micro_batch() * static_cast<int64_t>(job.model().context());
}

std::vector<uint32_t> Ids(const JobSpec& job) {
  std::vector<uint32_t> ids;
  for (int64_t i = 0; i <= TokensOfMicro(job) * kMicros; ++i)
    ids.push_back(static_cast<uint32_t>(RandomBelow(1, 2, i, job.model().vocabulary())));
  return ids;
}

void WriteStart(const JobSpec& job, const char* path) {
  std::vector<std::string> data;
  std::vector<SafetensorsItem> items;
  const std::vector<ParameterSpec> specs = StageParameters(job.model(), 0, job.model().layers());
  data.reserve(specs.size() + 1);
  for (const ParameterSpec& spec : specs) {
    std::string& bytes = data.emplace_back(spec.elements() * sizeof(float), '\0');
    FillInitial(spec, job.seed(), reinterpret_cast<float*>(&bytes[0]));
    items.push_back({spec.name, "F32", spec.shape, bytes});
  }
  const std::vector<uint32_t> ids = Ids(job);
  const auto count = static_cast<int64_t>(ids.size());
  data.emplace_back(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint32_t));
  items.push_back({"ids", "I32", {count}, data.back()});
  std::ofstream(path, std::ios::binary) << Value(WriteSafetensors(std::move(items), {}));
}

class Bench {
 public:
  Bench(const JobSpec& job, int stages) : job_(job), ids_(Ids(job)) {
    lane_ = Value(MakeDeviceLane({"cuda:0", 0, false}));
    const int layers = job.model().layers();
    const Plan plan =
        MakePlan(job, stages == 1 ? std::vector<int>{layers}
                                  : std::vector<int>{layers / 2, layers - layers / 2});
    for (int i = 0; i < stages; ++i) {
      EngineOptions options;
      options.device = "cuda:0";
      stages_.push_back(Value(MakeGpt2Stage(plan, i, options)));
    }
  }

  int64_t Tokens() const { return TokensOfMicro(job_); }

  void Forward(int32_t micro) {
    worker::MicroBatch batch;
    batch.micro = micro;
    batch.samples = job_.recipe().micro_batch();
    batch.positions = job_.model().context();
    batch.late_loss = true;
    batch.loss_scale = 1.0 / static_cast<double>(Tokens() * kMicros);
    worker::ForwardResult result;
    for (size_t i = 0; i < stages_.size(); ++i) {
      batch.tokens = i == 0 ? absl::MakeConstSpan(ids_).subspan(micro * Tokens(), Tokens())
                            : absl::Span<const uint32_t>();
      batch.targets = i + 1 == stages_.size()
                          ? absl::MakeConstSpan(ids_).subspan(micro * Tokens() + 1, Tokens())
                          : absl::Span<const uint32_t>();
      result = Value(stages_[i]->Forward(batch, std::move(result.activation)));
    }
    late_loss_ = std::move(result.late_loss);
  }

  // The mean loss of a token before it.
  double Backward(int32_t micro) {
    worker::Tensor gradient;
    for (size_t i = stages_.size(); i-- > 0;)
      gradient = Value(stages_[i]->Backward(micro, std::move(gradient)));
    return Value(late_loss_()) / static_cast<double>(Tokens());
  }

  void Exchange() {
    if (stages_.size() == 1) return;
    const TensorDims dims{1, job_.model().vocabulary(), job_.model().hidden()};
    worker::Tensor sum = Value(stages_[0]->OnDevice()->CopyGradient(GroupPlan::TIED, 0, dims));
    Check(lane_->Add(Value(stages_[1]->OnDevice()->CopyGradient(GroupPlan::TIED, 0, dims)), &sum));
    for (auto& stage : stages_) Check(stage->OnDevice()->PutGradient(GroupPlan::TIED, 0, sum));
  }

  double Norm() {
    double squares = 0;
    for (auto& stage : stages_) squares += stage->Norm().sum_squares;
    return squares;
  }

  void Apply(double squares) {
    worker::OptimizerStep step;
    step.step = ++steps_;
    step.learning_rate = 3e-4;
    step.gradient_scale = std::min(1.0, 1.0 / std::sqrt(squares));
    for (auto& stage : stages_) Check(stage->Apply(step));
  }

  double Step() {
    double loss = 0;
    for (int micro = 0; micro < kMicros; ++micro) {
      Forward(micro);
      loss += Backward(micro) / kMicros;
    }
    Exchange();
    Apply(Norm());
    return loss;
  }

 private:
  JobSpec job_;
  std::unique_ptr<worker::DeviceLane> lane_;
  std::vector<std::unique_ptr<worker::Stage>> stages_;
  std::function<absl::StatusOr<double>()> late_loss_;
  const std::vector<uint32_t> ids_;
  int64_t steps_ = 0;
};

// Median of the milliseconds of `f`, the device's work among them.
double Milliseconds(int rounds, const std::function<void()>& f) {
  std::vector<double> ms;
  for (int i = 0; i < rounds; ++i) {
    cudaDeviceSynchronize();
    const Clock::time_point start = Clock::now();
    f();
    cudaDeviceSynchronize();
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  return ms[ms.size() / 2];
}

// What the planner counts.
double PredictedGib(const JobSpec& job, int stages) {
  const ModelSpec& m = job.model();
  int64_t bytes = 0;
  for (int s = 0; s < stages; ++s) {
    bytes += CardMemoryBytes(m, job.recipe().precision() == "bf16", s * m.layers() / stages,
                             (s + 1) * m.layers() / stages, job.recipe().micro_batch(), 1, {},
                             job.recipe().recompute());
  }
  return static_cast<double>(bytes) / (1 << 30);
}

void Run(const std::string& shape, const std::string& precision, int stages, bool recompute) {
  const JobSpec job = Job(shape, precision, recompute);
  Bench bench(job, stages);
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss = bench.Step();
  if (std::getenv("ISTHMUS_PROFILE") != nullptr) {
    cudaProfilerStart();
    bench.Forward(0);
    bench.Backward(0);
    bench.Apply(bench.Norm());
    cudaDeviceSynchronize();
    cudaProfilerStop();
    return;
  }
  const double step = Milliseconds(kSteps, [&] { loss = bench.Step(); });
  const double forward = Milliseconds(kSteps, [&] { bench.Forward(0), bench.Backward(0); });
  const double exchange = Milliseconds(3, [&] { bench.Exchange(); });
  const double norm = Milliseconds(kSteps, [&] { bench.Norm(); });
  const double apply = Milliseconds(kSteps, [&] { bench.Apply(1); });
  const double tokens = static_cast<double>(bench.Tokens()) * kMicros;
  const ModelSpec& m = job.model();
  const double flops_per_token =
      6.0 * static_cast<double>(ParameterCount(m)) + 12.0 * m.layers() * m.hidden() * m.context();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  std::printf(
      "| Isthmus%s | %s | %s | %d | %.1f | %.0f | %.1f %% | %.2f (%.2f predicted) | micro-batch "
      "%.2f ms, tied "
      "exchange %.1f, norm "
      "%.2f, optimizer %.2f | %.4f |\n",
      recompute ? ", recompute" : "", shape.c_str(), precision.c_str(), stages, step,
      tokens / step * 1e3, 100 * flops_per_token * tokens / step * 1e3 / kPeakFlops,
      static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 30), PredictedGib(job, stages),
      forward, exchange, norm, apply, loss);
  std::fflush(stdout);
}

}  // namespace
}  // namespace isthmus::engine

int main(int argc, char** argv) {
  const char* const shape = argc > 1 ? argv[1] : "124m";
  const char* const precision = argc > 2 ? argv[2] : "bf16";
  if (argc > 3 && std::strcmp(precision, "start") == 0) {
    isthmus::engine::WriteStart(isthmus::engine::Job(shape, "bf16"), argv[3]);
    return 0;
  }
  isthmus::engine::Run(shape, precision, argc > 3 ? std::atoi(argv[3]) : 1,
                       argc > 4 && std::strcmp(argv[4], "recompute") == 0);
}
