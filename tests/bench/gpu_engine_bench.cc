// The engine of one daemon on a GPU: tokens a second, share of the card's arithmetic, memory, and
// where the time goes. gpu_engine_torch.py beside it is the same training in plain PyTorch;
// tests/gpu/run.sh runs both in one go.
//
//   gpu_engine_bench [SHAPE [PRECISION [STAGES]]]    124m | xl, fp32 | tf32 | bf16, 1 | 2
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
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "proto/model/model_cost.h"
#include "tests/engine/pipeline.h"
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

JobSpec Job(const std::string& shape, const std::string& precision) {
  const bool xl = shape == "xl";  // GPT2-XL's width, a quarter of its layers
  JobSpec job = xl ? TinyJob(12, 1600, 25, 1024, 50304) : TinyJob(12, 768, 12, 1024, 50304);
  job.mutable_recipe()->set_micro_batch(xl ? 4 : 8);
  job.mutable_recipe()->set_global_batch(job.recipe().micro_batch() * kMicros);
  job.mutable_recipe()->set_precision(precision);
  return job;
}

class Bench {
 public:
  Bench(const JobSpec& job, int stages) : job_(job) {
    const int layers = job.model().layers();
    const Plan plan =
        MakePlan(job, stages == 1 ? std::vector<int>{layers}
                                  : std::vector<int>{layers / 2, layers - layers / 2});
    for (int i = 0; i < stages; ++i) {
      EngineOptions options;
      options.device = "cuda:0";
      stages_.push_back(Value(MakeGpt2Stage(plan, i, options)));
    }
    const int64_t tokens = Tokens() * kMicros;
    for (int64_t i = 0; i <= tokens; ++i)
      ids_.push_back(static_cast<uint32_t>(RandomBelow(1, 2, i, job.model().vocabulary())));
  }

  int64_t Tokens() const {
    return job_.recipe().micro_batch() * static_cast<int64_t>(job_.model().context());
  }

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
    std::vector<float> sum(stages_[0]->Elements(GroupPlan::TIED)), other(sum.size());
    Check(stages_[0]->ReadGradient(GroupPlan::TIED, 0, absl::MakeSpan(sum)));
    Check(stages_[1]->ReadGradient(GroupPlan::TIED, 0, absl::MakeSpan(other)));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    for (auto& stage : stages_) Check(stage->WriteGradient(GroupPlan::TIED, 0, sum));
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
  std::vector<std::unique_ptr<worker::Stage>> stages_;
  std::function<absl::StatusOr<double>()> late_loss_;
  std::vector<uint32_t> ids_;
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

void Run(const std::string& shape, const std::string& precision, int stages) {
  const JobSpec job = Job(shape, precision);
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
      "| Isthmus | %s | %s | %d | %.1f | %.0f | %.1f %% | %.2f | micro-batch %.2f ms, tied "
      "exchange %.1f, norm "
      "%.2f, optimizer %.2f | %.4f |\n",
      shape.c_str(), precision.c_str(), stages, step, tokens / step * 1e3,
      100 * flops_per_token * tokens / step * 1e3 / kPeakFlops,
      static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 30), forward, exchange, norm,
      apply, loss);
  std::fflush(stdout);
}

}  // namespace
}  // namespace isthmus::engine

int main(int argc, char** argv) {
  const char* const shape = argc > 1 ? argv[1] : "124m";
  const char* const precision = argc > 2 ? argv[2] : "bf16";
  isthmus::engine::Run(shape, precision, argc > 3 ? std::atoi(argv[3]) : 1);
}
