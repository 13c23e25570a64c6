// Multi-level training (the V-cycle): the phases of a job, which of them a step belongs to, and
// what happens between two of them. Steps are counted over the whole job. A job without phases is
// one phase from its first step to its last. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_PHASES_H_
#define ISTHMUS_PROTO_JOB_PHASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace isthmus {

constexpr int kMaxPhases = 64;
constexpr double kPhaseAlpha = 0.25;  // of a phase that is mixed with an earlier one of its shape

// Committed steps before phase `phase`, and after it.
int64_t PhaseStart(const JobSpec& job, int phase);
int64_t PhaseEnd(const JobSpec& job, int phase);

// Which phase trains the step after so many committed ones; at the end of the job its last one.
int PhaseAfter(const JobSpec& job, int64_t step);
// Which phase the checkpoint of `step` is of: at the end of a phase that one, not the next.
int PhaseOfCheckpoint(const JobSpec& job, int64_t step);
// A phase other than the first begins there, with weights made of those that the one before ended
// with.
bool BeginsPhase(const JobSpec& job, int64_t step);

// What a phase trains: `job`, whose defaults are filled in, with the phase's model and recipe and
// without `phases`. recipe.steps is the step that the phase ends at. strategy.stages
// holds for the largest phases, smaller ones have as many as pay; of strategy.nodes they have the
// first ones of each chain, as many as they have layers.
JobSpec PhaseJob(const JobSpec& job, int phase);

// How a phase other than the first gets its weights.
struct PhaseTransition {
  enum Kind { kCoalesce, kDecoalesce };
  Kind kind = kCoalesce;  // of what the phase before ended with
  double alpha = 1;       // kDecoalesce: share of the de-coalesced weights
  int mixed = -1;         // alpha < 1: the phase whose last weights have the other share
};
PhaseTransition TransitionInto(const JobSpec& job, int phase);

// The ends of phases, up to step `newest`, that a transition at `oldest` or later is made of:
// retention leaves them as long as a run may go on from a checkpoint of `oldest`.
std::vector<int64_t> PhaseEndsNeeded(const JobSpec& job, int64_t oldest, int64_t newest);

// "2 layers x 64" of the phase's model.
std::string PhaseShapeWords(const JobSpec& job, int phase);

// Defaults of `phases`, and of recipe.steps: their sum.
void FillPhaseDefaults(JobSpec* job);

// What is wrong with `phases`, each message starting with the field's path and a colon. Of a job
// whose defaults are filled in.
std::vector<absl::Status> PhaseErrors(const JobSpec& job);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_PHASES_H_
