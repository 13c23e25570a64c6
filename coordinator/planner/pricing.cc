#include "coordinator/planner/pricing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/reduction_cost.h"
#include "coordinator/planner/slices.h"
#include "coordinator/planner/step_time.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/family.h"
#include "proto/model/model_cost.h"
#include "proto/plan/overlap.h"

namespace isthmus::coordinator {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Of a schedule with more passes than that only few choices of codecs are simulated.
constexpr int kMostPassesSearched = 4096;
// Of the step time without: what a prediction can't tell from nothing.
constexpr double kEpilogueMayCost = 1.002;

TensorDims BoundaryDims(const JobSpec& job) {
  return {job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
}

// A kept as the backward codec of `forward`.
absl::Status Bind(const CodecSpec& forward, int boundary, CodecSpec* backward) {
  absl::StatusOr<CodecSpec> bound = BindBackward(forward, *backward);
  if (!bound.ok()) return Annotate(bound.status(), absl::StrCat("boundary b", boundary));
  *backward = *std::move(bound);
  return absl::OkStatus();
}

// Room for what a stage reduces with the others of its group.
absl::Status PlaceReduction(const JobSpec& job, int replicas, int s, int first, Placement* p) {
  const int end = first + p->layers[s];
  const int64_t dealt = DealtParameters(job.model(), first, end, p->slice);
  const int64_t shared = StageCost(job.model(), first, end, 1).parameters - dealt;
  const int64_t bytes = ReductionBytes(job, shared, replicas) + ExchangeBytes(dealt, p->slice);
  const NodeInfo& node = *p->nodes[s];
  int64_t& taken = HostBytes(s, p);
  taken += bytes;
  if (taken <= node.memory_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: to agree with ", replicas - 1, replicas == 2 ? " other replica" : " other replicas",
      ", stage ", s, " needs ", FormatBytes(bytes), " more on daemon ", node.name(), ", ",
      FormatBytes(taken), " in all; it may use ", FormatBytes(node.memory_bytes()),
      OnCard(node) ? " of its host" : "", ". Use more stages, or fewer replicas"));
}

// Room for what an end of the chain keeps of the tied embedding's gradient.
absl::Status PlaceTied(const JobSpec& job, int replicas, int s, Placement* p) {
  const NodeInfo& node = *p->nodes[s];
  const TiedBytes tied = TiedBytesAt(job, replicas, node);
  const bool on_host = tied.host > 0;
  p->bytes[s] += tied.stage;
  p->host_bytes[s] += tied.host;
  const int64_t taken = on_host ? p->host_bytes[s] : p->bytes[s];
  const int64_t room = on_host ? node.memory_bytes() : StageRoom(node);
  if (tied.stage + tied.host == 0 || taken <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: the ", tied.exchange ? "exchange by" : "residual of", " compression.tied ",
      job.compression().tied(), " needs ", FormatBytes(tied.stage + tied.host), " more on daemon ",
      node.name(), ", ", FormatBytes(taken), " in all; it may use ",
      on_host ? absl::StrCat(FormatBytes(room), " of its host") : RoomWords(node),
      !tied.exchange ? ". Use a codec without error feedback"
      : on_host      ? ". Use another codec, or set model.tied: false"
                     : ". Give that stage fewer layers, or set model.tied: false"));
}

// The links of a boundary, without codecs.
absl::StatusOr<BoundaryChoice> LinksOf(const Placement& p, int boundary, const LinkIndex& links) {
  const NodeInfo &lower = *p.nodes[boundary], &upper = *p.nodes[boundary + 1];
  BoundaryChoice choice;
  choice.up = links.Get(lower.id(), upper.id());
  choice.down = links.Get(upper.id(), lower.id());
  for (const auto& [link, from, to] :
       {std::tie(choice.up, lower, upper), std::tie(choice.down, upper, lower)}) {
    if (!link.usable)
      return absl::UnavailableError(
          absl::StrCat("link: ", from.name(), " -> ", to.name(), ": ", link.why_not));
  }
  return choice;
}

// ---- what `auto` may choose ----

// Bytes of the predicts of a daemon with `ends` ends of boundaries, both directions.
int64_t TableBytes(const JobSpec& job, int ends) {
  int64_t bytes = 0;
  for (const char* text : {"predict(quant(8, token), context=3)",
                           "predict(quant(8, token, symmetric), context=2, next)"})
    bytes += PredictorBytes(*ParseCodec(text), BoundaryDims(job), job.model().vocabulary());
  return ends * bytes;
}

CodecQuestion Question(const JobSpec& job, const Placement& p, int boundary, bool forward,
                       bool states_fit) {
  const LinkIndex::Link& link = forward ? p.boundaries[boundary].up : p.boundaries[boundary].down;
  CodecQuestion q;
  q.forward = forward;
  q.rate_bits_per_s = link.rate_bits_per_s;
  q.dims = BoundaryDims(job);
  q.min_bits = job.compression().min_bits();
  q.samples_known = p.data.known;
  q.first_visits = p.first_visits;
  CodecSpec delta;
  delta.set_kind(CodecSpec::DELTA);
  q.buffers_fit = p.data.known && CheckBuffers(job, p, boundary, delta).ok();
  const int last = static_cast<int>(p.nodes.size()) - 1;
  q.table_bytes = TableBytes(job, boundary > 0 || boundary + 1 < last ? 2 : 1);
  q.free_bytes = FreeBytes(p, boundary);
  q.states_fit = states_fit;
  q.token_ids = !IsMlp(job.model());
  return q;
}

void KeepEpilogueCodecs(std::vector<CodecOption>* options) {
  options->erase(std::remove_if(options->begin(), options->end(),
                                [](const CodecOption& o) { return !CheckEpilogue(o.codec).ok(); }),
                 options->end());
}

// The codecs that are compared in both directions of each boundary: one where the job names it.
absl::StatusOr<std::vector<BoundaryOptions>> OptionsOf(const JobSpec& job, const Placement& p,
                                                       bool states_fit) {
  std::vector<BoundaryOptions> all;
  for (int b = 0; b + 1 < static_cast<int>(p.nodes.size()); ++b) {
    const WantedCodecs wanted = WantedCodecsOf(job, b);
    BoundaryOptions options;
    CodecQuestion q = Question(job, p, b, true, states_fit);
    if (wanted.forward == "auto") {
      options.forward = CodecOptions(q);
      options.forward_left_out = LeftOut(q);
    } else {
      ASSIGN_OR_RETURN(const CodecSpec codec, ParseCodec(wanted.forward));
      options.forward.push_back(OptionOf(q, codec));
    }
    q = Question(job, p, b, false, states_fit);
    q.dims = WireDims(options.forward[0].codec, q.dims);  // an autoencoder is never one of several
    if (wanted.backward == "auto") {
      options.backward = CodecOptions(q);
      if (job.compression().backward_when() == "epilogue") KeepEpilogueCodecs(&options.backward);
      options.backward_left_out = LeftOut(q);
    } else {
      ASSIGN_OR_RETURN(CodecSpec codec, ParseCodec(wanted.backward));
      if (options.forward.size() == 1) RETURN_IF_ERROR(Bind(options.forward[0].codec, b, &codec));
      options.backward.push_back(OptionOf(q, codec));
    }
    all.push_back(std::move(options));
  }
  return all;
}

// ---- a placement with given codecs ----

// Who takes the token ids that a boundary's forward codec passes on, in words.
std::string IdsFor(const std::vector<BoundaryOptions>& options, const CodecPicks& picks,
                   size_t boundary) {
  for (size_t b = boundary; b < picks.size(); ++b) {
    const CodecSpec& up = options[b].forward[picks[b].forward].codec;
    const bool down = NeedsTokenIds(options[b].backward[picks[b].backward].codec);
    if (down || (NeedsTokenIds(up) && up.inner().kind() == CodecSpec::QUANT))
      return absl::StrCat("b", b, "'s ", b == boundary || down ? "backward " : "", "predict");
  }
  return "nobody";  // as the job says
}

// Why a direction has its codec, with the figures.
std::string Why(const JobSpec& job, const Placement& p, int boundary, bool forward,
                const std::string& left_out, bool tokens_come, const std::string& ids_for) {
  const BoundaryChoice& choice = p.boundaries[boundary];
  const WantedCodecs wanted = WantedCodecsOf(job, boundary);
  const CodecSpec& codec = forward ? choice.forward : choice.backward;
  const double rate = (forward ? choice.up : choice.down).rate_bits_per_s;
  const double in_full_s = WireBytes(CodecSpec(), BoundaryDims(job), true) * 8 / rate;
  std::string why = absl::StrCat(
      FormatRate(rate), " measured, ", FormatSeconds(forward ? choice.up_s : choice.down_s),
      " a micro-batch (", FormatSeconds(in_full_s), " in fp32), compute ",
      FormatSeconds(p.slowest_s), " -> ", FormatCodec(codec),
      NeedsIndices(codec) ? absl::StrCat(" at the indices of ", FormatCodec(choice.forward)) : "");
  std::vector<std::string> notes;
  if (HasBuffers(codec)) notes.push_back(VisitWords(codec, BoundaryDims(job), p.first_visits));
  const bool by_auto = (forward ? wanted.forward : wanted.backward) == "auto";
  if (!by_auto) absl::StrAppend(&why, " as the job says");
  if (by_auto && (codec.kind() == CodecSpec::QUANT || codec.kind() == CodecSpec::PREDICT) &&
      !left_out.empty())
    notes.push_back(left_out);
  if (by_auto && codec.kind() == CodecSpec::QUANT && !tokens_come)
    notes.push_back("no predict: token ids do not come along");
  if (by_auto && codec.kind() == CodecSpec::PREDICT)
    notes.push_back(
        codec.inner().kind() != CodecSpec::QUANT
            ? absl::StrCat("predict: passes the token ids on, which ", ids_for, " needs")
        : forward ? "predict: what the last tokens and the position foretell"
                  : "predict: what the next token foretells of its gradient");
  return notes.empty() ? why : absl::StrCat(why, " (", absl::StrJoin(notes, "; "), ")");
}

// compression.backward_when, where the boundary's gradients are compressed at all.
bool CodesEpilogue(const JobSpec& job, const CodecSpec& backward, const CodecPick& pick) {
  const bool wanted = job.compression().backward_when() == "epilogue" || pick.epilogue;
  return wanted && !Overlaps(job) && backward.kind() != CodecSpec::NONE &&
         CheckEpilogue(backward).ok();
}

// The gradients beside the epilogue's: the link is busy with one in fp32, and cores move its bytes.
void SetRawGradients(const TensorDims& dims, BoundaryChoice* c) {
  const double bytes = WireBytes(CodecSpec(), dims, true);
  c->epilogue_down_s = c->down_s;
  c->down_s = bytes * 8 / c->down.rate_bits_per_s;
  c->backward_core_s = kTransportSecondsPerByte * bytes;
}

// Nothing where the job does not ask for it.
std::string EpilogueWords(const JobSpec& job, const Placement& p, const BoundaryChoice& c) {
  const bool by_auto = job.compression().backward_when() == "auto";
  if (!c.epilogue) {
    return by_auto && !Overlaps(job) && c.backward.kind() != CodecSpec::NONE &&
                   CheckEpilogue(c.backward).ok()
               ? "; of all gradients: with the epilogue's alone a step would take longer"
               : "";
  }
  const int micros = Micros(job);
  const bool hidden = c.down_s <= p.slowest_s;
  return absl::StrCat("; in the epilogue alone, the last ", c.epilogue_micros, " of a step's ",
                      micros, " gradients, ", FormatSeconds(c.epilogue_down_s), " each",
                      by_auto ? " (auto: a step takes no longer than with all of them)" : "",
                      "; the others go as fp32, which the compute ",
                      hidden ? "hides" : "does not hide");
}

// What the codecs lose, and its price. Of an epilogue in proportion.
void PriceLosses(const JobSpec& job, Placement* p) {
  for (const BoundaryChoice& c : p->boundaries) {
    for (const bool up : {true, false}) {
      const double share =
          !up && c.epilogue ? static_cast<double>(c.epilogue_micros) / Micros(job) : 1;
      const double loss = share * ExpectedLoss(up ? c.forward : c.backward, up).value_or(0);
      p->loss += loss;
      p->price += loss > 0 ? share * kQuantisedPrice + kStepsForLoss * loss : 0;
    }
  }
}

// The codecs of one boundary: what they take of link, cores and memory, and their price.
absl::Status SetCodecs(const JobSpec& job, int boundary, const std::vector<BoundaryOptions>& all,
                       const CodecPicks& picks, bool in_words, Placement* p) {
  const BoundaryOptions& options = all[static_cast<size_t>(boundary)];
  const CodecPick& pick = picks[static_cast<size_t>(boundary)];
  BoundaryChoice& c = p->boundaries[boundary];
  c.forward = options.forward[pick.forward].codec;
  c.backward = options.backward[pick.backward].codec;
  const TensorDims dims = BoundaryDims(job), narrow = WireDims(c.forward, dims);
  const bool tokens_come = boundary == 0 || NeedsTokenIds(p->boundaries[boundary - 1].forward);
  for (const bool up : {true, false}) {
    const CodecSpec& codec = up ? c.forward : c.backward;
    if (NeedsTokenIds(codec) && !(tokens_come && (up || NeedsTokenIds(c.forward)))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "boundary b", boundary, ", ", up ? "forward " : "backward ", FormatCodec(codec),
          ": predict needs the token ids, which come along only where each forward codec from the "
          "first stage to here is a predict; on a link that needs none, predict(none) passes them "
          "on"));
    }
    RETURN_IF_ERROR(PlaceState(job, boundary, up, codec, &c, p));
  }
  ASSIGN_OR_RETURN(c.evaluation, ParseCodec(job.compression().evaluation()));
  if (c.forward.kind() == CodecSpec::NONE && WantedCodecsOf(job, boundary).forward == "auto")
    c.evaluation = c.forward;
  if (HasBuffers(c.forward) && p->data.known) {
    RETURN_IF_ERROR(CheckBuffers(job, *p, boundary, c.forward));
    p->buffer_bytes = std::max(p->buffer_bytes, BufferNeed(job, *p, c.forward));
  }
  const double rate = c.up.rate_bits_per_s;
  c.up_s = MeanWireBytes(c.forward, dims, p->first_visits) * 8 / rate;
  c.first_up_s = WireBytes(c.forward, dims, false) * 8 / rate;
  c.again_up_s = WireBytes(c.forward, dims, true) * 8 / rate;
  c.down_s = WireBytes(c.backward, narrow, true) * 8 / c.down.rate_bits_per_s;
  c.forward_codec_s = CodecSeconds(c.forward, dims);
  c.backward_codec_s = CodecSeconds(c.backward, narrow);
  c.forward_core_s = c.forward_codec_s +
                     kTransportSecondsPerByte * MeanWireBytes(c.forward, dims, p->first_visits);
  c.backward_core_s =
      c.backward_codec_s + kTransportSecondsPerByte * WireBytes(c.backward, narrow, true);
  c.epilogue = CodesEpilogue(job, c.backward, pick);
  if (c.epilogue) SetRawGradients(narrow, &c);
  c.fits = std::max(c.up_s, c.down_s) <= p->slowest_s;
  if (!in_words) return absl::OkStatus();
  c.forward_why = Why(job, *p, boundary, true, options.forward_left_out, tokens_come,
                      IdsFor(all, picks, static_cast<size_t>(boundary)));
  c.backward_why = Why(job, *p, boundary, false, options.backward_left_out,
                       tokens_come && NeedsTokenIds(c.forward), "");
  return absl::OkStatus();
}

// `base` with these codecs, priced.
absl::StatusOr<Placement> WithCodecs(const JobSpec& job, const Placement& base,
                                     const std::vector<BoundaryOptions>& options,
                                     const CodecPicks& picks, const LinkIndex& links,
                                     bool in_words) {
  Placement p = base;
  for (size_t b = 0; b < picks.size(); ++b) {
    RETURN_IF_ERROR(SetCodecs(job, static_cast<int>(b), options, picks, in_words, &p));
  }
  PlaceBuffers(job, &p);
  RETURN_IF_ERROR(CheckSpill(job, p));
  ChooseWarmUps(job, in_words, &p);
  RETURN_IF_ERROR(CountEpilogues(job, &p));
  PriceLosses(job, &p);
  for (BoundaryChoice& c : p.boundaries) {
    if (in_words) c.backward_why += EpilogueWords(job, p, c);
  }
  if (p.nodes.size() > 1) RETURN_IF_ERROR(PriceTied(job, links, &p));
  RETURN_IF_ERROR(PriceStep(job, in_words, &p));
  return p;
}

// ---- the codecs of `auto` ----

// The picks where each `auto` is `kind`; nothing where that can't be.
std::optional<CodecPicks> AllOf(const std::vector<BoundaryOptions>& options, CodecSpec::Kind kind) {
  CodecPicks picks;
  bool differs = false;
  const auto find = [&](const std::vector<CodecOption>& of) {
    const auto at = std::find_if(of.begin(), of.end(), [&](const CodecOption& o) {
      return of.size() > 1 && o.codec.kind() == kind;
    });
    differs = differs || at != of.end();
    return at == of.end() ? 0 : static_cast<size_t>(at - of.begin());
  };
  for (const BoundaryOptions& o : options) picks.push_back({find(o.forward), find(o.backward)});
  return differs ? std::optional<CodecPicks>(picks) : std::nullopt;
}

// "codecs: a step of 4.1 s, 4.3 s with bf16 and 4.9 s with none wherever the job says auto; ..."
std::string CodecsWhy(const JobSpec& job, const Placement& base, const Placement& p,
                      const std::vector<BoundaryOptions>& options, const LinkIndex& links) {
  std::vector<std::string> others;
  for (const CodecSpec::Kind kind : {CodecSpec::BF16, CodecSpec::NONE}) {
    const std::optional<CodecPicks> picks = AllOf(options, kind);
    if (!picks.has_value()) return "";
    const absl::StatusOr<Placement> other = WithCodecs(job, base, options, *picks, links, false);
    if (other.ok())
      others.push_back(absl::StrCat(FormatSeconds(other->step_s), " with ",
                                    kind == CodecSpec::NONE ? "none" : "bf16"));
  }
  if (others.empty()) return "";
  return absl::StrCat(
      "codecs: a step of ", FormatSeconds(p.step_s), ", against ", absl::StrJoin(others, " and "),
      " wherever the job says auto; expected price: ",
      p.loss > 0 ? absl::StrCat("a loss ", FormatShare(p.loss), " higher, as much as ",
                                FormatShare(kStepsForLoss * p.loss), " more steps")
                 : "none that was measured",
      " (compression.min_bits ", job.compression().min_bits(), ")");
}

// compression.backward_when auto: on each boundary the epilogue alone, where that makes no step
// longer.
void ChooseEpilogues(const JobSpec& job, const std::function<double(const CodecPicks&)>& cost,
                     CodecPicks* picks) {
  if (job.compression().backward_when() != "auto") return;
  double least = cost(*picks);
  for (CodecPick& pick : *picks) {
    pick.epilogue = true;
    const double with = cost(*picks);
    pick.epilogue = with <= kEpilogueMayCost * least;
    if (pick.epilogue) least = std::min(least, with);
  }
}

absl::StatusOr<Placement> ChooseCodecs(const JobSpec& job, const Placement& base,
                                       const LinkIndex& links, Effort effort) {
  const auto choose = [&](bool states_fit) -> absl::StatusOr<Placement> {
    ASSIGN_OR_RETURN(const std::vector<BoundaryOptions> options, OptionsOf(job, base, states_fit));
    const auto cost = [&](const CodecPicks& picks) {
      const absl::StatusOr<Placement> p = WithCodecs(job, base, options, picks, links, false);
      return p.ok() ? p->cost_s : kNever;
    };
    const int micros = Micros(job);
    const bool long_one = micros * static_cast<int>(base.nodes.size()) > kMostPassesSearched;
    CodecPicks picks = SearchCodecs(options, micros, micros * base.slowest_s,
                                    long_one ? Effort::kQuick : effort, cost);
    ChooseEpilogues(job, cost, &picks);
    absl::StatusOr<Placement> chosen =
        WithCodecs(job, base, options, picks, links, effort == Effort::kThorough);
    if (chosen.ok() && effort == Effort::kThorough)
      chosen->codecs_why = CodecsWhy(job, base, *chosen, options, links);
    return chosen;
  };
  absl::StatusOr<Placement> chosen = choose(true);
  // Buffers and tables together may not fit: without them.
  return absl::IsResourceExhausted(chosen.status()) ? choose(false) : chosen;
}

}  // namespace

absl::StatusOr<std::vector<int>> CutLayers(const JobSpec& job, int replicas,
                                           const std::vector<const NodeInfo*>& nodes,
                                           const SliceShare& slice) {
  std::vector<const NodeInfo*> left = nodes;
  NodeInfo ends[2];
  for (const bool last : {false, true}) {
    const NodeInfo*& node = last ? left.back() : left.front();
    const int64_t tied = nodes.size() > 1 ? TiedBytesAt(job, replicas, *node).stage : 0;
    if (tied == 0) continue;
    NodeInfo& end = ends[last] = *node;
    if (OnCard(end)) {
      end.set_device_memory_bytes(std::max<int64_t>(1, end.device_memory_bytes() - tied));
    } else {
      end.set_memory_bytes(end.memory_bytes() - tied);
    }
    node = &end;
  }
  absl::StatusOr<std::vector<int>> cut = BalanceLayers(job, left, slice);
  // Where none fits, what refuses the other one has the figures of the daemons.
  return cut.ok() ? cut : BalanceLayers(job, nodes, slice);
}

absl::StatusOr<Placement> PricePlacement(const JobSpec& whole,
                                         const std::vector<const NodeInfo*>& nodes,
                                         const std::vector<int>& layers, const LinkIndex& links,
                                         const Remaining& remaining, Effort effort,
                                         const ReplicaShare& share) {
  JobSpec job = whole;  // as this chain runs it
  if (share.samples > 0) job.mutable_recipe()->set_global_batch(share.samples);
  Placement p;
  p.nodes = nodes;
  const int stages = nodes.size();
  for (const NodeInfo* node : nodes) {
    if (!HasCompute(*node))
      return absl::FailedPreconditionError(
          absl::StrCat("daemon ", node->name(), " has not measured its compute"));
  }
  ASSIGN_OR_RETURN(p.data, CountSamples(whole, *nodes.front()));
  p.data.train_samples =
      p.data.train_samples * job.recipe().global_batch() / whole.recipe().global_batch();
  p.remaining = remaining;
  p.slice = share.slice;
  p.first_visits = FirstVisits(job, p.data, remaining);
  if (stages > 1) {
    RETURN_IF_ERROR(CountSamples(job, *nodes.back()).status());
    RETURN_IF_ERROR(SameData(job, *nodes.front(), *nodes.back()));
  }
  p.layers = layers;
  if (layers.empty()) {
    ASSIGN_OR_RETURN(p.layers, CutLayers(job, share.replicas, nodes, p.slice));
  } else {
    RETURN_IF_ERROR(CheckMemory(job, nodes, layers, p.slice));
  }
  for (int s = 0, first = 0; s < stages; first += p.layers[s], ++s) {
    p.compute.push_back(StageTime(job, *nodes[s], first, first + p.layers[s], p.slice));
    p.bytes.push_back(StageBytes(job, stages, s, first, first + p.layers[s], *p.nodes[s], p.slice));
    p.host_bytes.push_back(kProcessBytes);
    if (share.replicas > 1) RETURN_IF_ERROR(PlaceReduction(job, share.replicas, s, first, &p));
    if (stages > 1 && (s == 0 || s + 1 == stages))
      RETURN_IF_ERROR(PlaceTied(job, share.replicas, s, &p));
    p.slowest_s = std::max(p.slowest_s, p.compute.back().sum());
  }
  for (int b = 0; b + 1 < stages; ++b) {
    ASSIGN_OR_RETURN(BoundaryChoice choice, LinksOf(p, b, links));
    p.boundaries.push_back(std::move(choice));
  }
  ASSIGN_OR_RETURN(Placement chosen, ChooseCodecs(job, p, links, effort));
  if (share.replicas > 1) RETURN_IF_ERROR(SetAhead(job, &chosen));
  return chosen;
}

}  // namespace isthmus::coordinator
