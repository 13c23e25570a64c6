#include "coordinator/cli/compare_command.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interruptible_client.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/compare.h"

namespace isthmus::cli {
namespace {

constexpr double kLossCounts = 1.0005;  // cost over seconds from which the view says what it is

absl::StatusOr<PlanComparison> CompareOn(const PlanRequest& request,
                                         const OfflineOptions& offline) {
  ASSIGN_OR_RETURN(Topology topology, ReadTopology(request, offline));
  return coordinator::ComparePlans(InputOn(request.job(), std::move(topology)));
}

std::vector<std::string> Row(const ComparedPlan& plan) {
  const std::string tried = absl::StrCat(plan.tried());
  if (!plan.refusal().empty())
    return {plan.strategy(), "-", "-", "-", "not possible", "", "", tried};
  return {plan.strategy(),
          coordinator::FormatSeconds(plan.step_s()),
          FormatCount(plan.tokens_per_s()),
          absl::StrFormat("%.2f", plan.times_ours()),
          plan.busiest_link().empty() ? "none" : plan.busiest_link(),
          plan.busiest_link().empty() ? "" : FormatBytes(plan.busiest_bytes()),
          plan.busiest_link().empty() ? "" : FormatPercent(plan.busiest_share()),
          tried};
}

// "lab 4, home 2": daemons and their layers, by stage; " | " between replicas.
std::string StagesLine(const ComparedPlan& plan) {
  std::string out;
  int replica = 0;
  for (const ComparedStage& stage : plan.stages()) {
    absl::StrAppend(&out,
                    out.empty()                  ? ""
                    : stage.replica() != replica ? " | "
                                                 : ", ",
                    Printable(stage.node_name()), " ", stage.layers());
    replica = stage.replica();
  }
  return out;
}

}  // namespace

std::string ComparisonView(const PlanComparison& comparison, bool offline) {
  std::string out = absl::StrCat(
      "Plans of job ", Printable(comparison.job()), " beside each other, on ",
      comparison.daemons() == 1 ? "1 daemon" : absl::StrCat(comparison.daemons(), " daemons"),
      offline ? " of the table (nothing was measured)" : "", ", by one simulation of a step:\n\n");
  Table table({"PLAN", ">A STEP", ">TOKENS/S", ">TIMES OURS", "BUSIEST LINK", ">BYTES A STEP",
               ">BUSY", ">LOOKED AT"});
  bool loses = false;
  for (const ComparedPlan& plan : comparison.plans()) {
    table.AddRow(Row(plan));
    loses = loses || plan.cost_s() > kLossCounts * plan.step_s();
  }
  absl::StrAppend(&out, table.Render());
  if (loses)
    absl::StrAppend(
        &out,
        "Times ours counts what the losses of codecs cost in more steps, as the planner "
        "does.\n");
  absl::StrAppend(&out, "\n", Printable(comparison.verdict()), "\n");
  for (const ComparedPlan& plan : comparison.plans()) {
    absl::StrAppend(&out, "\n", Printable(plan.strategy()), ":\n");
    if (!plan.refusal().empty()) {
      absl::StrAppend(&out, "  - not possible: ", Printable(plan.refusal()), "\n");
      continue;
    }
    absl::StrAppend(&out, "  - layers: ", StagesLine(plan), "\n");
    if (!plan.left_out().empty() && plan.differs().empty())
      absl::StrAppend(&out, "  - leaves out ", Printable(absl::StrJoin(plan.left_out(), ", ")),
                      "\n");
    for (const std::string& words : plan.differs())
      absl::StrAppend(&out, "  - ", Printable(words), "\n");
  }
  if (!comparison.gains().empty()) absl::StrAppend(&out, "\nWhat the planner's choices save:\n");
  for (const std::string& words : comparison.gains())
    absl::StrAppend(&out, "  - ", Printable(words), "\n");
  for (const std::string& words : comparison.notes())
    absl::StrAppend(&out, "note: ", Printable(words), "\n");
  return out;
}

int RunCompare(const ClientOptions& client, const PlanRequest& request,
               const OfflineOptions& offline, bool json, Console* console) {
  if (request.resume()) {
    return console->Fail(absl::InvalidArgumentError(
        "--compare looks at plans of a new job: leave out one of --compare and --resume"));
  }
  const bool here = !offline.links.empty();
  absl::StatusOr<PlanComparison> comparison;
  if (here) {
    comparison = CompareOn(request, offline);
  } else {
    InterruptibleClient caller;  // takes the signals
    const absl::Status opened = caller.Open(client);
    if (!opened.ok()) return console->Fail(opened);
    comparison = caller.client->ComparePlans(request);
  }
  if (!comparison.ok()) return console->Fail(comparison.status());
  console->Out(json ? ToJson(*comparison, true) : ComparisonView(*comparison, here));
  return kExitOk;
}

}  // namespace isthmus::cli
