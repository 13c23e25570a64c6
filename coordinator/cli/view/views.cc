#include "coordinator/cli/view/views.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/cli/view/summary.h"
#include "coordinator/core/card.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/model/family.h"
#include "proto/plan/actions.h"
#include "proto/plan/agreements.h"
#include "proto/plan/deal.h"
#include "proto/plan/epilogue.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"
#include "proto/plan/parts.h"

namespace isthmus::cli {
namespace {

std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

// -1: the coordinator started after that.
std::string HeardWords(double heartbeat_age_s) {
  return heartbeat_age_s < 0 ? "not heard since the coordinator started"
                             : absl::StrCat("last heard ", FormatSeconds(heartbeat_age_s), " ago");
}

// "blocks 0-3". Empty: none.
std::string Blocks(const ModelSpec& model, int first, int end) {
  if (end <= first) return "";
  return absl::StrCat(IsMlp(model) ? "layer" : "block", end - first == 1 ? " " : "s ", first,
                      end - first == 1 ? "" : absl::StrCat("-", end - 1));
}

// Of subnetworks a slice of what is dealt: "embedding, block 0, 50 % of blocks 1-4, block 5, head".
std::string Holds(const Plan& plan, const RankPlan& rank) {
  const ModelSpec& model = plan.job().model();
  const int first = rank.first_layer(), end = rank.end_layer();
  int begin_dealt = end, end_dealt = end;
  if (Deals(plan)) {
    const int whole = plan.deal().whole_layers();
    begin_dealt = std::clamp(whole, first, end);
    end_dealt = std::clamp(model.layers() - whole, begin_dealt, end);
  }
  std::vector<std::string> held;
  if (first == 0 && !IsMlp(model)) held.push_back("embedding");
  if (begin_dealt > first) held.push_back(Blocks(model, first, begin_dealt));
  if (end_dealt > begin_dealt) {
    const int replica = rank.replica();
    const int slice = replica < plan.replicas_size() ? plan.replicas(replica).slice() : 0;
    const double share = slice < plan.deal().shares_size() ? plan.deal().shares(slice) : 0;
    held.push_back(
        absl::StrFormat("%.3g %% of %s", 100 * share, Blocks(model, begin_dealt, end_dealt)));
  }
  if (end > end_dealt) held.push_back(Blocks(model, end_dealt, end));
  if (end == model.layers()) held.push_back(IsMlp(model) ? "output" : "head");
  return absl::StrJoin(held, ", ");
}

Table StageTable(const Plan& plan) {
  const bool several = plan.replicas_size() > 1;
  std::vector<std::string> columns = {">STAGE", "NODE",          "ADDRESS",
                                      "HOLDS",  ">COMPUTE/STEP", ">MEMORY"};
  if (several) columns.insert(columns.begin(), {">REPLICA", ">SAMPLES"});
  Table table(columns);
  for (const RankPlan& stage : plan.ranks()) {
    std::vector<std::string> row = {absl::StrCat(stage.stage()),
                                    stage.node_name(),
                                    stage.address(),
                                    Holds(plan, stage),
                                    FormatSeconds(stage.predicted_step_s()),
                                    Bytes(stage.memory_bytes())};
    if (several)
      row.insert(row.begin(), {absl::StrCat(stage.replica()),
                               absl::StrCat(ShareOf(plan, stage.replica()).count())});
    table.AddRow(std::move(row));
  }
  return table;
}

// "lab, home" of the ranks of a group.
std::string Members(const Plan& plan, const GroupPlan& group) {
  return absl::StrJoin(group.ranks(), ", ", [&](std::string* out, int rank) {
    absl::StrAppend(out, rank >= 0 && rank < plan.ranks_size() ? plan.ranks(rank).node_name()
                                                               : absl::StrCat("rank ", rank));
  });
}

// By each of its ranks: to every other one its contribution, or of a sharded group its part of the
// contributions and of the sums. Of slices the largest one, but for what stays.
double SentBytes(const Plan& plan, const GroupPlan& group) {
  const auto n = static_cast<double>(group.ranks_size());
  const Rows rows{0, group.rows()};
  auto sent = static_cast<double>(RowsBytes(group, group.contribution(), rows, false));
  if (group.value() == GroupPlan::SLICE) {
    const auto& shares = plan.deal().shares();
    return shares.empty() ? 0 : sent * (1 - *std::max_element(shares.begin(), shares.end()));
  }
  if (group.rule() == GroupPlan::SHARDED)
    sent = (sent + static_cast<double>(RowsBytes(group, group.sum(), rows, false))) / n;
  return sent * (n - 1);
}

// What replicas reduce, and the bytes that each of them sends for it in a step, or an agreement.
Table GroupTable(const Plan& plan) {
  Table table({"GROUP", "SUMS", "OVER", "CODEC", ">RAW", ">SENT"});
  for (int g = 0; g < plan.groups_size(); ++g) {
    const GroupPlan& group = plan.groups(g);
    const int64_t n = group.ranks_size();
    if (n < 2 || !ValidateCodec(group.contribution()).ok()) continue;
    if (g > 0 && SameSet(group, plan.groups(g - 1))) continue;  // counted with its first part
    int64_t elements = 0;
    double sent = 0;
    for (int p = g; p < plan.groups_size() && SameSet(group, plan.groups(p)); ++p) {
      elements += plan.groups(p).rows() * plan.groups(p).width();
      sent += SentBytes(plan, plan.groups(p));
    }
    table.AddRow(
        {SetName(group),
         absl::StrCat(group.value() == GroupPlan::DIFFERENCE ? "what was learnt: "
                      : group.value() == GroupPlan::MOMENTUM ? "momentum: "
                      : group.value() == GroupPlan::SLICE    ? "slices that change hands: "
                                                             : "gradients: ",
                      group.tensors() == GroupPlan::TIED ? "tied embedding" : "its layers",
                      group.parts() > 1 ? absl::StrCat(", in ", group.parts(), " parts") : ""),
         Members(plan, group), FormatCodec(group.contribution()), Bytes(elements * 4),
         FormatBytes(sent)});
  }
  return table;
}

std::string NodeName(const Plan& plan, int rank) {
  return rank >= 0 && rank < plan.ranks_size() ? plan.ranks(rank).node_name()
                                               : absl::StrCat("rank ", rank);
}

int GradientsOf(const Plan& plan, const LinkPlan& link) {
  const bool known = link.lower() >= 0 && link.lower() < plan.ranks_size();
  return known ? CountForwards(plan.ranks(link.lower()).train()) : 0;
}

// Of all gradients of a step, where one of its epilogue takes `coded` bytes and the others go as
// fp32.
double MeanOfEpilogue(const Plan& plan, const LinkPlan& link, const TensorDims& dims,
                      double coded) {
  const double all = GradientsOf(plan, link);
  const auto some = static_cast<double>(EpilogueMicros(plan, link).size());
  const auto raw =
      static_cast<double>(EncodedBytes(CodecSpec(), WireDims(link.forward(), dims), true));
  return all > 0 ? (some * coded + (all - some) * raw) / all : raw;
}

// "delta(quant(4))", bytes of a full micro-batch on the wire and the time they take.
void AddDirection(const Plan& plan, const LinkPlan& link, bool forward, Table* table) {
  const double rate = forward ? link.rate_up_bits_per_s() : link.rate_down_bits_per_s();
  std::vector<std::string> row = {
      link.id(),
      NodeName(plan, forward ? link.lower() : link.upper()),
      NodeName(plan, forward ? link.upper() : link.lower()),
      forward ? "forward" : "backward",
      FormatBitRate(rate),
      link.round_trip_s() > 0 ? FormatSeconds(link.round_trip_s()) : "unknown",
      Bytes(link.window_bytes()),
      DirectionCodecs(plan, link, forward)};
  const CodecSpec& codec = forward ? link.forward() : link.backward();
  if (link.kind() == LinkPlan::GROUP) {
    row[3] =
        absl::StrCat(plan.replicas_size() > 1 ? "groups" : "tied", forward ? ", up" : ", down");
  } else if (ValidateCodec(codec).ok()) {
    const JobSpec& job = plan.job();
    const TensorDims dims{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
    double bytes = MeanEncodedBytes(codec, dims, plan.first_visits());
    if (!forward && link.epilogue()) bytes = MeanOfEpilogue(plan, link, dims, bytes);
    row.push_back(Bytes(dims.elements() * 4));
    row.push_back(FormatBytes(bytes));
    row.push_back(rate > 0 ? FormatSeconds(bytes * 8 / rate) : "unknown");
  }
  table->AddRow(std::move(row));
}

// What the means in the table of links are made of.
std::string EpilogueNotes(const Plan& plan) {
  std::string out;
  for (const LinkPlan& link : plan.links()) {
    if (!link.epilogue()) continue;
    absl::StrAppend(&out, Printable(link.id()),
                    " backward: WIRE and TIME are means: ", EpilogueMicros(plan, link).size(),
                    " of ", GradientsOf(plan, link), " gradients of a step go by ",
                    FormatCodec(link.backward()), ", the others as fp32\n");
  }
  return out;
}

std::string DeltaNotes(const Plan& plan) {
  std::string out;
  const JobSpec& job = plan.job();
  const TensorDims dims{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
  for (const LinkPlan& link : plan.links()) {
    const CodecSpec& codec = link.forward();
    if (link.kind() != LinkPlan::BOUNDARY || !HasBuffers(codec) || !ValidateCodec(codec).ok())
      continue;
    absl::StrAppend(&out, Printable(link.id()),
                    " forward: WIRE and TIME are means: ", Bytes(EncodedBytes(codec, dims, false)),
                    " on a first visit of a sample, ", Bytes(EncodedBytes(codec, dims, true)),
                    " after; ", absl::StrFormat("%.3g", 100 * plan.first_visits()),
                    " % of visits are first ones\n");
  }
  return out;
}

std::string When(int64_t unix_ms) {
  return unix_ms > 0 ? absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixMillis(unix_ms),
                                        absl::LocalTimeZone())
                     : "-";
}

std::string Progress(const JobStatus& job) {
  if (job.steps() <= 0) return absl::StrCat(job.step());
  return absl::StrFormat(
      "%d/%d (%.0f %%)%s", job.step(), job.steps(),
      100.0 * static_cast<double>(job.step()) / static_cast<double>(job.steps()),
      job.phases() > 0 ? absl::StrCat(", phase ", job.phase() + 1, "/", job.phases()) : "");
}

// "cuda:0 (NVIDIA H200, 139.8 GiB)", or as the daemon was told.
std::string DeviceWords(const NodeInfo& node) {
  const std::string name = coordinator::DeviceName(node.device());
  if (node.device_model().empty()) return name;
  return absl::StrCat(name, " (", node.device_model(), ", ", Bytes(node.device_memory_bytes()),
                      ")");
}

// A line for each card that several daemons which are alive compute on.
std::string SharedCardLines(const ListNodesReply& reply) {
  std::map<std::string, std::vector<std::string>> cards;  // names by UUID
  for (const NodeStatus& status : reply.nodes()) {
    const std::string card = coordinator::CardOf(status.node().device());
    if (status.alive() && !card.empty()) cards[card].push_back(Printable(status.node().name()));
  }
  std::string lines;
  for (const auto& [card, names] : cards) {
    if (names.size() < 2) continue;
    absl::StrAppend(&lines, "one card: ", absl::StrJoin(names, ", "), " compute on ",
                    Printable(card),
                    ": a job that takes several of them gives each a part of its memory and "
                    "speed\n");
  }
  return lines;
}

// What checkpoints travel over.
std::string PathWords(const CoordinatorPath& path) {
  if (path.up_bits_per_s() <= 0) return "-";
  return absl::StrCat("up ", FormatBitRate(path.up_bits_per_s()), ", down ",
                      FormatBitRate(path.down_bits_per_s()));
}

// A cause in a row of a table; `isthmus status` has it whole.
std::string Brief(const std::string& reason) {
  constexpr size_t kWidth = 80;
  const std::string line = reason.substr(0, reason.find('\n'));
  if (DisplayWidth(line) <= kWidth && line.size() == reason.size()) return reason;
  return absl::StrCat(Clip(line, kWidth - 3), "...");
}

}  // namespace

Ready CountReady(const ListNodesReply& reply) {
  Ready ready;
  std::set<std::string> alive;
  for (const NodeStatus& node : reply.nodes()) {
    if (node.alive()) alive.insert(node.node().id());
  }
  ready.alive = static_cast<int>(alive.size());
  for (const LinkMeasurement& link : reply.links()) {
    ready.links += alive.count(link.from_id()) > 0 && alive.count(link.to_id()) > 0 ? 1 : 0;
  }
  return ready;
}

std::string NodesView(const ListNodesReply& reply) {
  if (reply.nodes().empty()) {
    return "No daemon has joined. Start one: isthmusd --tls-dir FOLDER --coordinator HOST:PORT "
           "--listen "
           "0.0.0.0:7071 --state-dir DIR --data-dir DIR\n";
  }
  Table nodes({"NODE", "STATE", "ADDRESS", "DEVICE", ">THREADS", ">MEMORY", ">DISK", ">GFLOP/S",
               "COORDINATOR", "JOB", "VERSION"});
  std::map<std::string, std::string> names;
  std::set<std::string> with_replicas;  // jobs
  for (const NodeStatus& status : reply.nodes()) {
    if (status.replica() > 0) with_replicas.insert(status.job_id());
  }
  std::string warnings;
  for (const NodeStatus& status : reply.nodes()) {
    const NodeInfo& node = status.node();
    names[node.id()] = node.name();
    const double gflops =
        node.block_forward_s() > 0 ? node.block_flops() / node.block_forward_s() / 1e9 : 0;
    nodes.AddRow({node.name(),
                  status.alive() ? status.drained() ? "alive, drained" : "alive"
                                 : absl::StrCat(status.left() ? "left" : "lost", ", ",
                                                HeardWords(status.heartbeat_age_s())),
                  node.address(), DeviceWords(node), absl::StrCat(node.threads()),
                  Bytes(node.memory_bytes()), Bytes(node.disk_bytes()),
                  gflops > 0 ? FormatFixed(gflops, 1) : "measuring", PathWords(status.path()),
                  status.job_id().empty()
                      ? "-"
                      : absl::StrCat(status.job_id(), " stage ", status.stage(),
                                     with_replicas.count(status.job_id()) > 0
                                         ? absl::StrCat(" of replica ", status.replica())
                                         : ""),
                  node.version()});
    for (const std::string& warning : status.warnings()) {
      absl::StrAppend(&warnings, "warning: ", Printable(node.name()), ": ", Printable(warning),
                      "\n");
    }
  }
  std::string out = nodes.Render();
  if (!reply.links().empty()) {
    Table links({"FROM", "TO", ">RATE", ">ROUND TRIP", ">LOSS", "NOTE"});
    const auto name = [&](const std::string& id) { return names.count(id) > 0 ? names[id] : id; };
    for (const LinkMeasurement& link : reply.links()) {
      links.AddRow({name(link.from_id()), name(link.to_id()), FormatBitRate(link.rate_bits_per_s()),
                    link.round_trip_s() > 0 ? FormatSeconds(link.round_trip_s()) : "unknown",
                    link.loss() > 0 ? absl::StrCat(FormatFixed(100 * link.loss(), 2), " %") : "-",
                    !link.error().empty() ? link.error()
                    : link.connections() > 1
                        ? absl::StrCat("by ", link.connections(), " TCP connections side by side")
                        : ""});
    }
    absl::StrAppend(&out, "\n", links.Render());
  }
  absl::StrAppend(&warnings, SharedCardLines(reply));
  if (!warnings.empty()) absl::StrAppend(&out, "\n", warnings);
  return out;
}

std::string PlanView(const PlanReply& reply) {
  const Plan& plan = reply.plan();
  const RecipeSpec& recipe = plan.job().recipe();
  const double tokens = static_cast<double>(recipe.global_batch()) * plan.job().model().context();
  std::string out = absl::StrCat("Plan of job ", Printable(plan.job().name()), ": ",
                                 ShapeWords(plan), ", ", plan.job().strategy().schedule(),
                                 ", predicted ", FormatSeconds(plan.predicted_step_s()), " a step");
  if (plan.predicted_step_s() > 0)
    absl::StrAppend(&out, " (", FormatCount(tokens / plan.predicted_step_s()), " tokens/s)");
  if (plan.from_checkpoint()) absl::StrAppend(&out, ", from checkpoint ", plan.start_step());
  absl::StrAppend(&out, "\n\n", StageTable(plan).Render());
  if (!plan.links().empty()) {
    Table links({"LINK", "FROM", "TO", "DIRECTION", ">RATE", ">ROUND TRIP", ">WINDOW", "CODEC",
                 ">RAW/MICRO", ">WIRE/MICRO", ">TIME/MICRO"});
    for (const LinkPlan& link : plan.links()) {
      AddDirection(plan, link, true, &links);
      AddDirection(plan, link, false, &links);
    }
    absl::StrAppend(&out, "\n", links.Render(), DeltaNotes(plan), EpilogueNotes(plan));
    if (plan.replicas_size() > 1) absl::StrAppend(&out, "\n", GroupTable(plan).Render());
    if (MakesLocalSteps(plan))
      absl::StrAppend(&out, "What was learnt is sent once in ", plan.job().strategy().local_steps(),
                      " steps.\n");
  }
  if (!plan.explanation().empty()) absl::StrAppend(&out, "\nWhy:\n");
  for (const std::string& reason : plan.explanation())
    absl::StrAppend(&out, "  - ", Printable(reason), "\n");
  if (!reply.schedule_grid().empty())
    absl::StrAppend(&out, Overlaps(plan.job())
                              ? "\nSchedule of two steps that overlap (F forward, B backward, by "
                                "micro-batch; small letters: of the second one):\n"
                              : "\nSchedule of one step (F forward, B backward, by "
                                "micro-batch):\n");
  for (const std::string& line : reply.schedule_grid())
    absl::StrAppend(&out, "  ", Printable(line), "\n");
  if (!reply.changes().empty()) absl::StrAppend(&out, "\n", ChangesView(reply.changes()));
  if (!reply.warnings().empty()) absl::StrAppend(&out, "\n");
  for (const std::string& warning : reply.warnings())
    absl::StrAppend(&out, "warning: ", Printable(warning), "\n");
  return out;
}

std::string ChangesView(const google::protobuf::RepeatedPtrField<FieldChange>& changes) {
  if (changes.empty()) return "";
  Table table({"", "FIELD", "BEFORE", "NOW", ""});
  bool alters = false;
  for (const FieldChange& change : changes) {
    alters = alters || change.alters_run();
    table.AddRow({change.alters_run() ? "*" : "", change.field(), change.before(), change.after(),
                  change.consequence()});
  }
  return absl::StrCat(
      "What differs from the run that wrote the checkpoint:\n", table.Render(),
      alters ? "* makes another training of it: `isthmus submit --resume` takes it only with "
               "--accept-changes\n"
             : "");
}

std::string JobListView(const ListJobsReply& reply) {
  if (reply.jobs().empty()) return "No jobs. Submit one: isthmus submit JOB.yaml --watch\n";
  Table table({"JOB", "NAME", "STATE", ">STEP", ">LOSS", ">TOKENS/S", ">CHECKPOINT", "SUBMITTED",
               "REASON"});
  std::string warnings;
  for (const JobStatus& job : reply.jobs()) {
    table.AddRow({job.job_id(), job.name(), StateName(job.state()), Progress(job),
                  job.step() > 0 ? FormatFixed(job.loss(), 4) : "-",
                  job.tokens_per_s() > 0 ? FormatCount(job.tokens_per_s()) : "-",
                  job.checkpoint_step() >= 0 ? absl::StrCat(job.checkpoint_step()) : "none",
                  When(job.submitted_unix_ms()),
                  Brief(job.waits_for().empty() ? job.reason() : job.waits_for())});
    for (const std::string& warning : job.warnings())
      absl::StrAppend(&warnings, "warning: ", Printable(job.job_id()), ": ", Printable(warning),
                      "\n");
  }
  return absl::StrCat(table.Render(), warnings.empty() ? "" : "\n", warnings);
}

std::string JobStatusView(const JobStatus& status, const std::vector<JobRecord>& records) {
  std::string out = SummaryTable(MakeSummary(status, records));
  if (!status.warnings().empty()) absl::StrAppend(&out, "\n");
  for (const std::string& warning : status.warnings())
    absl::StrAppend(&out, "warning: ", Printable(warning), "\n");
  if (status.eta_s() > 0)
    absl::StrAppend(&out, "\nETA ", FormatSeconds(status.eta_s()), ", generation ",
                    status.generation(), "\n");
  if (status.recoveries() > 0) {
    absl::StrAppend(&out, "\nIt went on by itself after an interruption ", status.recoveries(),
                    status.recoveries() == 1 ? " time" : " times",
                    ": the coordinator's log says after which\n");
  }
  if (!status.following().empty())
    absl::StrAppend(&out, "\nLinks: ", Printable(status.following()), "\n");
  if (status.moves() > 0)
    absl::StrAppend(&out, "It took another plan for its links ", status.moves(),
                    status.moves() == 1 ? " time\n" : " times\n");
  if (status.has_plan() && !status.plan().ranks().empty())
    absl::StrAppend(&out, "\n", StageTable(status.plan()).Render());
  return out;
}

JobRecord AsCounted(const JobRecord& record) {
  JobRecord counted = record;
  counted.set_step(record.step() + 1);
  return counted;
}

std::string RecordHeader() {
  return absl::StrFormat("%8s %9s %9s %10s %10s %8s %8s %9s %9s %9s %9s %8s\n", "STEP", "LOSS",
                         "TOKENS/S", "RAW", "WIRE", "STEP_S", "COMPUTE", "SEND_WAIT", "RECV_WAIT",
                         "SYNC", "GRAD_NORM", "KEYS");
}

std::string RecordLine(const JobRecord& r) {
  std::string line = absl::StrFormat(
      "%8d %9s %9s %10s %10s %8.3f %8.3f %9.3f %9.3f %9.3f %9s %8d", r.step(),
      FormatFixed(r.loss(), 4), FormatCount(r.tokens_per_s()), Bytes(r.raw_bytes()),
      Bytes(r.wire_bytes()), r.step_s(), r.compute_s(), r.send_wait_s(), r.recv_wait_s(),
      r.sync_s(), FormatFixed(r.gradient_norm(), 3), r.key_frames());
  if (r.lazy_errors_size() > 0) {
    double cosine = 0;
    for (const LazyError& e : r.lazy_errors()) cosine += e.cosine() / r.lazy_errors_size();
    absl::StrAppend(&line, "  lep cosine ", FormatFixed(cosine, 3));
  }
  if (r.has_validation_loss())
    absl::StrAppend(&line, "  validation ", FormatFixed(r.validation_loss(), 4));
  if (r.has_validation_accuracy())
    absl::StrAppend(&line, "  accuracy ", FormatPercent(r.validation_accuracy()));
  if (!r.committed()) absl::StrAppend(&line, "  skipped");
  if (r.phase() > 0) absl::StrAppend(&line, "  phase ", r.phase() + 1);
  return line + "\n";
}

std::string OneStageNote(const JobSpec& job, const Plan& plan) {
  if (plan.ranks_size() != 1 || job.strategy().stages() != 0 ||
      job.strategy().layers_per_stage_size() > 0)
    return "";
  std::vector<std::string> considered;  // "1 stage on ...", "2 stages on ...": see plan.explanation
  for (const std::string& line : plan.explanation()) {
    if (!line.empty() && absl::ascii_isdigit(static_cast<unsigned char>(line[0])))
      considered.push_back(absl::StrCat("  ", Printable(line), "\n"));
  }
  if (considered.size() < 2) return "";  // there was one daemon
  return absl::StrCat(
      "one daemon trains it alone, and nothing crosses the network, since that is the fastest:\n",
      absl::StrJoin(considered, ""),
      "to train over the network all the same: --set strategy.stages=",
      std::min<size_t>(considered.size(), 3), "\n");
}

}  // namespace isthmus::cli
