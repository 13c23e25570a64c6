// recipe.recompute: a pass keeps the inputs of its layers and no graph, and trains to the same bits
// as one that keeps everything.
#include "worker/engine/layer_passes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/pipeline.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {
namespace {

JobSpec Recomputing(JobSpec job, bool recompute = true) {
  job.mutable_recipe()->set_recompute(recompute);
  return job;
}

struct Outcome {
  std::vector<double> losses;
  std::string weights, moments;
  bool operator==(const Outcome& o) const {
    return losses == o.losses && weights == o.weights && moments == o.moments;
  }
};

Outcome Train(const JobSpec& job, const std::vector<int>& cut, bool as_on_gpu, bool interleaved) {
  Pipeline pipeline(MakePlan(job, cut), {EngineOptions{"cpu", 1, as_on_gpu}});
  Outcome out;
  for (int64_t step = 0; step < 4; ++step) out.losses.push_back(pipeline.Step(step, interleaved));
  out.losses.push_back(pipeline.Loss(9));
  out.weights = pipeline.ExportWeights();
  out.moments = pipeline.ExportOptimizer();
  return out;
}

TEST(Recompute, TrainsToTheSameBitsWhateverTheCut) {
  for (const bool as_on_gpu : {false, true}) {
    for (const bool tied : {true, false}) {
      JobSpec job = TinyJob();
      job.mutable_model()->set_tied(tied);
      for (const std::vector<int>& cut : {std::vector<int>{4}, {2, 2}, {1, 2, 1}}) {
        for (const bool interleaved : {false, true}) {
          const Outcome kept = Train(Recomputing(job, false), cut, as_on_gpu, interleaved);
          EXPECT_LT(kept.losses[3], kept.losses[0]);
          EXPECT_TRUE(Train(Recomputing(job), cut, as_on_gpu, interleaved) == kept)
              << cut.size() << " stages, tied " << tied << ", as on a GPU " << as_on_gpu;
        }
      }
    }
  }
}

Version ParametersOf(const ModelSpec& model, int first, int end) {
  Version version;
  for (ParameterSpec& spec : StageParameters(model, first, end)) {
    Parameter p;
    p.value = at::empty(spec.shape, at::kFloat);
    FillInitial(spec, 1, p.value.data_ptr<float>());
    p.spec = std::move(spec);
    p.operand = p.value.requires_grad_(true);
    version.parameters.push_back(std::move(p));
  }
  return version;
}

TEST(Recompute, KeepsTheInputsOfLayersAndNoGraphBetweenThem) {
  const ModelSpec model = TinyJob(6).model();
  for (const int end : {4, 6}) {
    LayerPasses passes({model, 1, end, {}, /*recompute=*/true});
    Version version = ParametersOf(model, 1, end);
    PassInputs in;
    in.activation = at::full({2, 16, 32}, 0.5);
    in.targets = at::full({2, 16}, 7, at::kLong);
    Pass pass;
    passes.Forward(true, in, nullptr, &version, &pass);
    ASSERT_EQ(pass.layer_inputs.size(), end - 1);
    for (const at::Tensor& x : pass.layer_inputs) {
      EXPECT_FALSE(x.requires_grad());
      EXPECT_EQ(x.sizes(), in.activation.sizes());
    }
    EXPECT_TRUE(pass.cuts.empty());
    // The head's own graph ends at what the layers gave.
    EXPECT_EQ(pass.output.defined(), end == 6);
    EXPECT_EQ(pass.top.defined() && pass.top.is_leaf(), end == 6);
    const at::Tensor gradient = end == 6 ? at::Tensor() : at::full({2, 16, 32}, 0.1);
    const at::Tensor below = passes.Backward(gradient, nullptr, &version, &pass);
    EXPECT_EQ(below.sizes(), in.activation.sizes());
    EXPECT_TRUE(pass.layer_inputs.empty());
    for (const Parameter& p : version.parameters)
      EXPECT_TRUE(p.value.grad().defined()) << p.spec.name;
  }
}

TEST(Recompute, AValidationPassKeepsNothing) {
  const ModelSpec model = TinyJob().model();
  LayerPasses passes({model, 0, 4, {}, /*recompute=*/true});
  Version version = ParametersOf(model, 0, 4);
  PassInputs in;
  in.tokens = in.targets = at::full({2, 16}, 7, at::kLong);
  Pass pass;
  const c10::AutoGradMode no_gradients(false);
  passes.Forward(false, in, nullptr, &version, &pass);
  EXPECT_TRUE(pass.layer_inputs.empty());
  EXPECT_FALSE(pass.bottom.defined());
}

}  // namespace
}  // namespace isthmus::engine
