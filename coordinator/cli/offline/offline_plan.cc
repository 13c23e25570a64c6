#include "coordinator/cli/offline/offline_plan.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/file/read_file.h"
#include "base/process.h"
#include "base/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/job/job_scalar.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/cli/view/views.h"
#include "coordinator/core/format.h"
#include "coordinator/core/jobs.h"
#include "coordinator/planner/phase_words.h"
#include "coordinator/planner/planner.h"
#include "proto/job/phases.h"

namespace isthmus::cli {
namespace {

constexpr double kSecondsADay = 86400;
constexpr double kGains = 1.005;  // what buys less is not listed
constexpr int64_t kMaxHostsBytes = int64_t{1} << 20;

}  // namespace

absl::StatusOr<Topology> ReadTopology(const PlanRequest& request, const OfflineOptions& options) {
  if (request.resume()) {
    return absl::InvalidArgumentError(
        "--topology is a plan without a coordinator, which alone has the checkpoints that --resume "
        "goes on from: leave out one of the two");
  }
  const absl::StatusOr<int64_t> memory = ParseByteSize(options.memory);
  if (!memory.ok() || *memory <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory '", Shown(options.memory), "' is not a size such as 16GiB"));
  }
  std::string hosts;
  if (!options.hosts.empty()) {
    ASSIGN_OR_RETURN(hosts, ReadSmallFile(options.hosts, kMaxHostsBytes));
  }
  ASSIGN_OR_RETURN(const std::string wan, FindProgram("isthmus-wan"));
  std::vector<std::string> show = {wan, "show", options.links};
  if (options.nodes > 0) {
    show.push_back("--nodes");
    show.push_back(absl::StrCat(options.nodes));
  }
  const absl::StatusOr<std::string> links = RunAndCapture(show, absl::Seconds(10));
  if (!links.ok()) {  // its words are one line, with its name in front
    absl::string_view words = absl::StripAsciiWhitespace(links.status().message());
    absl::ConsumePrefix(&words, "isthmus-wan: ");
    return Reword(links.status(), absl::StrCat("--topology: ", words));
  }
  return MakeTopology(*links, hosts, {options.gflops, *memory});
}

coordinator::PlannerInput InputOn(const JobSpec& job, Topology topology) {
  coordinator::PlannerInput input;
  input.job_id = job.name();
  input.job = job.phases().empty() ? job : PhaseJob(job, 0);
  input.phases.assign(job.phases().begin(), job.phases().end());
  input.topology = std::move(topology);
  return input;
}

absl::StatusOr<OfflinePlan> PlanOn(const JobSpec& job, Topology topology) {
  const coordinator::PlannerInput input = InputOn(job, std::move(topology));
  ASSIGN_OR_RETURN(coordinator::PlannedJob planned, coordinator::MakePlan(input));
  OfflinePlan out;
  out.bytes_a_day =
      coordinator::StepBytes(planned.plan) / planned.plan.predicted_step_s() * kSecondsADay;
  out.what_ifs = coordinator::WhatIfs(input, planned.plan);
  if (!job.phases().empty()) {
    out.reply.add_warnings(absl::StrCat(
        "this is ", coordinator::PhaseWords(0, job.phases_size()),
        " alone, and so are bytes and gains: `isthmus plan` with a coordinator plans them all"));
  }
  for (std::string& line : *planned.plan.mutable_explanation())
    absl::StrReplaceAll({{" measured, ", " by the table, "}}, &line);
  for (std::string& warning : planned.warnings) *out.reply.add_warnings() = std::move(warning);
  *out.reply.mutable_plan() = std::move(planned.plan);
  return out;
}

std::string OfflineView(const OfflinePlan& plan) {
  const double step_s = plan.reply.plan().predicted_step_s();
  std::string out = absl::StrCat(
      "\nHosts and links are those of the table: nothing was measured.\nIn a day of training "
      "all links together carry ",
      coordinator::FormatBytes(plan.bytes_a_day), ".\n");
  Table table({"IF THERE WERE", ">A STEP", ">TIMES FASTER"});
  for (const coordinator::WhatIf& what : plan.what_ifs) {
    if (step_s < kGains * what.step_s) continue;
    table.AddRow({Printable(what.change), coordinator::FormatSeconds(what.step_s),
                  absl::StrFormat("%.2f", step_s / what.step_s)});
  }
  if (table.empty())
    return absl::StrCat(out,
                        "No single daemon, link or round trip bounds a step: none of them "
                        "twice as good would make it faster.\n");
  absl::StrAppend(&out, "Critical is what is on top; each was planned anew:\n", table.Render());
  return out;
}

std::string OfflineJson(const OfflinePlan& plan) {
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(ToJson(plan.reply, false));
  out["bytes_a_day"] = plan.bytes_a_day;
  out["what_if"] = nlohmann::ordered_json::array();
  for (const coordinator::WhatIf& what : plan.what_ifs)
    out["what_if"].push_back({{"change", what.change}, {"step_s", what.step_s}});
  return out.dump(1) + "\n";
}

int RunOfflinePlan(const PlanRequest& request, const std::string& more,
                   const OfflineOptions& options, bool json, Console* console) {
  absl::StatusOr<Topology> topology = ReadTopology(request, options);
  if (!topology.ok()) return console->Fail(topology.status());
  absl::StatusOr<OfflinePlan> plan = PlanOn(request.job(), *std::move(topology));
  if (!plan.ok()) return console->Fail(plan.status());
  if (!more.empty()) plan->reply.mutable_plan()->add_explanation(more);
  console->Out(json ? OfflineJson(*plan) : absl::StrCat(PlanView(plan->reply), OfflineView(*plan)));
  return kExitOk;
}

}  // namespace isthmus::cli
