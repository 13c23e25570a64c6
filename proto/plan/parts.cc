#include "proto/plan/parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/plan/overlap.h"

namespace isthmus {
namespace {

bool IsBucket(const GroupPlan& group) {
  const bool gradients =
      group.value() == GroupPlan::GRADIENT || group.value() == GroupPlan::MOMENTUM;
  return gradients && group.tensors() == GroupPlan::OWN;
}

}  // namespace

std::vector<Bucket> CutBuckets(const LayerTensors& layers, int buckets, int64_t width) {
  const auto count = static_cast<int64_t>(layers.size());
  std::vector<int64_t> begins = {0};  // of each layer
  for (const std::vector<TensorDims>& layer : layers)
    begins.push_back(begins.back() + ElementsOf(layer));
  const auto up = [width](int64_t element) { return (element + width - 1) / width; };
  std::vector<Bucket> cut;
  int64_t end = up(begins.back());
  for (int64_t b = std::min<int64_t>(buckets, count) - 1; b > 0; --b) {
    const int64_t first = count * b / std::min<int64_t>(buckets, count);
    const int64_t begin = up(begins[first]);
    if (begin >= end || begin == 0) continue;
    cut.push_back({{begin, end}, static_cast<int>(first)});
    end = begin;
  }
  cut.push_back({{0, end}, 0});
  return cut;
}

bool SameSet(const GroupPlan& a, const GroupPlan& b) {
  return a.tensors() == b.tensors() && a.value() == b.value() &&
         std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(), b.ranks().end());
}

int64_t FirstElement(const Plan& plan, const GroupPlan& group) {
  int64_t first = 0;
  for (const GroupPlan& other : plan.groups()) {
    if (SameSet(group, other) && other.part() > group.part()) first += other.rows() * other.width();
  }
  return first;
}

int GradientParts(const Plan& plan, int rank) {
  for (const GroupPlan& group : plan.groups()) {
    if (IsBucket(group) && PositionIn(group, rank) >= 0) return std::max(1, group.parts());
  }
  return 1;
}

std::vector<int> BucketLayers(const LayerTensors& layers, const Plan& plan, int rank) {
  const std::vector<int64_t> ends = EndsOf(layers);
  std::vector<int> cuts;
  for (const GroupPlan& group : plan.groups()) {
    if (!IsOfferedEarly(plan, group) || PositionIn(group, rank) < 0) continue;
    const int64_t first = FirstElement(plan, group);
    cuts.push_back(
        plan.ranks(rank).first_layer() +
        static_cast<int>(std::upper_bound(ends.begin(), ends.end(), first) - ends.begin()));
  }
  return cuts;
}

bool IsOfferedEarly(const Plan& plan, const GroupPlan& group) {
  return IsBucket(group) && group.part() + 1 < group.parts() && !Overlaps(plan.job());
}

std::string SetName(const GroupPlan& group) {
  return group.id().substr(0, group.id().rfind(" part "));
}

absl::Status CheckParts(const Plan& plan, const GroupPlan& group) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group.id(), ": ", what));
  };
  if (group.parts() == 0 && group.part() == 0) return absl::OkStatus();
  if (group.part() < 0 || group.part() >= group.parts())
    return wrong(absl::StrCat("part ", group.part(), " of ", group.parts()));
  const bool tied = group.rule() == GroupPlan::EXCHANGE && group.tensors() == GroupPlan::TIED &&
                    group.value() == GroupPlan::GRADIENT;
  if (group.rule() != GroupPlan::SHARDED && !tied)
    return wrong("only a sharded group and the exchange of a tied embedding have parts");
  const bool fragment = group.value() == GroupPlan::DIFFERENCE;
  if (!IsBucket(group) && !fragment && !tied) return wrong("its tensors are not reduced in parts");
  if (fragment && group.parts() != plan.job().strategy().fragments())
    return wrong("the job has another number of fragments");
  int before = -1, count = 0;
  for (const GroupPlan& other : plan.groups()) {
    if (!SameSet(group, other)) continue;
    const bool follows = fragment ? other.part() > before : other.part() == before + 1;
    if (!follows || other.parts() != group.parts())
      return wrong("the parts of its set do not follow each other");
    before = other.part();
    ++count;
  }
  return fragment || count == group.parts() ? absl::OkStatus()
                                            : wrong("the other parts are missing");
}

}  // namespace isthmus
