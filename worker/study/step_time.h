// How long a step would take on links of a given rate, from what was measured on this machine: the
// schedule simulated with the passes of each stage and the frames of each boundary, then the tied
// exchange and the vote. 1F1B as the planner makes it for such links. Thread: pure functions.
#ifndef ISTHMUS_WORKER_STUDY_STEP_TIME_H_
#define ISTHMUS_WORKER_STUDY_STEP_TIME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace isthmus::study {

inline constexpr double kRatesMbit[] = {5, 20, 100, 1000};

// Of one micro-batch.
struct ComputeCost {
  std::vector<double> forward_s;  // a value a stage
  std::vector<double> backward_s;
};

struct FrameCost {  // of one direction of one boundary, a micro-batch
  double wire_bytes = 0;
  double encode_s = 0;
  double decode_s = 0;
};

struct WireCost {
  std::vector<FrameCost> up;  // a value a boundary
  std::vector<FrameCost> down;
  double tied_bytes = 0;  // a step, one way
};

struct StepShape {
  std::string schedule;
  int stages = 1;
  int micros = 1;
  int queue_limit = 4;
  double delay_s = 0;  // one way
};

// Encode, wire and decode overlap from frame to frame: the slowest of them bounds the rate, their
// sum is the delay of one.
absl::StatusOr<double> StepSeconds(const StepShape& shape, const ComputeCost& compute,
                                   const WireCost& wire, double rate_bits_per_s);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_STEP_TIME_H_
