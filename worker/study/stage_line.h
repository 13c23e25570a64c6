// The stages of a plan one after the other on one thread, without links: what the study measures
// outside of training (seconds of each pass, the matrices of the rank test). Thread: one owner.
#ifndef ISTHMUS_WORKER_STUDY_STAGE_LINE_H_
#define ISTHMUS_WORKER_STUDY_STAGE_LINE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"
#include "worker/data/corpus.h"
#include "worker/session.h"
#include "worker/study/step_time.h"
#include "worker/tensor.h"

namespace isthmus::study {

struct EnergyShare {
  std::string what;   // "activation" | "activation, centred" | "activation gradient" | "weight
                      // gradient"
  std::string where;  // "b0", or the name of the weight
  double share = 0;
};

class StageLine {
 public:
  // `corpus` outlives the line.
  static absl::StatusOr<StageLine> Make(const Plan& plan, const worker::StageFactory& make_stage,
                                        const worker::Corpus& corpus);

  // The least of `repeats` passes of a micro-batch through each stage.
  absl::StatusOr<ComputeCost> MeasureCompute(int repeats);

  // Mean loss of a token over the first `samples` validation samples, uncompressed; 0 without any.
  absl::StatusOr<double> Validation(const std::string& weights, int64_t samples);

  // The rank test: shares of the largest 5 % of singular values, with the given weights, over
  // `samples` samples. Ends the line: its optimiser state is used up.
  absl::StatusOr<std::vector<EnergyShare>> Energies(const std::string& weights, int64_t samples);

 private:
  absl::Status TakeWeights(const std::string& weights);
  struct Pass {
    std::vector<worker::Tensor> activations;  // of each boundary
    std::vector<worker::Tensor> gradients;
    ComputeCost cost;
    double loss_sum = 0;
  };
  StageLine(const Plan& plan, const worker::Corpus& corpus) : plan_(plan), corpus_(corpus) {}
  // `first` is the id of the first of the samples. Without `train` the pass has no gradients.
  absl::StatusOr<Pass> Run(int64_t first, int64_t samples, bool train);
  absl::Status Backward(Pass* pass);
  absl::Status AddWeightGradients(worker::Stage* stage, std::vector<EnergyShare>* shares);

  Plan plan_;
  const worker::Corpus& corpus_;
  std::vector<std::unique_ptr<worker::Stage>> stages_;
};

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_STAGE_LINE_H_
