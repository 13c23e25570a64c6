// A stage that can nothing: what a test's own stage begins with. Each call says Unimplemented.
// Thread: as stage.h says.
#ifndef ISTHMUS_TESTS_WORKER_BARE_STAGE_H_
#define ISTHMUS_TESTS_WORKER_BARE_STAGE_H_

#include <cstdint>
#include <vector>

#include "worker/stage.h"

namespace isthmus::worker {

class BareStage : public Stage {
 public:
  absl::StatusOr<ForwardResult> Forward(const MicroBatch&, Tensor) override { return None(); }
  absl::StatusOr<Tensor> Backward(int32_t, Tensor) override { return None(); }
  absl::StatusOr<Tensor> BackwardPiece(int32_t, int, Tensor) override { return None(); }
  int64_t Elements(GroupPlan::Tensors) const override { return 0; }
  absl::Status ReadGradient(GroupPlan::Tensors, int64_t, absl::Span<float>) override {
    return None();
  }
  absl::Status WriteGradient(GroupPlan::Tensors, int64_t, absl::Span<const float>) override {
    return None();
  }
  absl::Status TakeMomentum(GroupPlan::Tensors, int64_t, int64_t, double) override {
    return None();
  }
  std::vector<int64_t> LayerEnds() const override { return {}; }
  absl::Status BeginRounds() override { return None(); }
  absl::Status ReadDifference(GroupPlan::Tensors, int64_t, absl::Span<float>) override {
    return None();
  }
  absl::Status ApplyDifference(GroupPlan::Tensors, int64_t, absl::Span<const float>,
                               const OuterStep&) override {
    return None();
  }
  absl::Status RestoreAgreed(GroupPlan::Tensors, int64_t, int64_t) override { return None(); }
  absl::Status BeginOverlapped() override { return None(); }
  GradientNorm Norm() override { return {}; }
  absl::Status Apply(const OptimizerStep&) override { return None(); }
  void Discard() override {}
  std::vector<StageTensor> Tensors() const override { return {}; }
  absl::Status ReadTensor(int, int64_t, absl::Span<float>) override { return None(); }
  absl::Status WriteTensor(int, int64_t, absl::Span<const float>) override { return None(); }

 private:
  static absl::Status None() { return absl::UnimplementedError("a stage of a test"); }
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_BARE_STAGE_H_
