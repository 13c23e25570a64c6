// The phases of a job in words, for `isthmus plan`. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PHASE_WORDS_H_
#define ISTHMUS_COORDINATOR_PLANNER_PHASE_WORDS_H_

#include <string>

#include "proto/job.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// Of a step of `plan`, as its codecs make them of tensors: what boundaries and groups send. Zstd is
// not counted.
double StepBytes(const Plan& plan);

// The codecs of its boundaries, each pair once: "quant(4) and quant(6), none and none".
std::string CodecWords(const Plan& plan);

// Floating-point operations of all phases against as many steps of the largest one.
std::string WorkWords(const JobSpec& job);

// The phase that `plan` is of: its model, stages, codecs, time and bytes.
std::string PhaseLine(const JobSpec& job, const Plan& plan);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PHASE_WORDS_H_
