// Stages of a plan driven in one process, without links: what the session does, in a few lines. For
// tests and benchmarks.
#ifndef ISTHMUS_TESTS_ENGINE_PIPELINE_H_
#define ISTHMUS_TESTS_ENGINE_PIPELINE_H_

#include <memory>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "worker/engine/engine_options.h"
#include "worker/stage.h"

namespace isthmus::engine {

// A job with its defaults: recipe.global_batch 5, micro_batch 2 (the last micro-batch is smaller).
JobSpec TinyJob(int layers = 4, int hidden = 32, int heads = 4, int context = 16,
                int vocabulary = 50);

// `cut` has the number of layers of each stage.
Plan MakePlan(const JobSpec& job, const std::vector<int>& cut);

class Pipeline {
 public:
  explicit Pipeline(const Plan& plan, int threads = 1, const std::string& device = "cpu");
  // Each stage where its options say; the last options are those of all stages beyond.
  Pipeline(const Plan& plan, const std::vector<EngineOptions>& options);

  // One step on the samples of `step`; returns the mean loss of a token before it. `interleaved`:
  // each backward pass right after its forward pass (1F1B on the last stage), else all forward
  // passes first (GPipe).
  double Step(int64_t step, bool interleaved = false);
  // Forward passes only.
  double Loss(int64_t step);
  // Forward and backward passes and the tied exchange, no optimiser step. The gradients stay.
  double Gradients(int64_t step, bool interleaved = false);
  void Apply(int64_t step, double learning_rate);

  // Merged over the stages by name.
  std::string ExportWeights();
  std::string ExportOptimizer();
  void Import(const std::string& weights, const std::string& optimizer);

  worker::Stage& stage(int i) { return *stages_[i]; }
  int size() const { return static_cast<int>(stages_.size()); }

 private:
  struct Micro;
  std::vector<Micro> Micros(int64_t step) const;
  double Forward(const Micro& micro, bool train);
  void Backward(const Micro& micro);
  std::string Merge(bool weights);

  Plan plan_;
  std::vector<std::unique_ptr<worker::Stage>> stages_;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_TESTS_ENGINE_PIPELINE_H_
