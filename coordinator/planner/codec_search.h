// Which codecs `compression: auto` takes on all boundaries together: those for which predicted step
// time x (1 + price) is the least, as far as it was searched.
//
// A second of a link counts little in a step where transfers are hidden behind the compute (fill
// and drain alone), and once for each micro-batch where the link is the slowest part. So each
// boundary takes, for a few weights, the codecs of least weight x link seconds + price x step time;
// what all boundaries take at one weight is priced as a whole, and the best of these is improved by
// changing one direction at a time. Token ids travel with the predicts from the first stage on: a
// predict needs one on every boundary below, and a backward one the forward one beside it.
// Deterministic; between equals the milder. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_CODEC_SEARCH_H_
#define ISTHMUS_COORDINATOR_PLANNER_CODEC_SEARCH_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/planner/codec_choice.h"

namespace isthmus::coordinator {

// How hard is looked: a placement among many is priced at two weights (and once for each boundary
// that would pass token ids on to nobody), the chosen one at all, and then direction by direction.
enum class Effort { kQuick, kThorough };

// With more, one direction at a time is not tried: what it gains is little, and its time is not.
constexpr int kMaxImprovedBoundaries = 12;
constexpr int kMaxPricings = 360;  // of one search

struct BoundaryOptions {
  std::vector<CodecOption> forward, backward;       // at least one each
  std::string forward_left_out, backward_left_out;  // of `auto`, in words
};

struct CodecPick {  // indices
  size_t forward = 0;
  size_t backward = 0;
  bool epilogue = false;  // compression.backward_when auto: backward codes the epilogue alone
  bool operator==(const CodecPick& other) const {
    return forward == other.forward && backward == other.backward && epilogue == other.epilogue;
  }
};
using CodecPicks = std::vector<CodecPick>;  // a boundary each

// The picks of least sum of `weight` x link_s + price x `step_s` among those whose token ids come
// along. If none do (the job names codecs that can't be), those of least sum without that.
CodecPicks PicksAt(const std::vector<BoundaryOptions>& options, double weight, double step_s);

// `cost`: seconds x (1 + price) of a step; infinity if they can't be. `step_s`: about what a step
// takes, `micros` its micro-batches. The last boundary of a chosen predict gains by it, or by one
// on its way back.
CodecPicks SearchCodecs(const std::vector<BoundaryOptions>& options, int micros, double step_s,
                        Effort effort, const std::function<double(const CodecPicks&)>& cost);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_CODEC_SEARCH_H_
