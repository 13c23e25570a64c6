// The weights of a stage and what its passes compute with. Ordinary schedules have one version.
// For steps that overlap (proto/plan/overlap.h) there are three: the newest weights, which the
// optimiser moves, and those of two steps under way, each with gradients of its own. Moments are
// the same memory in all. For worker/engine alone. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_ENGINE_VERSIONS_H_
#define ISTHMUS_WORKER_ENGINE_VERSIONS_H_

#include <memory>
#include <vector>

#include "worker/engine/adamw.h"
#include "worker/engine/flat_parameters.h"
#include "worker/engine/parameters.h"

namespace isthmus::engine {

struct Version {
  std::vector<Parameter> parameters;     // in the order of StageParameters
  std::unique_ptr<FlatParameters> flat;  // on a GPU; null: each parameter by itself
};

class Versions {
 public:
  // The step that ends next, and the newest weights: without overlap the same.
  Version& ending() { return versions_[ending_]; }
  Version& newest() { return versions_[0]; }
  const Version& newest() const { return versions_[0]; }
  Version& at(int version) { return versions_[version]; }

  // What a pass computes with: a validation pass with the newest weights. `ahead`: of the step
  // after the one that ends next.
  int For(bool train, bool ahead) const {
    if (!train || ending_ == 0) return 0;
    return ahead ? 3 - ending_ : ending_;
  }

  // No pass is under way: those that follow take the newest weights, in versions of their own.
  void BeginOverlapped();

  // Moves the newest weights by the gradients of the step that ends. Passes that begin next
  // compute with them, or where `look_ahead` is not 0 with what so many more such updates would
  // make of them.
  void Update(const AdamWOptions& options, const AdamWStep& step, double look_ahead);
  // The step is skipped.
  void TakeNewest();
  // Clears the gradients of the step that ends, and goes on to the next one. Its version.
  int EndStep();

  // The newest weights were written by others.
  void Changed() {
    if (newest().flat != nullptr) newest().flat->Changed();
  }

 private:
  void Copy(int version);

  Version versions_[3];  // the newest; of two steps under way, empty until steps overlap
  int ending_ = 0;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_VERSIONS_H_
