#include "coordinator/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/codec_memory.h"
#include "coordinator/figures.h"
#include "proto/codec_pair.h"
#include "proto/codec_text.h"
#include "proto/model_cost.h"

namespace isthmus::coordinator {
namespace {

// Without what depends on the direction.
CodecQuestion Question(const JobSpec& job, const Placement& p, int boundary) {
  CodecQuestion question;
  question.compute_s = p.slowest_s;
  question.dims = {job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
  question.vocabulary = job.model().vocabulary();
  question.samples_known = p.data.known;
  question.first_visits = p.first_visits;
  CodecSpec delta;
  delta.set_kind(CodecSpec::DELTA);
  question.buffers_fit = p.data.known && CheckBuffers(job, p, boundary, delta).ok();
  question.free_bytes = FreeBytes(p, boundary);
  return question;
}

// Would a forward direction above the boundary predict, if token ids came along to it?
bool PredictsAbove(const JobSpec& job, const Placement& p, int boundary, const LinkIndex& links) {
  for (size_t b = static_cast<size_t>(boundary) + 1; b + 1 < p.nodes.size(); ++b) {
    const std::string wanted = WantedCodecsOf(job, static_cast<int>(b)).forward;
    CodecQuestion question = Question(job, p, static_cast<int>(b));
    question.tokens_known = true;
    question.rate_bits_per_s = links.Get(p.nodes[b]->id(), p.nodes[b + 1]->id()).rate_bits_per_s;
    const absl::StatusOr<CodecSpec> codec =
        wanted == "auto" ? ChooseCodec(question).codec : ParseCodec(wanted);
    if (!codec.ok()) return false;
    if (NeedsTokenIds(*codec)) return true;
    if (wanted != "auto") return false;  // it does not pass them on either
  }
  return false;
}

// A kept as the backward codec of `forward`.
absl::Status Bind(const CodecSpec& forward, int boundary, CodecSpec* backward) {
  absl::StatusOr<CodecSpec> bound = BindBackward(forward, *backward);
  if (!bound.ok()) return Annotate(bound.status(), absl::StrCat("boundary b", boundary));
  *backward = *std::move(bound);
  return absl::OkStatus();
}

absl::Status ChooseBoundary(const JobSpec& job, Placement* p, int boundary,
                            const LinkIndex& links) {
  const NodeInfo &lower = *p->nodes[boundary], &upper = *p->nodes[boundary + 1];
  BoundaryChoice choice;
  choice.up = links.Get(lower.id(), upper.id());
  choice.down = links.Get(upper.id(), lower.id());
  for (const auto& [link, from, to] :
       {std::tie(choice.up, lower, upper), std::tie(choice.down, upper, lower)}) {
    if (!link.usable)
      return absl::UnavailableError(
          absl::StrCat("link: ", from.name(), " -> ", to.name(), ": ", link.why_not));
  }
  CodecQuestion question = Question(job, *p, boundary);
  const TensorDims dims = question.dims;
  const bool tokens_come = boundary == 0 || NeedsTokenIds(p->boundaries[boundary - 1].forward);
  question.tokens_wanted = tokens_come && PredictsAbove(job, *p, boundary, links);
  const WantedCodecs wanted = WantedCodecsOf(job, boundary);
  auto choose = [&](const std::string& text, bool forward, CodecSpec* codec,
                    std::string* why) -> absl::Status {
    question.forward = forward;
    question.rate_bits_per_s = (forward ? choice.up : choice.down).rate_bits_per_s;
    question.tokens_known = tokens_come && (forward || NeedsTokenIds(choice.forward));
    question.free_bytes = FreeBytes(*p, boundary);
    if (text == "auto") {
      CodecAnswer answer = ChooseCodec(question);
      *codec = answer.codec;
      *why = answer.why;
      choice.fits = choice.fits && answer.fits;
      return PlaceState(job, boundary, forward, *codec, &choice, p);
    }
    ASSIGN_OR_RETURN(*codec, ParseCodec(text));
    if (!forward) RETURN_IF_ERROR(Bind(choice.forward, boundary, codec));
    const double busy_s =
        MeanWireBytes(*codec, question.dims, p->first_visits) * 8 / question.rate_bits_per_s;
    choice.fits = choice.fits && busy_s <= p->slowest_s;
    *why = absl::StrCat(
        FormatRate(question.rate_bits_per_s), " measured, ", FormatSeconds(busy_s),
        " a micro-batch, compute ", FormatSeconds(p->slowest_s), " -> ", FormatCodec(*codec),
        NeedsPlaces(*codec) ? absl::StrCat(" at the places of ", FormatCodec(choice.forward)) : "",
        " as the job says");
    if (HasBuffers(*codec))
      absl::StrAppend(why, " (", VisitWords(*codec, question.dims, p->first_visits), ")");
    if (NeedsTokenIds(*codec) && !question.tokens_known) {
      return absl::InvalidArgumentError(absl::StrCat(
          "boundary b", boundary, ", ", forward ? "forward " : "backward ", FormatCodec(*codec),
          ": predict needs the token ids, which come along only where each forward codec from the "
          "first stage to here is a predict; on a link that needs none, predict(none) passes them "
          "on"));
    }
    return PlaceState(job, boundary, forward, *codec, &choice, p);
  };
  RETURN_IF_ERROR(choose(wanted.forward, true, &choice.forward, &choice.forward_why));
  question.dims = WireDims(choice.forward, dims);
  RETURN_IF_ERROR(choose(wanted.backward, false, &choice.backward, &choice.backward_why));
  ASSIGN_OR_RETURN(choice.evaluation, ParseCodec(job.compression().evaluation()));
  if (choice.forward.kind() == CodecSpec::NONE && wanted.forward == "auto")
    choice.evaluation = choice.forward;
  if (HasBuffers(choice.forward) && p->data.known) {
    RETURN_IF_ERROR(CheckBuffers(job, *p, boundary, choice.forward));
    p->buffer_bytes = std::max(p->buffer_bytes, BufferNeed(job, *p, choice.forward));
  }
  const double rate = choice.up.rate_bits_per_s;
  choice.up_s = MeanWireBytes(choice.forward, dims, p->first_visits) * 8 / rate;
  choice.first_up_s = WireBytes(choice.forward, dims, false) * 8 / rate;
  choice.again_up_s = WireBytes(choice.forward, dims, true) * 8 / rate;
  choice.down_s = WireBytes(choice.backward, question.dims, true) * 8 / choice.down.rate_bits_per_s;
  p->boundaries.push_back(std::move(choice));
  return absl::OkStatus();
}

absl::Status PriceTied(const JobSpec& job, Placement* p, const LinkIndex& links) {
  const NodeInfo &first = *p->nodes.front(), &last = *p->nodes.back();
  p->tied_up = links.Get(first.id(), last.id());
  p->tied_down = links.Get(last.id(), first.id());
  for (const auto& [link, from, to] :
       {std::tie(p->tied_up, first, last), std::tie(p->tied_down, last, first)}) {
    if (!link.usable)
      return absl::UnavailableError(absl::StrCat("link: ", from.name(), " -> ", to.name(),
                                                 " (tied embedding): ", link.why_not));
  }
  ASSIGN_OR_RETURN(const CodecSpec codec, ParseCodec(job.compression().tied()));
  const double bits =
      8 * WireBytes(codec, {1, job.model().vocabulary(), job.model().hidden()}, true);
  p->tied_s = bits / std::min(p->tied_up.rate_bits_per_s, p->tied_down.rate_bits_per_s);
  p->sync_s = p->tied_s + std::max(p->tied_up.round_trip_s, p->tied_down.round_trip_s) / 2;
  for (const BoundaryChoice& b : p->boundaries)
    p->sync_s += (b.up.round_trip_s + b.down.round_trip_s) / 2;  // the vote down, the decision up
  return absl::OkStatus();
}

enum class Visits { kFirst, kAgain, kMean };

ScheduleCosts Costs(const Placement& p, Visits visits) {
  ScheduleCosts costs;
  for (const StageSeconds& c : p.compute) {
    costs.forward_s.push_back(c.forward_s);
    costs.backward_s.push_back(c.backward_s);
  }
  for (const BoundaryChoice& b : p.boundaries) {
    costs.up_s.push_back(visits == Visits::kFirst   ? b.first_up_s
                         : visits == Visits::kAgain ? b.again_up_s
                                                    : b.up_s);
    costs.down_s.push_back(b.down_s);
    costs.latency_s.push_back((b.up.round_trip_s + b.down.round_trip_s) / 4);
  }
  return costs;
}

// Warm-up forwards within strategy.in_flight and memory; `limited` says in words what held them
// back. The bytes of the stages grow with them.
void LimitWarmUps(const JobSpec& job, Placement* p, std::string* limited) {
  const int stages = p->nodes.size(), micros = Micros(job), cap = job.strategy().in_flight();
  auto own = [&](int s) { return MicrosInFlight("1f1b", stages, s, micros) - 1; };  // warm-ups
  auto more = [&](int s) { return std::max(0, std::min(micros - 1, p->warmups[s]) - own(s)); };
  auto places = [&](int b) {  // of a micro-batch, at either end of boundary b
    return b >= 0 && b + 1 < stages ? p->boundaries[b].places_bytes : 0;
  };
  auto free = [&](int s) {
    return std::max<int64_t>(
        0, p->nodes[s]->memory_bytes() - p->bytes[s] - (s > 0 ? places(s - 1) * more(s - 1) : 0));
  };
  std::vector<int64_t> each;  // bytes of a micro-batch under way
  for (int s = 0, first = 0; s < stages; first += p->layers[s], ++s) {
    auto bytes = [&](int micros_in_flight) {
      return StageMemoryBytes(job.model(), first, first + p->layers[s], job.recipe().micro_batch(),
                              micros_in_flight);
    };
    each.push_back(std::max<int64_t>(1, bytes(2) - bytes(1) + places(s)));
    int& w = p->warmups[s];
    if (s > 0) w = std::min(w, p->warmups[s - 1]);
    if (cap > 0 && w > std::max(own(s), cap - 1)) {
      w = std::max(own(s), cap - 1);
      *limited = absl::StrCat(" (strategy.in_flight ", cap, " allows no more)");
    }
    for (int end : {s, s + 1}) {  // the stage above has the places too
      if (end > s && places(s) == 0) continue;
      const int64_t room =
          end == s ? free(s) : std::max<int64_t>(0, p->nodes[end]->memory_bytes() - p->bytes[end]);
      const int64_t spare = room / (end == s ? each[s] : places(s));
      if (w - own(s) <= spare) continue;
      w = own(s) + static_cast<int>(spare);
      *limited = absl::StrCat(" (the memory of ", p->nodes[end]->name(), " carries no more)");
    }
  }
  for (int s = stages - 2; s >= 0; --s) {
    p->warmups[s] = std::min(p->warmups[s], p->warmups[s + 1] + 2 * job.strategy().queue_limit());
  }
  for (int s = 0; s < stages; ++s)
    p->bytes[s] += each[s] * more(s) + (s > 0 ? places(s - 1) * more(s - 1) : 0);
}

// More micro-batches under way than 1F1B's own, so that the links' transfers and latencies pass
// while others are computed.
void ChooseWarmUps(const JobSpec& job, Placement* p) {
  const int stages = p->nodes.size(), micros = Micros(job);
  if (job.strategy().schedule() != "1f1b" || stages == 1) return;
  const ScheduleCosts costs = Costs(*p, Visits::kMean);
  const int limit = job.strategy().queue_limit();
  p->warmups = WarmUpForwards(costs, stages, micros, limit);
  const int wanted = WarmUpForwards(costs, stages, micros, micros)[0];
  std::string limited;
  if (wanted > p->warmups[0])
    limited = absl::StrCat(" (strategy.queue_limit ", limit, " allows no more; ",
                           std::min(micros, wanted + 1), " would hide the links)");
  LimitWarmUps(job, p, &limited);
  if (p->warmups[0] <= stages - 1 && limited.empty()) return;
  std::vector<int> under_way;
  for (int w : p->warmups) under_way.push_back(std::min(micros, w + 1));
  p->warmups_why = absl::StrCat(
      "schedule: 1f1b with ", absl::StrJoin(under_way, ", "),
      " micro-batches under way on the stages (1f1b's own: ", std::min(micros, stages),
      " falling to 1), so that the links work while the stages compute; the slowest part takes ",
      FormatSeconds(SlowestPart(costs, stages)), " a micro-batch", limited);
}

// Seconds until the last backward pass ends.
struct PipelineSeconds {
  double first = 0, again = 0, mean = 0;
};

// The first visits come together, in the first pass: the mean is one of steps, not of frames.
absl::StatusOr<PipelineSeconds> Pipeline(const JobSpec& job, const Placement& p) {
  const int stages = p.nodes.size();
  ASSIGN_OR_RETURN(const std::vector<StageActions> schedule,
                   BuildSchedule(job.strategy().schedule(), stages, Micros(job), p.warmups));
  // A boundary holds frames in the queues of both its ends.
  const int limit = 2 * job.strategy().queue_limit();
  PipelineSeconds s;
  ASSIGN_OR_RETURN(const Simulation again,
                   SimulateSchedule(schedule, limit, Costs(p, Visits::kAgain)));
  s.first = s.again = s.mean = again.makespan_s;
  if (!HasDelta(p)) return s;
  ASSIGN_OR_RETURN(const Simulation first,
                   SimulateSchedule(schedule, limit, Costs(p, Visits::kFirst)));
  s.first = first.makespan_s;
  s.mean = p.first_visits * s.first + (1 - p.first_visits) * s.again;
  return s;
}

// Bytes of places on a stage that `other`'s schedule needs beyond the job's own.
int64_t MorePlaces(const JobSpec& job, const JobSpec& other, const Placement& p, int stage) {
  const int stages = p.nodes.size(), micros = Micros(job);
  int64_t bytes = 0;
  for (int b : {stage - 1, stage}) {
    if (b < 0 || b + 1 >= stages) continue;
    bytes += p.boundaries[b].places_bytes *
             (MicrosInFlight(other.strategy().schedule(), stages, b, micros) -
              MicrosInFlight(job.strategy().schedule(), stages, b, micros));
  }
  return bytes;
}

absl::Status Simulate(const JobSpec& job, Placement* p) {
  const int stages = p->nodes.size();
  ASSIGN_OR_RETURN(const PipelineSeconds pipeline, Pipeline(job, *p));
  p->pipeline_s = pipeline.mean;
  JobSpec other = job;
  p->other_schedule = job.strategy().schedule() == "gpipe" ? "1f1b" : "gpipe";
  other.mutable_strategy()->set_schedule(p->other_schedule);
  bool other_fits = stages > 1;
  for (int s = 0, first = 0; s < stages; first += p->layers[s], ++s) {
    const int end = first + p->layers[s];
    p->optimizer_s = std::max(p->optimizer_s, kOptimizerSecondsPerParameter *
                                                  StageCost(job.model(), first, end, 1).parameters);
    const int64_t more = StageBytes(other, stages, s, first, end) -
                         StageBytes(job, stages, s, first, end) + MorePlaces(job, other, *p, s);
    other_fits = other_fits && p->bytes[s] + more <= p->nodes[s]->memory_bytes();
  }
  const double after_s = p->sync_s + p->optimizer_s;
  p->step_s = p->pipeline_s + after_s;
  p->first_step_s = pipeline.first + after_s;
  p->again_step_s = pipeline.again + after_s;
  if (other_fits) {
    ASSIGN_OR_RETURN(const PipelineSeconds other_s, Pipeline(other, *p));
    p->other_step_s = other_s.mean + after_s;
  }
  return absl::OkStatus();
}

}  // namespace

WantedCodecs WantedCodecsOf(const JobSpec& job, int boundary) {
  const CompressionSpec& c = job.compression();
  WantedCodecs wanted{c.forward(), c.backward()};
  for (const BoundaryCodec& b : c.boundaries()) {
    if (b.boundary() != boundary) continue;
    if (b.has_forward()) wanted.forward = b.forward();
    if (b.has_backward()) wanted.backward = b.backward();
  }
  return wanted;
}

bool HasDelta(const Placement& p) {
  return std::any_of(p.boundaries.begin(), p.boundaries.end(),
                     [](const BoundaryChoice& b) { return HasBuffers(b.forward); });
}

absl::StatusOr<Placement> PricePlacement(const JobSpec& job,
                                         const std::vector<const NodeInfo*>& nodes,
                                         const std::vector<int>& layers, const LinkIndex& links,
                                         const Remaining& remaining) {
  Placement p;
  p.nodes = nodes;
  const int stages = nodes.size();
  for (const NodeInfo* node : nodes) {
    if (!HasCompute(*node))
      return absl::FailedPreconditionError(
          absl::StrCat("daemon ", node->name(), " has not measured its compute"));
  }
  ASSIGN_OR_RETURN(p.data, CountSamples(job, *nodes.front()));
  p.remaining = remaining;
  p.first_visits = FirstVisits(job, p.data, remaining);
  if (stages > 1) RETURN_IF_ERROR(CountSamples(job, *nodes.back()).status());
  p.layers = layers;
  if (layers.empty()) {
    ASSIGN_OR_RETURN(p.layers, BalanceLayers(job, nodes));
  } else {
    RETURN_IF_ERROR(CheckMemory(job, nodes, layers));
  }
  for (int s = 0, first = 0; s < stages; first += p.layers[s], ++s) {
    p.compute.push_back(StageTime(job, *nodes[s], first, first + p.layers[s]));
    p.bytes.push_back(StageBytes(job, stages, s, first, first + p.layers[s]));
    p.slowest_s = std::max(p.slowest_s, p.compute.back().sum());
  }
  for (int b = 0; b + 1 < stages; ++b) RETURN_IF_ERROR(ChooseBoundary(job, &p, b, links));
  PlaceBuffers(job, &p);
  RETURN_IF_ERROR(CheckSpill(job, p));
  ChooseWarmUps(job, &p);
  if (stages > 1) RETURN_IF_ERROR(PriceTied(job, &p, links));
  RETURN_IF_ERROR(Simulate(job, &p));
  return p;
}

}  // namespace isthmus::coordinator
