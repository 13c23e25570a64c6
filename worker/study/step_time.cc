#include "worker/study/step_time.h"

#include <algorithm>

#include "base/status.h"
#include "proto/plan/overlap.h"
#include "proto/plan/schedule.h"

namespace isthmus::study {
namespace {

struct Transfer {
  double busy_s = 0;
  double rest_s = 0;  // what a frame spends outside the slowest part
};

Transfer TransferOf(const FrameCost& frame, double rate_bits_per_s) {
  const double wire_s = frame.wire_bytes * 8 / rate_bits_per_s;
  Transfer t;
  t.busy_s = std::max({wire_s, frame.encode_s, frame.decode_s});
  t.rest_s = wire_s + frame.encode_s + frame.decode_s - t.busy_s;
  return t;
}

}  // namespace

absl::StatusOr<double> StepSeconds(const StepShape& shape, const ComputeCost& compute,
                                   const WireCost& wire, double rate_bits_per_s) {
  ScheduleCosts costs;
  costs.forward_s = compute.forward_s;
  costs.backward_s = compute.backward_s;
  for (size_t b = 0; b < wire.up.size(); ++b) {
    const Transfer up = TransferOf(wire.up[b], rate_bits_per_s);
    const Transfer down = TransferOf(wire.down[b], rate_bits_per_s);
    costs.up_s.push_back(up.busy_s);
    costs.down_s.push_back(down.busy_s);
    costs.latency_s.push_back(shape.delay_s + std::max(up.rest_s, down.rest_s));
  }
  const std::vector<int> warmups = WarmUpForwards(costs, shape.stages, shape.micros,
                                                  shape.queue_limit, VoteFrames(shape.schedule));
  ASSIGN_OR_RETURN(const double passes_s,
                   isthmus::StepSeconds(shape.schedule, shape.stages, shape.micros, warmups,
                                        shape.queue_limit, costs));
  if (shape.stages == 1) return passes_s;
  const double tied_s = wire.tied_bytes * 8 / rate_bits_per_s + shape.delay_s;
  const double vote_s = 2 * (shape.stages - 1) * shape.delay_s;
  // Where steps overlap they travel while others compute, as long as they are shorter.
  if (Overlaps(shape.schedule)) return std::max(passes_s, tied_s);
  return passes_s + tied_s + vote_s;
}

}  // namespace isthmus::study
