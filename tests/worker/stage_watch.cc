#include "tests/worker/stage_watch.h"

#include <utility>

#include "base/status.h"

namespace isthmus::worker {

class StageWatch::Watched : public Stage {
 public:
  Watched(StageWatch* watch, std::unique_ptr<Stage> stage, int index, int stages, int64_t step)
      : watch_(watch),
        stage_(std::move(stage)),
        index_(index),
        last_(index + 1 == stages),
        step_(step) {}

  absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor input) override {
    if (batch.train && index_ > 0) {
      MutexLock lock(&watch_->mutex_);
      watch_->passages_[{index_ - 1, step_, batch.micro}].activation = input;
    }
    ASSIGN_OR_RETURN(ForwardResult result, stage_->Forward(batch, std::move(input)));
    if (batch.train && !last_) {
      MutexLock lock(&watch_->mutex_);
      watch_->passages_[{index_, step_, batch.micro}].activation_below = result.activation;
    }
    return result;
  }
  absl::StatusOr<Tensor> Backward(int32_t micro, Tensor gradient) override {
    if (!last_) {
      MutexLock lock(&watch_->mutex_);
      watch_->passages_[{index_, step_, micro}].gradient_received = gradient;
    }
    ASSIGN_OR_RETURN(Tensor below, stage_->Backward(micro, std::move(gradient)));
    if (index_ > 0) {
      MutexLock lock(&watch_->mutex_);
      watch_->passages_[{index_ - 1, step_, micro}].gradient_above = below;
    }
    return below;
  }
  absl::StatusOr<Tensor> BackwardPiece(int32_t micro, int piece, Tensor gradient) override {
    return stage_->BackwardPiece(micro, piece, std::move(gradient));  // not watched
  }
  int64_t Elements(GroupPlan::Tensors set) const override { return stage_->Elements(set); }
  absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first, absl::Span<float> out) override {
    return stage_->ReadGradient(set, first, out);
  }
  absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                             absl::Span<const float> in) override {
    return stage_->WriteGradient(set, first, in);
  }
  absl::Status TakeMomentum(GroupPlan::Tensors set, int64_t first, int64_t size,
                            double share) override {
    return stage_->TakeMomentum(set, first, size, share);
  }
  absl::Status BeginRounds() override { return stage_->BeginRounds(); }
  absl::Status ReadDifference(GroupPlan::Tensors set, int64_t first,
                              absl::Span<float> out) override {
    return stage_->ReadDifference(set, first, out);
  }
  std::vector<int64_t> LayerEnds() const override { return stage_->LayerEnds(); }
  absl::Status ApplyDifference(GroupPlan::Tensors set, int64_t first, absl::Span<const float> d,
                               const OuterStep& step) override {
    return stage_->ApplyDifference(set, first, d, step);
  }
  absl::Status RestoreAgreed(GroupPlan::Tensors set, int64_t first, int64_t size) override {
    return stage_->RestoreAgreed(set, first, size);
  }
  absl::Status BeginOverlapped() override { return stage_->BeginOverlapped(); }
  GradientNorm Norm() override { return stage_->Norm(); }
  absl::Status Apply(const OptimizerStep& step) override {
    ++step_;
    RETURN_IF_ERROR(stage_->Apply(step));
    if (!watch_->keeps_weights_) return absl::OkStatus();
    std::vector<float> weights;
    const std::vector<StageTensor> tensors = stage_->Tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].weight()) continue;
      const size_t at = weights.size();
      weights.resize(at + tensors[i].elements());
      RETURN_IF_ERROR(
          stage_->ReadTensor(static_cast<int>(i), 0, absl::MakeSpan(weights).subspan(at)));
    }
    MutexLock lock(&watch_->mutex_);
    watch_->weights_[index_] = std::move(weights);
    return absl::OkStatus();
  }
  void Discard() override {
    ++step_;
    stage_->Discard();
  }
  std::vector<StageTensor> Tensors() const override { return stage_->Tensors(); }
  absl::Status ReadTensor(int i, int64_t first, absl::Span<float> out) override {
    return stage_->ReadTensor(i, first, out);
  }
  absl::Status WriteTensor(int i, int64_t first, absl::Span<const float> in) override {
    return stage_->WriteTensor(i, first, in);
  }

 private:
  StageWatch* const watch_;
  const std::unique_ptr<Stage> stage_;
  const int index_;
  const bool last_;
  int64_t step_;
};

StageFactory StageWatch::Around(StageFactory inner) {
  return [this, inner](const Plan& plan, int stage) -> absl::StatusOr<std::unique_ptr<Stage>> {
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> made, inner(plan, stage));
    return std::make_unique<Watched>(this, std::move(made), stage, plan.ranks_size(),
                                     plan.start_step());
  };
}

}  // namespace isthmus::worker
