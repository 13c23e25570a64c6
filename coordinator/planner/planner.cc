#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/deadlines.h"
#include "coordinator/planner/search.h"
#include "proto/codec/codec_text.h"
#include "proto/data/data_files.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"
#include "proto/plan/actions.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

// Window of a link: what is under way in two round trips at the measured rate, within bounds.
constexpr int64_t kMinWindowBytes = 256 << 10;
constexpr int64_t kMaxWindowBytes = 64 << 20;
constexpr double kWindowRoundTrips = 2;
// Chunk: what the link carries in this time, within bounds, so that votes never wait long behind a
// tensor.
constexpr double kChunkSeconds = 0.05;
constexpr int64_t kMinChunkBytes = 64 << 10;
constexpr int64_t kMaxChunkBytes = 512 << 10;
constexpr double kLossWarning = 0.01;
constexpr double kMemoryWarning = 0.9;
constexpr double kFirstVisitsWarning = 0.5;  // share, of delta codecs
constexpr int kDataWarnings = 3;             // of daemons with other data
constexpr double kFactorWorthAWord = 0.1;
constexpr double kTiedMustPay =
    0.1;  // a smaller tied codec is named if it saves this share of sync
constexpr double kOtherScheduleGain =
    0.9;  // the other schedule is recommended if a step takes at most this share of the time

int64_t WindowBytes(double rate_up, double rate_down, double round_trip_s) {
  const double bytes = std::max(rate_up, rate_down) / 8 * round_trip_s * kWindowRoundTrips;
  return static_cast<int64_t>(std::clamp<double>(bytes, kMinWindowBytes, kMaxWindowBytes));
}

int64_t ChunkBytes(double rate) {
  const double bytes = std::clamp<double>(rate / 8 * kChunkSeconds, kMinChunkBytes, kMaxChunkBytes);
  return static_cast<int64_t>(bytes) / kMinChunkBytes * kMinChunkBytes;
}

class Writer {
 public:
  Writer(const PlannerInput& input, const Found& found)
      : in_(input), p_(found.best), found_(found), stages_(p_.nodes.size()) {}

  absl::StatusOr<PlannedJob> Write() {
    Plan& plan = out_.plan;
    plan.set_job_id(in_.job_id);
    plan.set_generation(in_.generation);
    *plan.mutable_job() = in_.job;
    plan.mutable_job()->mutable_compression()->set_buffer_memory_bytes(p_.buffer_memory_bytes);
    plan.mutable_job()->mutable_compression()->set_tied(FormatCodec(p_.tied));
    plan.set_start_step(in_.start_step);
    plan.set_from_checkpoint(in_.from_checkpoint);
    if (in_.data.has_value()) *plan.mutable_data() = *in_.data;
    if (p_.data.known) plan.set_train_samples(p_.data.train_samples);
    plan.set_predicted_step_s(p_.step_s);
    if (HasDelta(p_)) plan.set_first_visits(p_.first_visits);
    WriteRanks();
    WriteLinks();
    AddTiedGroup(p_.tied, &plan);
    RETURN_IF_ERROR(WriteActions(p_.warmups, &plan));
    WriteDeadlines();
    Explain();
    WarnAll();
    if (plan.ByteSizeLong() > static_cast<size_t>(kMaxPlanBytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan would have ", plan.ByteSizeLong(), " bytes, more than the ",
                       kMaxPlanBytes, " that one message carries: ", Micros(in_.job),
                       " micro-batches on ", stages_, " stages. Use larger micro-batches"));
    }
    return std::move(out_);
  }

 private:
  void Say(std::string line) { out_.plan.add_explanation(std::move(line)); }
  const std::string& Name(int stage) const { return p_.nodes[stage]->name(); }

  void WriteRanks() {
    const int micros = Micros(in_.job);
    for (int s = 0, first = 0; s < stages_; first += p_.layers[s], ++s) {
      RankPlan* rank = out_.plan.add_ranks();
      rank->set_stage(s);
      rank->set_node_id(p_.nodes[s]->id());
      rank->set_node_name(Name(s));
      rank->set_address(p_.nodes[s]->address());
      rank->set_first_layer(first);
      rank->set_end_layer(first + p_.layers[s]);
      rank->set_predicted_step_s(p_.compute[s].sum() * micros);
      rank->set_memory_bytes(p_.bytes[s]);
    }
  }

  LinkPlan* AddLink(const std::string& id, LinkPlan::Kind kind, int lower, int upper,
                    const LinkIndex::Link& up, const LinkIndex::Link& down) {
    LinkPlan* link = out_.plan.add_links();
    link->set_id(id);
    link->set_kind(kind);
    link->set_lower(lower);
    link->set_upper(upper);
    link->set_upper_dials(!up.dials);
    if (!up.dials)
      Say(absl::StrCat("link ", id, ": ", Name(upper), " dials ", Name(lower),
                       ", which can't dial it: ", up.why_not));
    const double round_trip_s = std::max(up.round_trip_s, down.round_trip_s);
    link->set_window_bytes(WindowBytes(up.rate_bits_per_s, down.rate_bits_per_s, round_trip_s));
    link->set_chunk_bytes(ChunkBytes(std::min(up.rate_bits_per_s, down.rate_bits_per_s)));
    link->set_queue_limit(in_.job.strategy().queue_limit());
    link->set_rate_up_bits_per_s(up.rate_bits_per_s);
    link->set_rate_down_bits_per_s(down.rate_bits_per_s);
    link->set_round_trip_s(round_trip_s);
    longest_round_trip_s_ = std::max(longest_round_trip_s_, round_trip_s);
    for (double rate : {up.rate_bits_per_s, down.rate_bits_per_s}) {
      slowest_rate_ = slowest_rate_ == 0 ? rate : std::min(slowest_rate_, rate);
    }
    return link;
  }

  void WriteLinks() {
    for (int b = 0; b + 1 < stages_; ++b) {
      const BoundaryChoice& choice = p_.boundaries[b];
      LinkPlan* link =
          AddLink(absl::StrCat("b", b), LinkPlan::BOUNDARY, b, b + 1, choice.up, choice.down);
      *link->mutable_forward() = choice.forward;
      *link->mutable_backward() = choice.backward;
      *link->mutable_evaluation() = choice.evaluation;
    }
    if (stages_ == 1) return;
    AddLink(kTiedGroup, LinkPlan::GROUP, 0, stages_ - 1, p_.tied_up, p_.tied_down);
  }

  void WriteDeadlines() {
    DeadlineInput input;
    input.first_step_s = p_.first_step_s;
    input.again_step_s = p_.again_step_s;
    input.longest_round_trip_s = longest_round_trip_s_;
    input.slowest_rate_bits_per_s = slowest_rate_;
    input.paths = &in_.paths;
    deadlines_ = MakeDeadlines(out_.plan, input);
    *out_.plan.mutable_deadlines() = deadlines_.deadlines;
  }

  void Explain() {
    const JobSpec& job = in_.job;
    const int micros = Micros(job);
    Say(absl::StrCat(
        "model: ", job.model().layers(), " layers x ", job.model().hidden(), " channels, ",
        FormatCount(ParameterCount(job.model())), " parameters; a step is ", micros,
        micros == 1 ? " micro-batch of " : " micro-batches of ", job.recipe().micro_batch(),
        " samples x ", job.model().context(), " positions"));
    if (p_.data.known) {
      Say(absl::StrCat("data: ", p_.data.train_samples, " training samples; ", job.recipe().steps(),
                       " steps are ", absl::StrFormat("%.2f", p_.data.passes), " passes over them",
                       ValidationWords()));
    } else {
      Say(absl::StrCat("data: the number of samples is not known: daemon ", Name(0),
                       " does not list '", job.data().path(), "' (it lists ", kMaxDataFiles,
                       " files, directories two levels deep)"));
    }
    if (in_.start_step > 0 && in_.data.has_value())
      Say(absl::StrCat("data: goes on at sample ", in_.data->offset(), " of pass ",
                       in_.data->epoch() + 1, "; ", in_.data->samples(), " are consumed"));
    for (const std::string& line : found_.considered) Say(line);
    const bool chosen = found_.considered.size() > 1;
    if (chosen)
      Say(absl::StrCat("chosen: ", stages_, stages_ == 1 ? " stage" : " stages",
                       "; one more has to make a step ", std::lround(100 * (1 - kStagesMustPay)),
                       " % shorter"));
    if (!found_.moved_why.empty()) Say(found_.moved_why);
    for (int s = 0; s < stages_; ++s) {
      const RankPlan& stage = out_.plan.ranks(s);
      Say(absl::StrCat("stage ", s, " on ", Name(s), ": layers ", stage.first_layer(), "-",
                       stage.end_layer() - 1, ", ", FormatSeconds(p_.compute[s].forward_s),
                       " forward + ", FormatSeconds(p_.compute[s].backward_s),
                       " backward a micro-batch", FactorWords(s), "; memory ",
                       FormatBytes(stage.memory_bytes()), " of ",
                       FormatBytes(p_.nodes[s]->memory_bytes())));
    }
    for (int b = 0; b + 1 < stages_; ++b) {
      Say(absl::StrCat("boundary b", b, " ", Name(b), " -> ", Name(b + 1), ": ",
                       p_.boundaries[b].forward_why));
      Say(absl::StrCat("boundary b", b, " ", Name(b + 1), " -> ", Name(b), ": ",
                       p_.boundaries[b].backward_why));
    }
    for (const std::string& why : {p_.codecs_why, p_.tied_why})
      if (!why.empty()) Say(why);
    if (p_.buffer_bytes > 0) {
      Say(absl::StrCat(
          "delta buffers: ", FormatBytes(p_.buffer_bytes), " at each end of a boundary, ",
          FormatBytes(std::min(p_.buffer_bytes, p_.buffer_memory_bytes)), " of it in memory",
          p_.spill_bytes > 0 ? absl::StrCat(", ", FormatBytes(p_.spill_bytes), " on disk") : "",
          "; with checkpoints they are saved there as well, up to ",
          FormatBytes(kSavedStates * p_.buffer_bytes), " on disk"));
    }
    for (const std::string& kept : {PlacesWords(job, p_), ResidualWords(job, p_)})
      if (!kept.empty()) Say(kept);
    if (HasDelta(p_) && in_.start_step > 0) Say(ResumedBuffers());
    if (!p_.warmups_why.empty()) Say(p_.warmups_why);
    Say(absl::StrCat("a step: ", FormatSeconds(p_.step_s), " = pipeline ",
                     FormatSeconds(p_.pipeline_s), " (slowest stage computes ",
                     FormatSeconds(p_.slowest_s * micros), ") + sync ", FormatSeconds(p_.sync_s),
                     " + optimiser ", FormatSeconds(p_.optimizer_s),
                     p_.first_step_s > 1.01 * p_.again_step_s
                         ? absl::StrCat("; the mean of ", FormatSeconds(p_.first_step_s),
                                        " where samples are visited for the first time and ",
                                        FormatSeconds(p_.again_step_s), " after")
                         : ""));
    for (const std::string& line : deadlines_.explanation) Say(line);
  }

  std::string ValidationWords() const {
    if (p_.data.validation_files.empty()) return "";
    return absl::StrCat("; the validation set is ", p_.data.validation_files, ", ",
                        p_.data.validation_samples,
                        " samples: it is not trained on, and data.validation_share does not apply");
  }

  // Where real steps differ from the measured block by more than a tenth.
  std::string FactorWords(int stage) const {
    const auto at = in_.compute_factors.find(p_.nodes[stage]->id());
    if (at == in_.compute_factors.end() || std::abs(at->second - 1) < kFactorWorthAWord) return "";
    return absl::StrFormat(" (by what steps of jobs took: %.2g x the measured block)", at->second);
  }

  std::string ResumedBuffers() const {
    const std::string head = absl::StrCat("resumed at step ", in_.start_step, ": ");
    if (p_.remaining.buffers_since < 0)
      return absl::StrCat(
          head,
          "no delta buffers of the steps before are counted on (other daemons, cut, "
          "codecs or data): the next visit of each sample counts as a first one");
    return absl::StrCat(head, "its daemons keep the delta buffers of samples visited since step ",
                        p_.remaining.buffers_since, "; those of others count as not there");
  }

  void Warn(std::string text) { out_.warnings.push_back(std::move(text)); }

  // Codecs without state lose nothing by another placement.
  void WarnOfMove() {
    const auto& links = in_.previous.links();
    if (!found_.moved_why.empty() && std::any_of(links.begin(), links.end(), [](const LinkPlan& l) {
          return IsStateful(l.forward()) || IsStateful(l.backward());
        }))
      Warn(absl::StrCat(found_.moved_why,
                        ". Codecs whose state is not with both daemons of a link begin anew"));
  }

  void WarnOfSync() {
    const double compute_s = p_.slowest_s * Micros(in_.job);
    if (stages_ == 1 || p_.sync_s <= compute_s) return;
    const bool halves =
        p_.tied.kind() == CodecSpec::NONE && p_.tied_s / 2 > kTiedMustPay * p_.sync_s;
    const bool zstd = p_.tied.zstd();
    Warn(absl::StrCat("sync takes ", FormatSeconds(p_.sync_s), " a step",
                      zstd ? ", zstd may take less" : "", ", more than the compute (",
                      FormatSeconds(compute_s), "): use a larger recipe.global_batch",
                      halves ? ", compression.tied bf16," : "", " or fewer stages"));
  }

  // From a share of kFirstVisitsWarning on.
  void WarnOfFirstVisits(int b) {
    const CodecSpec& codec = p_.boundaries[b].forward;
    if (!HasBuffers(codec) || !p_.data.known || p_.first_visits < kFirstVisitsWarning) return;
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
        "boundary b", b, ": delta coding gains ", p_.first_visits == 1 ? "nothing" : "little",
        " here: ", VisitWords(codec, dims, p_.first_visits), ", so a micro-batch takes ",
        FormatBytes(MeanEncodedBytes(codec, dims, p_.first_visits)), " in the mean. Use ",
        absl::StrJoin(cures, ", or ")));
  }

  void WarnOfBoundaries() {
    for (int b = 0; b + 1 < stages_; ++b) {
      const BoundaryChoice& c = p_.boundaries[b];
      if (!c.fits) {
        Warn(absl::StrCat("boundary b", b, " (", Name(b), " - ", Name(b + 1),
                          ") is slower than the compute: up ", FormatSeconds(c.up_s), ", down ",
                          FormatSeconds(c.down_s), " a micro-batch, compute ",
                          FormatSeconds(p_.slowest_s)));
      }
      if (std::max(c.up.loss, c.down.loss) > kLossWarning) {
        Warn(absl::StrFormat(
            "boundary b%d (%s - %s) loses %.1f %% of its packets: expect less than its rate", b,
            Name(b), Name(b + 1), 100 * std::max(c.up.loss, c.down.loss)));
      }
      if (HasBuffers(c.forward) && !p_.data.known)
        Warn(absl::StrCat("boundary b", b,
                          ": the size of the delta buffers could not be checked, and all visits "
                          "of samples are counted as first ones: the daemons did not list their "
                          "data"));
      WarnOfFirstVisits(b);
    }
  }

  // Daemons whose data can't be used may be what the user forgot to renew.
  void WarnOfData() {
    if (!p_.data.doubt.empty()) Warn(p_.data.doubt);
    int told = 0;
    for (const NodeInfo& node : in_.topology.nodes()) {
      absl::Status data = CountSamples(in_.job, node).status();
      if (data.ok()) data = SameData(in_.job, *p_.nodes.front(), node);
      if (data.ok() || absl::IsNotFound(data) || ++told > kDataWarnings) continue;
      Warn(absl::StrCat("daemon ", node.name(),
                        " can't be the first or the last stage: ", data.message()));
    }
  }

  void WarnAll() {
    const int micros = Micros(in_.job);
    WarnOfData();
    WarnOfMove();
    WarnOfSync();
    WarnOfBoundaries();
    for (const std::string& warning : deadlines_.warnings) Warn(warning);
    if (p_.spill_bytes > 0)
      Warn(absl::StrCat(FormatBytes(p_.spill_bytes),
                        " of delta buffers at each end go to a spill file on disk"));
    if (p_.buffer_bytes > 0 &&
        p_.buffer_memory_bytes < in_.job.compression().buffer_memory_bytes() &&
        p_.spill_bytes > 0) {
      Warn(absl::StrCat("compression.buffer_memory_bytes is lowered to ",
                        FormatBytes(p_.buffer_memory_bytes),
                        " so that every daemon stays within its memory"));
    }
    if (stages_ > 1 && micros < stages_) {
      Warn(absl::StrFormat(
          "%d micro-batches for %d stages: each stage idles at least %.0f %% of a step", micros,
          stages_, 100.0 * (stages_ - 1) / (micros + stages_ - 1)));
    }
    if (p_.other_step_s > 0 && p_.other_step_s < kOtherScheduleGain * p_.step_s) {
      Warn(absl::StrCat(
          "strategy.schedule ", p_.other_schedule, " would take ", FormatSeconds(p_.other_step_s),
          " a step instead of ", FormatSeconds(p_.step_s),
          " (it keeps more micro-batches under way, which hides the links) and fits the memory"));
    }
    for (int s = 0; s < stages_; ++s) {
      if (p_.bytes[s] > kMemoryWarning * p_.nodes[s]->memory_bytes()) {
        Warn(absl::StrCat("stage ", s, " is predicted to fill ", FormatBytes(p_.bytes[s]),
                          " of the ", FormatBytes(p_.nodes[s]->memory_bytes()), " that ", Name(s),
                          " may use"));
      }
    }
    for (const BoundaryCodec& b : in_.job.compression().boundaries()) {
      if (b.boundary() + 1 >= stages_)
        Warn(absl::StrCat("compression.boundaries names boundary ", b.boundary(),
                          ", which this plan does not have (", stages_ - 1, " boundaries)"));
    }
    if (p_.data.known && p_.data.validation_samples == 0 && in_.job.recipe().eval_samples() > 0)
      Warn(p_.data.validation_files.empty()
               ? "no samples are left for validation: data.validation_share is too small"
               : absl::StrCat("no samples for validation: ", p_.data.validation_files,
                              " is shorter than model.context"));
  }

  const PlannerInput& in_;
  const Placement& p_;
  const Found& found_;
  const int stages_;
  PlannedJob out_;
  double longest_round_trip_s_ = 0;
  double slowest_rate_ = 0;
  PlannedDeadlines deadlines_;
};

}  // namespace

absl::StatusOr<PlannedJob> MakePlan(const PlannerInput& input) {
  RETURN_IF_ERROR(ValidateJob(input.job));
  if (input.start_step >= input.job.recipe().steps()) {
    return absl::InvalidArgumentError(absl::StrCat("recipe.steps: ", input.job.recipe().steps(),
                                                   " steps, and ", input.start_step,
                                                   " are done already: nothing is left to do"));
  }
  const LinkIndex links(input.topology);
  ASSIGN_OR_RETURN(const Found found, FindPlacement(input, links));
  return Writer(input, found).Write();
}

}  // namespace isthmus::coordinator
