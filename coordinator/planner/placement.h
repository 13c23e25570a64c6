// One way to run a job: these daemons in this order with this cut, and what it costs (pricing.h):
// codecs, seconds of a step, buffers. The planner compares placements and writes the best one down
// as a Plan. Thread: values and pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PLACEMENT_H_
#define ISTHMUS_COORDINATOR_PLANNER_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/planner/cost_model.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"
#include "proto/plan/schedule.h"

namespace isthmus::coordinator {

struct BoundaryChoice {
  CodecSpec forward, backward, evaluation;
  std::string forward_why, backward_why;
  bool fits = true;                       // both directions within the compute time
  double up_s = 0, down_s = 0;            // the link is busy with one micro-batch: mean of the run
  double first_up_s = 0, again_up_s = 0;  // where samples come for the first time, where again
  double forward_codec_s = 0;             // of a core at either end, for one micro-batch ...
  double backward_codec_s = 0;
  // The backward codec codes the gradients of a step's epilogue alone, so many of them: down_s and
  // backward_core_s are then of the others, in fp32.
  bool epilogue = false;
  int epilogue_micros = 0;
  double epilogue_down_s = 0;  // of one of the epilogue
  double forward_core_s = 0;   // ... with what it takes to send or receive its bytes
  double backward_core_s = 0;
  int64_t indices_bytes = 0;  // of a `kept`: indices of one micro-batch, at either end
  LinkIndex::Link up, down;
};

struct Placement {
  std::vector<const NodeInfo*> nodes;  // by stage
  std::vector<int> layers;             // by stage
  std::vector<StageSeconds> compute;   // by stage
  std::vector<int64_t> bytes;          // by stage, with what codecs keep in memory
  // By stage on a GPU: of its host's memory, where `bytes` are the card's: the process, what it
  // reduces there with other replicas, the indices of `kept`, delta buffers.
  std::vector<int64_t> host_bytes;
  std::vector<int> warmups;  // by stage: 1F1B's warm-up forwards (proto/plan/schedule.h)
  std::string warmups_why;   // in words; empty where they are the published ones
  std::vector<BoundaryChoice> boundaries;
  std::string codecs_why;  // of `auto`: what others would take, and the price
  CodecSpec tied;
  std::string tied_why;                // of `auto`
  LinkIndex::Link tied_up, tied_down;  // with two stages or more
  DataSize data;                       // as the first stage's daemon lists it
  Remaining remaining;
  SliceShare slice;                 // of subnetworks
  double first_visits = 1;          // cost_model.h
  int64_t buffer_bytes = 0;         // delta buffers at each end of the widest boundary
  int64_t buffer_memory_bytes = 0;  // cap per boundary end that fits every daemon's memory
  int64_t spill_bytes = 0;          // of buffer_bytes, at each end, on disk
  double slowest_s = 0;             // compute of one micro-batch on the slowest stage
  std::vector<double> ahead_s;      // by stage: its last backward pass ends so long before the
                                    // pipeline does; empty: not known
  double pipeline_s = 0;            // from the first forward to the last backward pass, mean
  double sync_s = 0;                // tied exchange and vote
  double tied_s = 0;                // of sync_s, what the tied exchange's bytes take
  double optimizer_s = 0;
  double step_s = 0;           // predicted, mean of the run
  double loss = 0;             // expected of the codecs: the share that the run's loss rises by
  double price = 0;            // of the codecs, for what they lose: codec_choice.h
  double cost_s = 0;           // step_s x (1 + price): placements are compared by it
  double first_step_s = 0;     // predicted, every sample for the first time
  double again_step_s = 0;     // predicted, no sample for the first time
  std::string other_schedule;  // the one the job does not use ...
  double other_step_s = 0;     // ... and a step with it; 0: it does not fit the memory
};

// Of one boundary, from the job: "auto" or a codec.
struct WantedCodecs {
  std::string forward, backward;
};
WantedCodecs WantedCodecsOf(const JobSpec& job, int boundary);

// True if a boundary has delta buffers.
bool HasDelta(const Placement& p);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PLACEMENT_H_
