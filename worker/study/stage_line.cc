#include "worker/study/stage_line.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file/byte_source.h"
#include "base/status.h"
#include "worker/checkpoint/tensor_file.h"
#include "worker/study/energy.h"

namespace isthmus::study {
namespace {

using worker::Tensor;

constexpr char kMoment[] = ".exp_avg";

double Since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Least(std::vector<double>* least, const std::vector<double>& values) {
  if (least->empty()) *least = values;
  for (size_t i = 0; i < values.size(); ++i) (*least)[i] = std::min((*least)[i], values[i]);
}

double ShareOf(const Tensor& t) {
  return TopEnergyShare(t.data, t.dims.samples * t.dims.positions, t.dims.hidden);
}

Tensor Centred(Tensor t) {
  const int64_t rows = t.dims.samples * t.dims.positions, columns = t.dims.hidden;
  for (int64_t j = 0; j < columns; ++j) {
    double mean = 0;
    for (int64_t i = 0; i < rows; ++i) mean += t.data[i * columns + j];
    mean /= static_cast<double>(rows);
    for (int64_t i = 0; i < rows; ++i) t.data[i * columns + j] -= static_cast<float>(mean);
  }
  return t;
}

}  // namespace

absl::StatusOr<StageLine> StageLine::Make(const Plan& plan, const worker::StageFactory& make_stage,
                                          const worker::Corpus& corpus) {
  StageLine line(plan, corpus);
  for (int i = 0; i < plan.ranks_size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<worker::Stage> stage, make_stage(plan, i));
    line.stages_.push_back(std::move(stage));
  }
  return line;
}

absl::StatusOr<StageLine::Pass> StageLine::Run(int64_t first, int64_t samples, bool train) {
  const int64_t context = plan_.job().model().context();
  std::vector<uint32_t> tokens(samples * context), targets(samples * context);
  for (int64_t i = 0; i < samples; ++i) {
    RETURN_IF_ERROR(corpus_.Read(static_cast<uint32_t>(first + i), &tokens[i * context],
                                 &targets[i * context]));
  }
  worker::MicroBatch batch;
  batch.samples = samples;
  batch.positions = context;
  batch.loss_scale = 1.0 / static_cast<double>(samples * context);
  batch.train = train;
  const size_t count = stages_.size();
  Pass pass;
  Tensor x;
  for (size_t i = 0; i < count; ++i) {
    batch.tokens = i == 0 ? absl::MakeConstSpan(tokens) : absl::Span<const uint32_t>();
    batch.targets = i + 1 == count ? absl::MakeConstSpan(targets) : absl::Span<const uint32_t>();
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(worker::ForwardResult result, stages_[i]->Forward(batch, std::move(x)));
    pass.cost.forward_s.push_back(Since(start));
    pass.loss_sum = result.loss_sum;
    x = std::move(result.activation);
    if (i + 1 < count) pass.activations.push_back(x);
  }
  if (train) RETURN_IF_ERROR(Backward(&pass));
  return pass;
}

absl::Status StageLine::Backward(Pass* pass) {
  pass->gradients.resize(pass->activations.size());
  pass->cost.backward_s.resize(stages_.size());
  Tensor g;
  for (size_t i = stages_.size(); i-- > 0;) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(g, stages_[i]->Backward(0, std::move(g)));
    pass->cost.backward_s[i] = Since(start);
    if (i > 0) pass->gradients[i - 1] = g;
  }
  return absl::OkStatus();
}

absl::StatusOr<ComputeCost> StageLine::MeasureCompute(int repeats) {
  const int64_t samples =
      std::min<int64_t>(plan_.job().recipe().micro_batch(), corpus_.train_samples());
  ComputeCost least;
  for (int i = 0; i < repeats; ++i) {
    ASSIGN_OR_RETURN(const Pass pass, Run(0, samples, true));
    Least(&least.forward_s, pass.cost.forward_s);
    Least(&least.backward_s, pass.cost.backward_s);
    for (auto& stage : stages_) stage->Discard();
  }
  return least;
}

absl::Status StageLine::TakeWeights(const std::string& weights) {
  const MemorySource file(weights);
  for (auto& stage : stages_) {
    RETURN_IF_ERROR(worker::FillStage(
        {&file}, [](const worker::StageTensor& t) { return t.weight(); }, "weights", stage.get()));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> StageLine::Validation(const std::string& weights, int64_t samples) {
  samples = std::min(samples, corpus_.validation_samples());
  if (samples <= 0) return 0;
  RETURN_IF_ERROR(TakeWeights(weights));
  const int64_t most = plan_.job().recipe().micro_batch();
  double sum = 0;
  for (int64_t done = 0; done < samples; done += most) {
    ASSIGN_OR_RETURN(const Pass pass, Run(corpus_.train_samples() + done,
                                          std::min(most, samples - done), /*train=*/false));
    sum += pass.loss_sum;
  }
  return sum / static_cast<double>(samples * plan_.job().model().context());
}

// A fresh optimiser's first average is (1 - beta1) x gradient: the gradient up to a factor, which a
// share does not see. With a learning rate of 0 nothing else changes.
absl::Status StageLine::AddWeightGradients(worker::Stage* stage, std::vector<EnergyShare>* shares) {
  worker::OptimizerStep step;
  step.step = 1;
  RETURN_IF_ERROR(stage->Apply(step));
  const std::vector<worker::StageTensor> tensors = stage->Tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const worker::StageTensor& t = tensors[i];
    const bool block = absl::StrContains(t.name, ".h.") && t.shape.size() == 2;
    if (!block || t.weight() || !absl::EndsWith(t.name, kMoment)) continue;
    std::vector<float> values(t.elements());
    RETURN_IF_ERROR(stage->ReadTensor(static_cast<int>(i), 0, absl::MakeSpan(values)));
    shares->push_back({"weight gradient", std::string(absl::StripSuffix(t.name, kMoment)),
                       TopEnergyShare(values, t.shape[0], t.shape[1])});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EnergyShare>> StageLine::Energies(const std::string& weights,
                                                             int64_t samples) {
  RETURN_IF_ERROR(TakeWeights(weights));
  ASSIGN_OR_RETURN(const Pass pass, Run(0, std::min(samples, corpus_.train_samples()), true));
  std::vector<EnergyShare> shares;
  for (size_t b = 0; b < pass.activations.size(); ++b) {
    const std::string where = absl::StrCat("b", b);
    shares.push_back({"activation", where, ShareOf(pass.activations[b])});
    shares.push_back({"activation, centred", where, ShareOf(Centred(pass.activations[b]))});
    shares.push_back({"activation gradient", where, ShareOf(pass.gradients[b])});
  }
  for (auto& stage : stages_) RETURN_IF_ERROR(AddWeightGradients(stage.get(), &shares));
  return shares;
}

}  // namespace isthmus::study
