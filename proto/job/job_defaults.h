// Defaults and checks of a JobSpec that need no file name or line (those live with the YAML
// mapping). Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_JOB_DEFAULTS_H_
#define ISTHMUS_PROTO_JOB_JOB_DEFAULTS_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/model/family.h"

namespace isthmus {

// Sets every optional field that is not set to the default job.proto names. `compression.*` may
// still be "auto", and model.norm_epsilon unset where a model is read in (init_from): it is then
// that model's.
void FillDefaults(JobSpec* job);

// strategy.stages, or as many as strategy.layers_per_stage names; 0: the planner chooses.
inline int WantedStages(const StrategySpec& strategy) {
  return strategy.stages() != 0 ? strategy.stages() : strategy.layers_per_stage_size();
}

// strategy.local_steps: replicas may be so far apart. The coordinator holds their records until a
// step is whole.
constexpr int kMaxLocalSteps = 4000;

// recipe.optimizer.
inline constexpr char kAdamW[] = "adamw", kQuantizedAdam[] = "quantized_adam";

// Of the layer norms: what the job says, else the default.
double NormEpsilon(const ModelSpec& model);
// The head shares the token embedding's weights: model.tied, and so it is where the job says
// nothing.
inline bool IsTied(const ModelSpec& model) {
  return !IsMlp(model) && (!model.has_tied() || model.tied());
}
constexpr double kMinNormEpsilon = 1e-12, kMaxNormEpsilon = 1;

// InvalidArgument names the first field that is missing or out of range, its value, and what is
// allowed.
absl::Status ValidateJob(const JobSpec& job);

// Every such error, each message starting with the field's path and a colon; empty: the job is
// valid.
std::vector<absl::Status> JobErrors(const JobSpec& job);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_JOB_DEFAULTS_H_
