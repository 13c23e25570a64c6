#include "tests/engine/pipeline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "base/safetensors.h"
#include "proto/job/job_defaults.h"
#include "tests/worker/stage_files.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::engine {
namespace {

using worker::MicroBatch;
using worker::Tensor;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

}  // namespace

struct Pipeline::Micro {
  MicroBatch batch;
  std::vector<uint32_t> tokens, targets;
};

JobSpec TinyJob(int layers, int hidden, int heads, int context, int vocabulary) {
  JobSpec job;
  job.set_name("tiny");
  job.mutable_data()->set_path("none.bin");
  ModelSpec* m = job.mutable_model();
  m->set_layers(layers);
  m->set_hidden(hidden);
  m->set_heads(heads);
  m->set_context(context);
  m->set_vocabulary(vocabulary);
  RecipeSpec* r = job.mutable_recipe();
  r->set_steps(20);
  r->set_global_batch(5);
  r->set_micro_batch(2);
  r->set_learning_rate(3e-3);
  FillDefaults(&job);
  Check(ValidateJob(job));
  return job;
}

Plan MakePlan(const JobSpec& job, const std::vector<int>& cut) {
  Plan plan;
  plan.set_job_id("test");
  plan.set_generation(1);
  *plan.mutable_job() = job;
  int layer = 0;
  for (size_t i = 0; i < cut.size(); ++i) {
    RankPlan* s = plan.add_ranks();
    s->set_stage(static_cast<int>(i));
    s->set_first_layer(layer);
    layer += cut[i];
    s->set_end_layer(layer);
  }
  return plan;
}

Pipeline::Pipeline(const Plan& plan, int threads, const std::string& device)
    : Pipeline(plan, {EngineOptions{device, threads, false}}) {}

Pipeline::Pipeline(const Plan& plan, const std::vector<EngineOptions>& options) : plan_(plan) {
  for (int i = 0; i < plan.ranks_size(); ++i) {
    const size_t which = std::min<size_t>(i, options.size() - 1);
    stages_.push_back(Value(MakeGpt2Stage(plan, i, options[which])));
  }
}

// Text with something to learn: runs of consecutive ids with a random start and a little noise.
std::vector<Pipeline::Micro> Pipeline::Micros(int64_t step) const {
  const RecipeSpec& r = plan_.job().recipe();
  const ModelSpec& m = plan_.job().model();
  std::vector<Micro> micros;
  for (int at = 0; at < r.global_batch(); at += r.micro_batch()) {
    Micro micro;
    micro.batch.micro = static_cast<int32_t>(micros.size());
    micro.batch.samples = std::min(r.micro_batch(), r.global_batch() - at);
    micro.batch.positions = m.context();
    micro.batch.loss_scale = 1.0 / (static_cast<double>(r.global_batch()) * m.context());
    for (int64_t s = 0; s < micro.batch.samples; ++s) {
      const uint64_t sample = step * r.global_batch() + at + s;
      const uint64_t start = RandomBelow(17, 0, sample, m.vocabulary());
      std::vector<uint32_t> text;
      for (int64_t i = 0; i <= m.context(); ++i) {
        const bool noise = RandomBelow(17, 1 + sample, i, 10) == 0;
        text.push_back(noise ? RandomBelow(18, 1 + sample, i, m.vocabulary())
                             : (start + i) % m.vocabulary());
      }
      micro.tokens.insert(micro.tokens.end(), text.begin(), text.end() - 1);
      micro.targets.insert(micro.targets.end(), text.begin() + 1, text.end());
    }
    micros.push_back(std::move(micro));
  }
  return micros;
}

double Pipeline::Forward(const Micro& micro, bool train) {
  Tensor activation;
  double loss = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    MicroBatch batch = micro.batch;
    batch.train = train;
    if (i == 0) batch.tokens = micro.tokens;
    if (i + 1 == stages_.size()) batch.targets = micro.targets;
    worker::ForwardResult result = Value(stages_[i]->Forward(batch, std::move(activation)));
    activation = std::move(result.activation);
    loss = result.loss_sum;
  }
  return loss * micro.batch.loss_scale;
}

void Pipeline::Backward(const Micro& micro) {
  Tensor gradient;
  for (size_t i = stages_.size(); i-- > 0;)
    gradient = Value(stages_[i]->Backward(micro.batch.micro, std::move(gradient)));
}

double Pipeline::Loss(int64_t step) {
  double loss = 0;
  for (const Micro& micro : Micros(step)) loss += Forward(micro, false);
  return loss;
}

double Pipeline::Gradients(int64_t step, bool interleaved) {
  double loss = 0;
  const std::vector<Micro> micros = Micros(step);
  for (const Micro& micro : micros) {
    loss += Forward(micro, true);
    if (interleaved) Backward(micro);
  }
  for (const Micro& micro : micros) {
    if (!interleaved) Backward(micro);
  }
  if (stages_.front()->Elements(GroupPlan::TIED) > 0) {
    std::vector<float> sum(stages_.front()->Elements(GroupPlan::TIED)), other = sum;
    Check(stages_.front()->ReadGradient(GroupPlan::TIED, 0, absl::MakeSpan(sum)));
    Check(stages_.back()->ReadGradient(GroupPlan::TIED, 0, absl::MakeSpan(other)));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    Check(stages_.front()->WriteGradient(GroupPlan::TIED, 0, sum));
    Check(stages_.back()->WriteGradient(GroupPlan::TIED, 0, sum));
  }
  return loss;
}

void Pipeline::Apply(int64_t step, double learning_rate) {
  double squares = 0;
  for (auto& stage : stages_) squares += stage->Norm().sum_squares;
  worker::OptimizerStep optimizer;
  optimizer.step = step + 1;
  optimizer.learning_rate = learning_rate;
  const double clip = plan_.job().recipe().clip_norm();
  if (clip > 0) optimizer.gradient_scale = std::min(1.0, clip / std::sqrt(squares));
  for (auto& stage : stages_) Check(stage->Apply(optimizer));
}

double Pipeline::Step(int64_t step, bool interleaved) {
  const double loss = Gradients(step, interleaved);
  Apply(step, plan_.job().recipe().learning_rate());
  return loss;
}

std::string Pipeline::Merge(bool weights) {
  std::vector<std::string> files;
  for (auto& stage : stages_) files.push_back(weights ? WeightsOf(*stage) : OptimizerOf(*stage));
  std::vector<SafetensorsItem> items;
  for (const std::string& file : files) {
    for (const auto& [name, entry] : Value(ParseSafetensors(file)))
      items.push_back({name, entry.dtype, entry.shape, entry.data});
  }
  return Value(WriteSafetensors(std::move(items), {{"format", "pt"}}));
}

std::string Pipeline::ExportWeights() { return Merge(true); }
std::string Pipeline::ExportOptimizer() { return Merge(false); }

void Pipeline::Import(const std::string& weights, const std::string& optimizer) {
  for (auto& stage : stages_) {
    if (!weights.empty()) Check(TakeWeights(weights, stage.get()));
    if (!optimizer.empty()) Check(TakeOptimizer(optimizer, stage.get()));
  }
}

}  // namespace isthmus::engine
