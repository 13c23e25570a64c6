#include "worker/places_board.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/plan/actions.h"
#include "proto/plan/overlap.h"

namespace isthmus::worker {

size_t PlacesBoard::LimitOf(const SessionPlan& plan) {
  int64_t under_way = 0, most = 1;
  for (const Action& action : Unroll(TrainOf(plan.plan(), plan.rank()), 2)) {
    if (action.op() == Action::SEND && action.what() == FrameHeader::ACTIVATION)
      most = std::max(most, ++under_way);
    if (action.op() == Action::RECV && action.what() == FrameHeader::GRADIENT) --under_way;
  }
  return static_cast<size_t>(most);
}

absl::Status PlacesBoard::Put(int64_t step, int32_t micro, absl::Span<const uint32_t> places) {
  std::vector<uint32_t> copy(places.begin(), places.end());
  MutexLock lock(&mutex_);
  if (places_.count({step, micro}) > 0) {
    return absl::InternalError(absl::StrCat("the places of micro-batch ", micro, ", step ", step,
                                            ", are waiting for its gradient already"));
  }
  if (places_.size() >= limit_) {
    return absl::InternalError(absl::StrCat("the places of ", places_.size(),
                                            " micro-batches are waiting for their gradients, more "
                                            "than the schedule has under way"));
  }
  places_.emplace(std::make_pair(step, micro), std::move(copy));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> PlacesBoard::Take(int64_t step, int32_t micro) {
  MutexLock lock(&mutex_);
  const auto found = places_.find({step, micro});
  if (found == places_.end()) {
    return absl::DataLossError(absl::StrCat("the places of the activation of micro-batch ", micro,
                                            ", step ", step,
                                            ", which its gradient needs, are not "
                                            "here: no such activation was sent"));
  }
  std::vector<uint32_t> places = std::move(found->second);
  places_.erase(found);
  return places;
}

size_t PlacesBoard::size() const {
  MutexLock lock(&mutex_);
  return places_.size();
}

}  // namespace isthmus::worker
