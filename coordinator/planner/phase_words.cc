#include "coordinator/planner/phase_words.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"
#include "coordinator/core/format.h"
#include "coordinator/core/jobs.h"
#include "coordinator/planner/slices.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/job/phases.h"
#include "proto/model/model_cost.h"
#include "proto/plan/actions.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

double Flops(const ModelSpec& model) {  // of a sample
  return StageCost(model, 0, model.layers(), 1).flops();
}

double GroupBytes(const GroupPlan& group) {
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

std::string Codecs(const Plan& plan) {
  std::set<std::string> codecs;
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() == LinkPlan::BOUNDARY)
      codecs.insert(
          absl::StrCat(FormatCodec(link.forward()), " and ", FormatCodec(link.backward())));
  }
  return codecs.empty() ? "nothing is sent" : absl::StrJoin(codecs, ", ");
}

}  // namespace

double StepBytes(const Plan& plan) {
  const JobSpec& job = plan.job();
  const TensorDims dims{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
  double bytes = 0;
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() != LinkPlan::BOUNDARY) continue;
    const TensorDims wire = WireDims(link.forward(), dims);
    const double micro = MeanEncodedBytes(link.forward(), wire, plan.first_visits()) +
                         static_cast<double>(EncodedBytes(link.backward(), wire, true));
    bytes += micro * CountForwards(plan.ranks(link.lower()).train());
  }
  const auto between = static_cast<double>(std::max<int64_t>(1, job.strategy().local_steps()));
  for (const GroupPlan& group : plan.groups()) {
    if (group.value() == GroupPlan::SLICE) {
      bytes += SliceBytes(plan, group) / between;
    } else {
      bytes += GroupBytes(group) / (group.value() == GroupPlan::DIFFERENCE ? between : 1);
    }
  }
  return bytes;
}

std::string WorkWords(const JobSpec& job) {
  double work = 0, most = 0;
  int largest = 0;
  for (int p = 0; p < job.phases_size(); ++p) {
    const double flops = Flops(PhaseJob(job, p).model());
    work += flops * static_cast<double>(job.phases(p).steps());
    if (flops > most) largest = p;
    most = std::max(most, flops);
  }
  return absl::StrCat("phases: all ", job.recipe().steps(), " steps take ",
                      FormatShare(work / (most * static_cast<double>(job.recipe().steps()))),
                      " of the operations of as many steps of ", PhaseShapeWords(job, largest));
}

std::string PhaseLine(const JobSpec& job, const Plan& plan) {
  const int p = plan.phase();
  std::string names;
  for (const RankPlan& rank : plan.ranks())
    absl::StrAppend(&names, names.empty() ? "" : ", ", rank.node_name());
  return absl::StrCat(
      PhaseWords(p, job.phases_size()), ": ",
      job.phases(p).steps() == 1
          ? absl::StrCat("step ", PhaseEnd(job, p))
          : absl::StrCat("steps ", PhaseStart(job, p) + 1, " to ", PhaseEnd(job, p)),
      ", ", PhaseShapeWords(job, p), ", ",
      FormatCount(static_cast<double>(ParameterCount(plan.job().model()))), " parameters, ",
      CountText(StagesOf(plan), "stage"), " on ", names, ": ", Codecs(plan), ", predicted ",
      FormatSeconds(plan.predicted_step_s()), " and ", FormatBytes(StepBytes(plan)), " a step");
}

}  // namespace isthmus::coordinator
