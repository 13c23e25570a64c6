// One cell of a study: the job trained to its end with the codecs of the cell, the sessions of all
// stages as threads of this process, over links in memory. Thread: RunCell on any; the observer is
// called on a session's.
#ifndef ISTHMUS_WORKER_STUDY_CELL_H_
#define ISTHMUS_WORKER_STUDY_CELL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"
#include "worker/data/corpus.h"
#include "worker/session.h"
#include "worker/study/grid.h"
#include "worker/study/step_time.h"

namespace isthmus::study {

// `job` has its defaults and explicit stages. Its `compression` codecs are replaced by the cell's,
// but for `tied` and the caps; validation is left out: it is StageLine's.
// InvalidArgument names what of the job a study can't run.
absl::StatusOr<Plan> MakeCellPlan(const JobSpec& job, const Cell& cell, int64_t train_samples);

struct CellResult {
  double loss = 0;  // mean of the last tenth of the steps, nats a token
  int64_t steps = 0;
  int64_t raw_bytes = 0;  // of all boundaries, both directions
  int64_t wire_bytes = 0;
  double encode_s = 0;  // of a step, summed over the boundaries
  double decode_s = 0;
  WireCost wire;                     // means over the run
  double seconds = 0;                // the run took
  std::vector<std::string> weights;  // safetensors of each stage
};

// One file of all tensors.
absl::StatusOr<std::string> MergeWeights(const std::vector<std::string>& files);

using StepWatcher = std::function<void(int64_t step, double loss)>;

// The status of the stage that failed first.
absl::StatusOr<CellResult> RunCell(const Plan& plan, const worker::Corpus& corpus,
                                   const worker::StageFactory& make_stage,
                                   const StepWatcher& watch);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_CELL_H_
