// The parameters of a stage on a GPU, in four long runs of memory (values, gradients, two moments):
// the norm, the optimizer and clearing the gradients are then a launch or two each, whatever the
// number of parameters. A fifth run holds the bf16 copies that products take in that precision,
// made once a step.
//
// The caller's parameters become views: value, its grad() (never undefined), the moments, and
// `operand`, the leaf of the graph. For worker/engine alone. Thread: the compute thread; on a GPU
// everything is queued, and nothing but SumOfSquares waits.
#ifndef ISTHMUS_WORKER_ENGINE_FLAT_PARAMETERS_H_
#define ISTHMUS_WORKER_ENGINE_FLAT_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/parameters.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {

class FlatParameters {
 public:
  // Moves the values of `parameters`, which outlives this, to `device`; moments and gradients are
  // zero. Each parameter's `in_products` says whether bf16 reaches it.
  FlatParameters(c10::Device device, Precision precision, std::vector<Parameter>* parameters);

  // A second set of values and gradients, for `parameters`: those of `first`, with whose moments it
  // shares the memory. Equal values.
  FlatParameters(const FlatParameters& first, std::vector<Parameter>* parameters);

  // Takes the values of another set of the same parameters.
  void Take(const FlatParameters& from);
  // From the values before an update and those after it: what `share` of the same would make next.
  void Forecast(const FlatParameters& after, double share);

  // Before the products of a step: copies values that have changed.
  void Refresh();
  void Changed() { changed_ = true; }

  // After each backward pass: adds the gradients of the bf16 copies to those of the values.
  void AddUp();

  double SumOfSquares(bool with_tied) const;
  // `gradients`: this, or another set of the same parameters.
  void Update(const AdamWOptions& options, const AdamWStep& step, const FlatParameters& gradients);
  void ClearGradients();

 private:
  // Which parameters lie beside each other: those of a group have one rule.
  enum Group { kDecay, kNoDecay, kDealtDecay, kDealtNoDecay, kTied, kGroups };
  static Group GroupOf(const Parameter& p);
  void MakeViews();

  std::vector<Parameter>* parameters_;
  at::Tensor values_, gradients_, averages_, averages_of_squares_;
  at::Tensor copies_;  // bf16; undefined in other precisions
  int64_t begin_[kGroups + 1] = {};
  bool changed_ = true;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_FLAT_PARAMETERS_H_
