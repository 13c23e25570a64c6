#include "coordinator/planner/placement.h"

#include <algorithm>

namespace isthmus::coordinator {

WantedCodecs WantedCodecsOf(const JobSpec& job, int boundary) {
  const CompressionSpec& c = job.compression();
  WantedCodecs wanted{c.forward(), c.backward()};
  for (const BoundaryCodec& b : c.boundaries()) {
    if (b.boundary() != boundary) continue;
    if (b.has_forward()) wanted.forward = b.forward();
    if (b.has_backward()) wanted.backward = b.backward();
  }
  return wanted;
}

bool HasDelta(const Placement& p) {
  return std::any_of(p.boundaries.begin(), p.boundaries.end(),
                     [](const BoundaryChoice& b) { return HasBuffers(b.forward); });
}

}  // namespace isthmus::coordinator
