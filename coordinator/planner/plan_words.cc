#include "coordinator/planner/plan_words.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/planner.h"
#include "proto/codec/codec_text.h"
#include "proto/data/data_files.h"
#include "proto/job/job_defaults.h"
#include "proto/model/family.h"
#include "proto/model/model_cost.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"

namespace isthmus::coordinator {
namespace {

constexpr int64_t kAgreementsOfMomentum = 100;
constexpr double kLossWarning = 0.01;
constexpr double kMemoryWarning = 0.9;
constexpr double kFirstVisitsWarning = 0.5;  // share, of delta codecs
constexpr int kDataWarnings = 3;             // of daemons with other data
constexpr double kFactorWorthAWord = 0.1;
constexpr double kTiedMustPay =
    0.1;  // a smaller tied codec is named if it saves this share of sync
constexpr double kOtherScheduleGain =
    0.9;  // the other schedule is recommended if a step takes at most this share of the time

class Words {
 public:
  Words(const PlannerInput& input, const Found& found, const DataSize& data,
        const PlannedDeadlines& deadlines, const Plan& plan)
      : in_(input),
        found_(found),
        layout_(found.best),
        data_(data),
        deadlines_(deadlines),
        plan_(plan),
        several_(layout_.replicas() > 1) {}

  PlanWords All() {
    Explain();
    WarnAll();
    return std::move(words_);
  }

 private:
  void Say(std::string line) { words_.explanation.push_back(std::move(line)); }
  const std::string& Name(int stage) const { return chain_->nodes[stage]->name(); }
  std::string Id(int boundary) const { return BoundaryId(layout_, replica_, boundary); }

  // Calls `say` with the members that speak of a chain set to each, from the first one on.
  void ForEachChain(const std::function<void()>& say) {
    for (replica_ = 0; replica_ < layout_.replicas(); ++replica_) {
      chain_ = &layout_.chains[replica_];
      chain_job_ = ReplicaJob(in_.job, layout_.samples[replica_]);
      first_rank_ = replica_ * layout_.stages();
      of_ = several_ ? absl::StrCat("replica ", replica_, ": ") : "";
      say();
    }
  }

  void Explain() {
    const JobSpec& job = in_.job;
    const int micros = Micros(job);
    const ModelSpec& model = job.model();
    const std::string parameters = FormatCount(ParameterCount(model));
    const std::string shape =
        IsMlp(model)
            ? absl::StrCat(model.inputs(), " values, ", CountText(model.layers(), "hidden layer"),
                           " x ", model.hidden(), " units, ", model.classes(), " classes, ",
                           parameters, " parameters")
            : absl::StrCat(CountText(model.layers(), "layer"), " x ", model.hidden(), " channels, ",
                           parameters, " parameters",
                           IsTied(model) ? "" : ", head and embedding apart");
    Say(absl::StrCat("model: ", shape, "; a step is ", micros,
                     micros == 1 ? " micro-batch of " : " micro-batches of ",
                     job.recipe().micro_batch(), " samples",
                     IsMlp(model) ? "" : absl::StrCat(" x ", model.context(), " positions")));
    if (data_.known) {
      Say(absl::StrCat("data: ", data_.read_as, data_.read_as.empty() ? "" : "; ",
                       data_.train_samples, " training samples; ", job.recipe().steps(),
                       " steps are ", absl::StrFormat("%.2f", data_.passes), " passes over them",
                       ValidationWords()));
    } else {
      const NodeInfo& first = *layout_.chain().nodes.front();
      Say(first.data_files().empty()
              ? absl::StrCat("data: the number of samples is not known: no file of ", first.name(),
                             " is known")
              : absl::StrCat("data: the number of samples is not known: daemon ", first.name(),
                             " does not list '", job.data().path(), "' (it lists ", kMaxDataFiles,
                             " files, directories two levels deep)"));
    }
    if (in_.start_step > 0 && in_.data.has_value())
      Say(absl::StrCat("data: goes on at sample ", in_.data->offset(), " of pass ",
                       in_.data->epoch() + 1, "; ", in_.data->samples(), " are consumed"));
    for (const std::string& line : found_.considered) Say(line);
    const bool chosen = found_.considered.size() > 1;
    if (chosen)
      Say(absl::StrCat("chosen: ", ShapeWords(layout_.replicas(), layout_.stages()),
                       "; one more has to make a step ", std::lround(100 * (1 - kStagesMustPay)),
                       " % shorter"));
    if (!found_.moved_why.empty()) Say(found_.moved_why);
    if (!layout_.shares_why.empty()) Say(layout_.shares_why);
    ForEachChain([this] { ExplainChain(); });
    if (several_) {
      for (const std::string& why :
           {layout_.tied_why, layout_.gradients_why, layout_.buckets_why, layout_.local_why})
        if (!why.empty()) Say(why);
    }
    if (in_.job.recipe().optimizer() == kQuantizedAdam) SayOptimizer();
    double slowest_s = 0;
    for (const Placement& p : layout_.chains) slowest_s = std::max(slowest_s, ComputeSeconds(p));
    Say(absl::StrCat("a step: ", FormatSeconds(layout_.step_s), " = pipeline ",
                     FormatSeconds(layout_.pipeline_s), " (slowest stage computes ",
                     FormatSeconds(slowest_s), ") + sync ", FormatSeconds(layout_.sync_s),
                     " + optimiser ", FormatSeconds(layout_.optimizer_s),
                     layout_.first_step_s > 1.01 * layout_.again_step_s
                         ? absl::StrCat("; the mean of ", FormatSeconds(layout_.first_step_s),
                                        " where samples are visited for the first time and ",
                                        FormatSeconds(layout_.again_step_s), " after")
                         : ""));
    for (const std::string& line : deadlines_.explanation) Say(line);
  }

  void SayOptimizer() {
    Say(absl::StrCat(
        "optimiser: quantized_adam: ", in_.job.recipe().optimizer_warmup(),
        " steps of AdamW on exact gradients, each ", FormatSeconds(layout_.warmup_s),
        " longer than those after them; then the second moment stays as it is, and replicas "
        "exchange momentum"));
  }

  double ComputeSeconds(const Placement& p) const {
    const int r = static_cast<int>(&p - layout_.chains.data());
    return p.slowest_s * Micros(ReplicaJob(in_.job, layout_.samples[r]));
  }

  void ExplainChain() {
    const Placement& p = *chain_;
    const JobSpec& job = in_.job;
    for (int s = 0; s < layout_.stages(); ++s) {
      const RankPlan& stage = plan_.ranks(first_rank_ + s);
      Say(absl::StrCat(of_, "stage ", s, " on ", Name(s), ": layers ", stage.first_layer(), "-",
                       stage.end_layer() - 1, ", ", FormatSeconds(p.compute[s].forward_s),
                       " forward + ", FormatSeconds(p.compute[s].backward_s),
                       " backward a micro-batch", FactorWords(s), "; memory ",
                       FormatBytes(stage.memory_bytes()), " of ", RoomWords(*p.nodes[s])));
    }
    if (job.recipe().recompute()) Say(absl::StrCat(of_, RecomputeWords()));
    for (int b = 0; b + 1 < layout_.stages(); ++b) {
      Say(absl::StrCat("boundary ", Id(b), " ", Name(b), " -> ", Name(b + 1), ": ",
                       p.boundaries[b].forward_why));
      Say(absl::StrCat("boundary ", Id(b), " ", Name(b + 1), " -> ", Name(b), ": ",
                       p.boundaries[b].backward_why));
    }
    if (!p.codecs_why.empty()) Say(absl::StrCat(of_, p.codecs_why));
    if (!several_ && !p.tied_why.empty()) Say(p.tied_why);
    if (p.buffer_bytes > 0) {
      const std::string cards = CardBufferWords(p, plan_, first_rank_, layout_.nodes());
      Say(absl::StrCat(
          of_, "delta buffers: ", FormatBytes(p.buffer_bytes), " at each end of a boundary, ",
          FormatBytes(std::min(p.buffer_bytes, p.buffer_memory_bytes)), " of it in memory",
          p.spill_bytes > 0 ? absl::StrCat(", ", FormatBytes(p.spill_bytes), " on disk") : "",
          cards.empty() ? "" : absl::StrCat(" (", cards, ")"),
          "; with checkpoints they are saved there as well, up to ",
          FormatBytes(kSavedStates * p.buffer_bytes), " on disk"));
    }
    for (const std::string& kept : {IndicesWords(job, p), ResidualWords(job, p)})
      if (!kept.empty()) Say(absl::StrCat(of_, kept));
    if (HasDelta(p) && in_.start_step > 0) Say(absl::StrCat(of_, ResumedBuffers()));
    if (!p.warmups_why.empty()) Say(absl::StrCat(of_, p.warmups_why));
    if (Overlaps(in_.job) && p.other_step_s > 0) {
      Say(absl::StrCat(of_, "with strategy.schedule ", p.other_schedule, " a step would take ",
                       FormatSeconds(p.other_step_s), " instead of ", FormatSeconds(p.step_s)));
    }
  }

  // Beside the same stages, with as many micro-batches under way, without it.
  std::string RecomputeWords() const {
    const Placement& p = *chain_;
    JobSpec without = chain_job_;
    without.mutable_recipe()->set_recompute(false);
    std::vector<std::string> stages;
    for (int s = 0, first = 0; s < layout_.stages(); first += p.layers[s], ++s) {
      const NodeInfo& node = *p.nodes[s];
      const int end = first + p.layers[s], micros = Micros(chain_job_);
      const int under_way = p.warmups.empty() ? MicrosInFlight(chain_job_.strategy().schedule(),
                                                               layout_.stages(), s, micros)
                                              : std::min(micros, p.warmups[s] + 1);
      const auto bytes = [&](const JobSpec& how) {
        return TrainedBytes(how, first, end, node, under_way, p.slice);
      };
      const double more_s = StageTime(chain_job_, node, first, end, p.slice).backward_s -
                            StageTime(without, node, first, end, p.slice).backward_s;
      const int64_t less = bytes(without) - bytes(chain_job_);
      stages.push_back(absl::StrCat("stage ", s, " needs ", FormatBytes(std::abs(less)),
                                    less < 0 ? " more" : " less", " and ", FormatSeconds(more_s),
                                    " more a micro-batch"));
    }
    return absl::StrCat(
        "recomputes: of a micro-batch under way a stage keeps the inputs of its layers, and "
        "computes a layer again in its backward pass: ",
        absl::StrJoin(stages, ", "));
  }

  std::string ValidationWords() const {
    if (data_.validation_files.empty()) return "";
    return absl::StrCat("; the validation set is ", data_.validation_files, ", ",
                        data_.validation_samples,
                        " samples: it is not trained on, and data.validation_share does not apply");
  }

  // Where real steps differ from the measured block by more than a tenth.
  std::string FactorWords(int stage) const {
    const auto at = in_.compute_factors.find(chain_->nodes[stage]->id());
    if (at == in_.compute_factors.end() || std::abs(at->second - 1) < kFactorWorthAWord) return "";
    return absl::StrFormat(" (by what steps of jobs took: %.2g x the measured block)", at->second);
  }

  std::string ResumedBuffers() const {
    const std::string head = absl::StrCat("resumed at step ", in_.start_step, ": ");
    if (chain_->remaining.buffers_since < 0)
      return absl::StrCat(
          head,
          "no delta buffers of the steps before are counted on (other daemons, cut, "
          "codecs or data): the next visit of each sample counts as a first one");
    return absl::StrCat(head, "its daemons keep the delta buffers of samples visited since step ",
                        chain_->remaining.buffers_since, "; those of others count as not there");
  }

  void Warn(std::string text) { words_.warnings.push_back(std::move(text)); }

  // Codecs without state lose nothing by another placement.
  void WarnOfMove() {
    const auto& links = in_.previous.links();
    if (!found_.moved_why.empty() && std::any_of(links.begin(), links.end(), [](const LinkPlan& l) {
          return IsStateful(l.forward()) || IsStateful(l.backward());
        }))
      Warn(absl::StrCat(found_.moved_why,
                        ". Codecs whose state is not with both daemons of a link begin anew"));
  }

  // It speeds up for as many agreements as 1 / (1 - momentum) a few times over, and throws a model
  // that still learns fast far past where its replicas were.
  void WarnOfMomentum() {
    const StrategySpec& s = in_.job.strategy();
    if (!several_ || s.local_steps() < 2 || s.outer_momentum() < 0.5) return;
    const int64_t agreements = in_.job.recipe().steps() / s.local_steps();
    if (agreements >= kAgreementsOfMomentum) return;
    Warn(absl::StrCat("strategy.outer_momentum ", s.outer_momentum(), " wants ",
                      kAgreementsOfMomentum, " agreements and more, this job has ", agreements,
                      ": the loss may rise after the first of them. outer_learning_rate: 1 with "
                      "outer_momentum: 0, the mean of the replicas, suits short jobs"));
  }

  void WarnOfSync() {
    const StrategySpec& strategy = in_.job.strategy();
    if (strategy.local_steps() > 1 && !several_)
      Warn(absl::StrCat("strategy.local_steps ", strategy.local_steps(),
                        " changes nothing with one replica: there is nobody to agree with "
                        "(strategy.replicas)"));
    if (strategy.local_steps() > 1 && several_ &&
        in_.job.recipe().steps() - in_.start_step < strategy.local_steps())
      Warn(absl::StrCat("the job ends before strategy.local_steps (", strategy.local_steps(),
                        ") are made: replicas agree once, after its last step"));
    WarnOfMomentum();
    double compute_s = 0;
    for (const Placement& p : layout_.chains) compute_s = std::max(compute_s, ComputeSeconds(p));
    if (layout_.sync_s <= compute_s || (!several_ && layout_.stages() == 1)) return;
    if (several_) {
      Warn(absl::StrCat("sync takes ", FormatSeconds(layout_.sync_s), " a step, of it ",
                        FormatSeconds(layout_.reduce_s),
                        " what replicas exchange, more than the compute (",
                        FormatSeconds(compute_s),
                        "): use a larger recipe.global_batch, compression.gradients of fewer "
                        "bits, or fewer replicas"));
      return;
    }
    const bool halves = IsTied(in_.job.model()) && layout_.tied.kind() == CodecSpec::NONE &&
                        layout_.reduce_s / 2 > kTiedMustPay * layout_.sync_s;
    const bool zstd = layout_.tied.zstd();
    Warn(absl::StrCat("sync takes ", FormatSeconds(layout_.sync_s), " a step",
                      zstd ? " (zstd may take less)" : "", ", more than the compute (",
                      FormatSeconds(compute_s), "): use a larger recipe.global_batch",
                      halves ? ", compression.tied bf16," : "", " or fewer stages"));
  }

  // From a share of kFirstVisitsWarning on.
  void WarnOfFirstVisits(int b) {
    const Placement& p = *chain_;
    const CodecSpec& codec = p.boundaries[b].forward;
    if (!HasBuffers(codec) || !p.data.known || p.first_visits < kFirstVisitsWarning) return;
    const TensorDims dims{in_.job.recipe().micro_batch(), in_.job.model().context(),
                          in_.job.model().hidden()};
    CodecSpec cheaper = codec;
    *cheaper.mutable_cold() = ParseCodec("quant(8)").value();
    std::vector<std::string> cures;
    if (EncodedBytes(cheaper, dims, false) < EncodedBytes(codec, dims, false))
      cures.push_back(FormatCodec(cheaper));
    if (!NeedsTokenIds(codec)) cures.push_back("predict(CODEC), which needs no earlier visit");
    cures.push_back("more passes over the data (recipe.steps)");
    Warn(absl::StrCat(
        "boundary ", Id(b), ": delta coding gains ", p.first_visits == 1 ? "nothing" : "little",
        " here: ", VisitWords(codec, dims, p.first_visits), ", so a micro-batch takes ",
        FormatBytes(MeanEncodedBytes(codec, dims, p.first_visits)), " in the mean. Use ",
        absl::StrJoin(cures, ", or ")));
  }

  void WarnOfBoundaries() {
    const Placement& p = *chain_;
    for (int b = 0; b + 1 < layout_.stages(); ++b) {
      const BoundaryChoice& c = p.boundaries[b];
      if (!c.fits) {
        Warn(absl::StrCat("boundary ", Id(b), " (", Name(b), " - ", Name(b + 1),
                          ") is slower than the compute: up ", FormatSeconds(c.up_s), ", down ",
                          FormatSeconds(c.down_s), " a micro-batch, compute ",
                          FormatSeconds(p.slowest_s)));
      }
      if (std::max(c.up.loss, c.down.loss) > kLossWarning) {
        Warn(absl::StrFormat(
            "boundary %s (%s - %s) loses %.1f %% of its packets: expect less than its rate", Id(b),
            Name(b), Name(b + 1), 100 * std::max(c.up.loss, c.down.loss)));
      }
      if (HasBuffers(c.forward) && !p.data.known)
        Warn(absl::StrCat("boundary ", Id(b),
                          ": the size of the delta buffers could not be checked, and all visits "
                          "of samples are counted as first ones: the daemons did not list their "
                          "data"));
      WarnOfFirstVisits(b);
    }
  }

  // Daemons whose data can't be used may be what the user forgot to renew.
  void WarnOfData() {
    if (!data_.doubt.empty()) Warn(data_.doubt);
    int told = 0;
    for (const NodeInfo& node : in_.topology.nodes()) {
      absl::Status data = CountSamples(in_.job, node).status();
      if (data.ok()) data = SameData(in_.job, *layout_.chain().nodes.front(), node);
      if (data.ok() || absl::IsNotFound(data) || ++told > kDataWarnings) continue;
      Warn(absl::StrCat("daemon ", node.name(),
                        " can't be the first or the last stage: ", data.message()));
    }
  }

  // What the job says and this plan has no use for.
  void WarnOfUnused() {
    const CompressionSpec& c = in_.job.compression();
    for (const BoundaryCodec& b : c.boundaries()) {
      if (b.boundary() + 1 >= layout_.stages())
        Warn(absl::StrCat("compression.boundaries names boundary ", b.boundary(),
                          ", which this plan does not have (", layout_.stages() - 1,
                          " boundaries)"));
    }
    if (c.has_gradient_stages() && !several_) {
      Warn(absl::StrCat("compression.gradient_stages ", c.gradient_stages(),
                        " changes nothing with one replica: there is nobody to exchange gradients "
                        "with (strategy.replicas)"));
    } else if (c.has_gradient_stages() && c.gradient_stages() > layout_.stages()) {
      Warn(absl::StrCat("compression.gradient_stages is ", c.gradient_stages(),
                        ", and this plan has ", layout_.stages(), " stages"));
    }
  }

  void WarnAll() {
    WarnOfData();
    WarnOfMove();
    WarnOfSync();
    ForEachChain([this] { WarnOfBoundaries(); });
    for (const std::string& warning : deadlines_.warnings) Warn(warning);
    ForEachChain([this] { WarnOfChain(); });
    WarnOfUnused();
    if (data_.known && data_.validation_samples == 0 && in_.job.recipe().eval_samples() > 0)
      Warn(data_.validation_files.empty()
               ? "no samples are left for validation: data.validation_share is too small"
               : absl::StrCat("no samples for validation: ", data_.validation_files,
                              " holds less than one sample"));
  }

  // One replica validates and all store one checkpoint; the rest is said of each chain.
  void WarnOfChain() {
    const Placement& p = *chain_;
    const int micros = Micros(chain_job_), stages = layout_.stages();
    if (p.spill_bytes > 0)
      Warn(absl::StrCat(of_, FormatBytes(p.spill_bytes),
                        " of delta buffers at each end go to a spill file on disk"));
    if (p.buffer_bytes > 0 && p.buffer_memory_bytes < in_.job.compression().buffer_memory_bytes() &&
        p.spill_bytes > 0) {
      Warn(absl::StrCat(of_, "compression.buffer_memory_bytes is lowered to ",
                        FormatBytes(p.buffer_memory_bytes),
                        " so that every daemon stays within its memory"));
    }
    if (stages > 1 && micros < stages) {
      Warn(absl::StrFormat(
          "%s%d micro-batches for %d stages: each stage idles at least %.0f %% of a step", of_,
          micros, stages, 100.0 * (stages - 1) / (micros + stages - 1)));
    }
    if (Overlaps(in_.job) && stages > 1 && !p.warmups.empty() && micros <= p.warmups[0] + 1) {
      Warn(absl::StrCat(
          of_, "strategy.schedule overlap: a step has ", micros,
          " micro-batches, all of them under way at once: stages wait for each other's votes. "
          "More of them (a larger recipe.global_batch or a smaller recipe.micro_batch) hide that"));
    }
    if (p.other_step_s > 0 && p.other_step_s < kOtherScheduleGain * p.step_s) {
      Warn(absl::StrCat(of_, "strategy.schedule ", p.other_schedule, " would take ",
                        FormatSeconds(p.other_step_s), " a step instead of ",
                        FormatSeconds(p.step_s),
                        p.other_schedule == "gpipe" ? " (it keeps more micro-batches under way, "
                                                      "which hides the links) and fits the memory"
                                                    : ", and fits the memory"));
    }
    for (int s = 0; s < stages; ++s) {
      if (p.bytes[s] > kMemoryWarning * StageRoom(*p.nodes[s])) {
        Warn(absl::StrCat(of_, "stage ", s, " is predicted to fill ", FormatBytes(p.bytes[s]),
                          " of the ", RoomWords(*p.nodes[s]), " that ", Name(s), " may use"));
      }
    }
  }

  const PlannerInput& in_;
  const Found& found_;
  const Layout& layout_;
  const DataSize& data_;
  const PlannedDeadlines& deadlines_;
  const Plan& plan_;
  const bool several_;
  int replica_ = 0;  // the chain that is spoken of ...
  const Placement* chain_ = nullptr;
  JobSpec chain_job_;
  int first_rank_ = 0;
  std::string of_;  // "replica 1: "; empty where there is one
  PlanWords words_;
};

}  // namespace

std::string BoundaryId(const Layout& layout, int replica, int boundary) {
  return absl::StrCat("b", boundary, layout.replicas() > 1 ? absl::StrCat(".", replica) : "");
}

PlanWords WordsOfPlan(const PlannerInput& input, const Found& found, const DataSize& data,
                      const PlannedDeadlines& deadlines, const Plan& plan) {
  return Words(input, found, data, deadlines, plan).All();
}

}  // namespace isthmus::coordinator
