#include "coordinator/planner/link_load.h"

#include <algorithm>
#include <cstdint>

#include "coordinator/planner/slices.h"
#include "proto/codec/codec_size.h"
#include "proto/plan/actions.h"
#include "proto/plan/deal.h"

namespace isthmus::coordinator {
namespace {

double ReducedBytes(const GroupPlan& group) {
  const auto ranks = static_cast<double>(group.ranks_size());
  const TensorDims dims{1, group.rows(), group.width()};
  const auto whole = static_cast<double>(EncodedBytes(group.contribution(), dims, false));
  if (group.rule() == GroupPlan::EXCHANGE) return ranks * (ranks - 1) * whole;
  return (ranks - 1) * (whole + static_cast<double>(EncodedBytes(group.sum(), dims, false)));
}

// Of all ranks that deal slices among themselves, at the end of a round in the mean.
double SliceBytes(const Plan& plan, const GroupPlan& group) {
  const TensorDims dims{SliceRows(plan, WholeOf(plan, group.ranks(0))), 1, group.width()};
  const auto all = static_cast<double>(EncodedBytes(group.contribution(), dims, false));
  const auto share = [&](int rank) { return SliceOfRank(plan, plan.ranks(rank)).share; };
  double dealt = 0, merged = 0;
  for (const int from : group.ranks()) {
    for (const int to : group.ranks()) {
      if (from == to) continue;
      dealt += all * share(from) * share(to);
      merged += all * share(from) * (Gathers(plan, to) ? 1 : share(to));
    }
  }
  return dealt + MergedRounds(plan.job()) * (merged - dealt);
}

bool Has(const GroupPlan& group, int rank) {
  return std::find(group.ranks().begin(), group.ranks().end(), rank) != group.ranks().end();
}

}  // namespace

double BoundaryBytes(const Plan& plan, const LinkPlan& link, bool forward) {
  const JobSpec& job = plan.job();
  const TensorDims dims{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
  const TensorDims wire = WireDims(link.forward(), dims);
  const double micro = forward ? MeanEncodedBytes(link.forward(), wire, plan.first_visits())
                               : static_cast<double>(EncodedBytes(link.backward(), wire, true));
  return micro * CountForwards(plan.ranks(link.lower()).train());
}

double GroupBytes(const Plan& plan, const GroupPlan& group) {
  const auto between =
      static_cast<double>(std::max<int64_t>(1, plan.job().strategy().local_steps()));
  if (group.value() == GroupPlan::SLICE) return SliceBytes(plan, group) / between;
  return ReducedBytes(group) / (group.value() == GroupPlan::DIFFERENCE ? between : 1);
}

std::vector<LinkLoad> LinkLoads(const Plan& plan) {
  std::vector<LinkLoad> loads;
  for (const LinkPlan& link : plan.links()) {
    auto at = std::find_if(loads.begin(), loads.end(), [&](const LinkLoad& l) {
      return l.lower == link.lower() && l.upper == link.upper();
    });
    if (at == loads.end()) {
      at = loads.emplace(loads.end());
      at->lower = link.lower();
      at->upper = link.upper();
    }
    double up = 0, down = 0;
    if (link.kind() == LinkPlan::BOUNDARY) {
      up = BoundaryBytes(plan, link, true);
      down = BoundaryBytes(plan, link, false);
    } else {
      for (const GroupPlan& group : plan.groups()) {
        if (!Has(group, link.lower()) || !Has(group, link.upper())) continue;
        const double ways = group.ranks_size() * (group.ranks_size() - 1.0);
        up += GroupBytes(plan, group) / ways;
        down += GroupBytes(plan, group) / ways;
      }
    }
    at->up_bytes += up;
    at->down_bytes += down;
    at->up_s += 8 * up / link.rate_up_bits_per_s();
    at->down_s += 8 * down / link.rate_down_bits_per_s();
  }
  return loads;
}

}  // namespace isthmus::coordinator
