// The last part of the search: improves a layout by what a step takes in the end, where the rough
// score that found it is too rough. Deterministic. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_REFINE_H_
#define ISTHMUS_COORDINATOR_PLANNER_REFINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/layout.h"

namespace isthmus::coordinator {

constexpr int kMostRefinements = 200;                     // layouts that are priced
constexpr int64_t kMostRefinedPasses = int64_t{1} << 14;  // in these together, about
constexpr double kRefinementMustPay = 0.995;  // a change is made where it leaves at most this share

// What is found is priced with Effort::kQuick, which may be wrong by a few percent: so many layouts
// that cost at most kClose times the best one are handed back beside it, where pricing is quick.
constexpr size_t kCloseLayouts = 3;
constexpr double kClose = 1.04;
constexpr double kCloseCut = 1.08;  // the same of the best one with equal numbers of layers

// Equal numbers of layers on each stage, or one more on the first ones.
std::vector<int> EqualLayers(int layers, int stages);

struct Refined {
  std::vector<Layout> layouts;  // the best first
  int64_t priced = 0;
};

// Swaps of two daemons, one of which may be one of `nodes` that is idle, then layers moved between
// two stages, while any pays; equal numbers of layers are looked at too. `start` was priced with
// Effort::kQuick; `cut_given`: its layers stay.
Refined Refine(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
               const LinkIndex& links, const Remaining& remaining, bool cut_given, Layout start);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_REFINE_H_
