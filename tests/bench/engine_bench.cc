// Tokens and floating-point operations a second of the engine, without links: a training step of a
// small GPT in one stage, the parts of it, and the reference block. Counted operations are those of
// proto/model/model_cost.h.
//
//   engine_bench [--benchmark_filter=TrainStep/...]
#include <benchmark/benchmark.h>

#include <cstdio>

#include "proto/model/model_cost.h"
#include "tests/engine/pipeline.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/engine/reference_block.h"

namespace isthmus::engine {
namespace {

JobSpec Job(int hidden, int vocabulary) {
  JobSpec job = TinyJob(6, hidden, hidden / 32, 128, vocabulary);
  job.mutable_recipe()->set_global_batch(8);
  job.mutable_recipe()->set_micro_batch(4);
  return job;
}

// hidden, vocabulary, threads
void BM_TrainStep(benchmark::State& state) {
  const JobSpec job = Job(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const RecipeSpec& r = job.recipe();
  Pipeline pipeline(MakePlan(job, {6}), static_cast<int>(state.range(2)));
  int64_t step = 0;
  for (auto _ : state) pipeline.Step(step++);
  const double flops =
      StageCost(job.model(), 0, 6, r.micro_batch()).flops() * r.global_batch() / r.micro_batch();
  state.counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(r.global_batch()) * job.model().context(),
                         benchmark::Counter::kIsIterationInvariantRate);
  state.counters["flop_per_s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_TrainStep)
    ->ArgNames({"hidden", "vocabulary", "threads"})
    ->Args({128, 256, 1})
    ->Args({128, 256, 2})
    ->Args({256, 256, 1})
    ->Args({256, 256, 2})
    ->Args({256, 16384, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// A middle stage of one block, the same with the embedding below or the head above: is the cost
// model right about their proportions?
void BM_Stage(benchmark::State& state) {
  JobSpec job = Job(128, 256);
  const int stage = static_cast<int>(state.range(0)), first = 2 * stage;
  const ModelSpec& m = job.model();
  EngineOptions options;
  options.threads = 1;
  auto made = MakeGpt2Stage(MakePlan(job, {2, 2, 2}), stage, options).value();
  const int64_t samples = 4;
  const std::vector<uint32_t> ids(samples * m.context(), 7);
  const TensorDims dims{samples, m.context(), m.hidden()};
  for (auto _ : state) {
    worker::MicroBatch batch;
    batch.samples = samples;
    batch.positions = m.context();
    if (stage == 0) batch.tokens = ids;
    if (stage == 2) batch.targets = ids;
    benchmark::DoNotOptimize(
        made->Forward(batch, stage == 0 ? worker::Tensor() : worker::Tensor::Zeros(dims)).value());
    benchmark::DoNotOptimize(
        made->Backward(0, stage == 2 ? worker::Tensor() : worker::Tensor::Zeros(dims)).value());
  }
  state.counters["flop_per_s"] = benchmark::Counter(StageCost(m, first, first + 2, samples).flops(),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Stage)->ArgName("stage")->Arg(0)->Arg(1)->Arg(2)->UseRealTime()->Unit(
    benchmark::kMillisecond);

// AdamW over the parameters of a stage: with the norm, all a step costs besides its micro-batches.
void BM_Apply(benchmark::State& state) {
  const JobSpec job = Job(256, 256);
  EngineOptions options;
  options.threads = 1;
  auto stage = MakeGpt2Stage(MakePlan(job, {6}), 0, options).value();
  worker::OptimizerStep step;
  for (auto _ : state) {
    ++step.step;
    benchmark::DoNotOptimize(stage->Norm());
    benchmark::DoNotOptimize(stage->Apply(step).ok());
  }
  state.counters["parameters_per_s"] =
      benchmark::Counter(static_cast<double>(ParameterCount(job.model())),
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Apply)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_ReferenceBlock(benchmark::State& state) {
  EngineOptions options;
  options.threads = static_cast<int>(state.range(0));
  ReferenceBlock block;
  for (auto _ : state) block = MeasureReferenceBlock(options).value();
  state.counters["forward_ms"] = block.forward_s * 1e3;
  state.counters["backward_ms"] = block.backward_s * 1e3;
  state.counters["forward_flop_per_s"] = block.forward_flops / block.forward_s;
  state.counters["backward_flop_per_s"] = block.backward_flops / block.backward_s;
  state.counters["product_flop_per_s"] = block.product_flops_per_s;
}
BENCHMARK(BM_ReferenceBlock)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace isthmus::engine

BENCHMARK_MAIN();
