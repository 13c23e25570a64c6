#include "worker/indices_board.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "proto/plan/actions.h"
#include "proto/plan/overlap.h"

namespace isthmus::worker {

size_t IndicesBoard::LimitOf(const SessionPlan& plan) {
  int64_t under_way = 0, most = 1;
  for (const Action& action : Unroll(TrainOf(plan.plan(), plan.rank()), 2)) {
    if (action.op() == Action::SEND && action.what() == FrameHeader::ACTIVATION)
      most = std::max(most, ++under_way);
    if (action.op() == Action::RECV && action.what() == FrameHeader::GRADIENT) --under_way;
  }
  return static_cast<size_t>(most);
}

void IndicesBoard::Put(int64_t step, int32_t micro, absl::Span<const uint32_t> indices) {
  std::vector<uint32_t> copy(indices.begin(), indices.end());
  MutexLock lock(&mutex_);
  ISTHMUS_CHECK(indices_.size() < limit_);  // more than the schedule has under way
  const bool first = indices_.emplace(std::make_pair(step, micro), std::move(copy)).second;
  ISTHMUS_CHECK(first);  // they are not waiting for its gradient already
}

absl::StatusOr<std::vector<uint32_t>> IndicesBoard::Take(int64_t step, int32_t micro) {
  MutexLock lock(&mutex_);
  const auto found = indices_.find({step, micro});
  if (found == indices_.end()) {
    return absl::DataLossError(absl::StrCat("the indices of the activation of micro-batch ", micro,
                                            ", step ", step,
                                            ", which its gradient needs, are not "
                                            "here: no such activation was sent"));
  }
  std::vector<uint32_t> indices = std::move(found->second);
  indices_.erase(found);
  return indices;
}

size_t IndicesBoard::size() const {
  MutexLock lock(&mutex_);
  return indices_.size();
}

}  // namespace isthmus::worker
