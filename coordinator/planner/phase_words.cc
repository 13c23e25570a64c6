#include "coordinator/planner/phase_words.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"
#include "coordinator/core/format.h"
#include "coordinator/core/jobs.h"
#include "coordinator/planner/link_load.h"
#include "proto/codec/codec_text.h"
#include "proto/job/phases.h"
#include "proto/model/model_cost.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

double Flops(const ModelSpec& model) {  // of a sample
  return StageCost(model, 0, model.layers(), 1).flops();
}

}  // namespace

double StepBytes(const Plan& plan) {
  double bytes = 0;
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() == LinkPlan::BOUNDARY)
      bytes += BoundaryBytes(plan, link, true) + BoundaryBytes(plan, link, false);
  }
  for (const GroupPlan& group : plan.groups()) bytes += GroupBytes(plan, group);
  return bytes;
}

std::string CodecWords(const Plan& plan) {
  std::set<std::string> codecs;
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() == LinkPlan::BOUNDARY)
      codecs.insert(
          absl::StrCat(FormatCodec(link.forward()), " and ", FormatCodec(link.backward())));
  }
  return codecs.empty() ? "nothing is sent" : absl::StrJoin(codecs, ", ");
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
      CountText(StagesOf(plan), "stage"), " on ", names, ": ", CodecWords(plan), ", predicted ",
      FormatSeconds(plan.predicted_step_s()), " and ", FormatBytes(StepBytes(plan)), " a step");
}

}  // namespace isthmus::coordinator
