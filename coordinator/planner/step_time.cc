#include "coordinator/planner/step_time.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_choice.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/reduced_choice.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"
#include "proto/plan/epilogue.h"
#include "proto/plan/overlap.h"
#include "proto/plan/schedule.h"

namespace isthmus::coordinator {
namespace {

// Of the bytes of a bf16 gradient of the head, what zstd leaves (1.24 to 1 in the run of
// README.md); the gradient of the embedding, at the other end, has rows of zeros and shrinks more.
constexpr double kZstdLeaves = 0.85;
// Where the number of samples is not known, steps of either kind count alike.
constexpr double kUnknownFirstVisits = 0.5;

enum class Visits { kFirst, kAgain, kMean };

// Seconds beyond the slowest of encoding, sending and decoding.
double OnTop(double link_s, double codec_s) {
  return link_s + 2 * codec_s - std::max(link_s, codec_s);
}

// A daemon computes on all its threads unless told otherwise: a second of a codec is taken from
// them. An accelerator computes beside them.
double CodecShare(const NodeInfo& node) {
  const bool cpu = node.device().empty() || node.device() == "cpu";
  return cpu ? 1.0 / std::max(1, node.threads()) : 0;
}

ScheduleCosts Costs(const Placement& p, Visits visits) {
  ScheduleCosts costs;
  for (const StageSeconds& c : p.compute) {
    costs.forward_s.push_back(c.forward_s);
    costs.backward_s.push_back(c.backward_s);
  }
  for (size_t b = 0; b < p.boundaries.size(); ++b) {
    const BoundaryChoice& c = p.boundaries[b];
    const double up_s = visits == Visits::kFirst   ? c.first_up_s
                        : visits == Visits::kAgain ? c.again_up_s
                                                   : c.up_s;
    // Encoding, sending and decoding follow each other for a micro-batch and go on at once for
    // several. The cores that encode and decode are those that compute.
    costs.up_s.push_back(std::max(up_s, c.forward_codec_s));
    const double backward_codec_s = c.epilogue ? 0 : c.backward_codec_s;
    costs.down_s.push_back(std::max(c.down_s, backward_codec_s));
    costs.latency_s.push_back((c.up.round_trip_s + c.down.round_trip_s) / 4 +
                              (OnTop(up_s, c.forward_codec_s) + OnTop(c.down_s, backward_codec_s)) /
                                  2);
    for (size_t s : {b, b + 1}) {
      const double share = CodecShare(*p.nodes[s]);
      costs.forward_s[s] += share * c.forward_core_s;
      costs.backward_s[s] += share * c.backward_core_s;
    }
  }
  return costs;
}

// The gradients of the epilogue take another time, where they alone are coded.
absl::Status AddEpilogues(const JobSpec& job, const Placement& p, const std::vector<int>& warmups,
                          ScheduleCosts* costs) {
  if (std::none_of(p.boundaries.begin(), p.boundaries.end(),
                   [](const BoundaryChoice& c) { return c.epilogue; }))
    return absl::OkStatus();
  const int micros = Micros(job), stages = static_cast<int>(p.nodes.size());
  ASSIGN_OR_RETURN(const std::vector<ActionList> schedule,
                   BuildSchedule(job.strategy().schedule(), stages, micros, warmups));
  costs->gradient_s.resize(p.boundaries.size());
  for (size_t b = 0; b < p.boundaries.size(); ++b) {
    const BoundaryChoice& c = p.boundaries[b];
    if (!c.epilogue) continue;
    costs->gradient_s[b].assign(micros, costs->down_s[b]);
    for (const int micro : EpilogueMicros(schedule[b], static_cast<int>(b))) {
      costs->gradient_s[b][micro] = std::max(c.epilogue_down_s, c.backward_codec_s) +
                                    OnTop(c.epilogue_down_s, c.backward_codec_s) / 2;
    }
  }
  return absl::OkStatus();
}

// Warm-up forwards within strategy.in_flight and memory; `limited` says in words what held them
// back.
class WarmUpLimits {
 public:
  WarmUpLimits(const JobSpec& job, const Placement& p)
      : p_(p),
        stages_(p.nodes.size()),
        micros_(Micros(job)),
        cap_(job.strategy().in_flight()),
        most_apart_(
            std::max(1, 2 * job.strategy().queue_limit() - VoteFrames(job.strategy().schedule()))) {
    for (int s = 0, first = 0; s < stages_; first += p.layers[s], ++s) {
      const int end = first + p.layers[s];
      auto bytes = [&](int micros_in_flight) {
        return TrainedBytes(job, first, end, *p.nodes[s], micros_in_flight);
      };
      each_.push_back(std::max<int64_t>(1, bytes(2) - bytes(1)));
    }
  }

  void Apply(std::vector<int>* warmups, std::string* limited) const {
    for (int s = 0; s < stages_; ++s) {
      int& w = (*warmups)[s];
      if (s > 0) w = std::min(w, (*warmups)[s - 1]);
      if (cap_ > 0 && w > std::max(Own(s), cap_ - 1)) {
        w = std::max(Own(s), cap_ - 1);
        *limited = absl::StrCat(" (strategy.in_flight ", cap_, " allows no more)");
      }
      for (int end : {s, s + 1}) {  // the stage above has the indices too
        if (end > s && Indices(s) == 0) continue;
        const int64_t spare = Spare(*warmups, s, end);
        if (w - Own(s) <= spare) continue;
        w = Own(s) + static_cast<int>(spare);
        *limited = absl::StrCat(" (the memory of ", p_.nodes[end]->name(), " carries no more)");
      }
    }
    for (int s = stages_ - 2; s >= 0; --s)
      (*warmups)[s] = std::min((*warmups)[s], (*warmups)[s + 1] + most_apart_);
  }

  // What is under way beyond 1F1B's own count.
  void AddBytes(const std::vector<int>& warmups, Placement* p) const {
    for (int s = 0; s < stages_; ++s) {
      p->bytes[s] += each_[s] * More(warmups, s);
      HostBytes(s, p) += Indices(s) * More(warmups, s) + Below(warmups, s);
    }
  }

 private:
  int Own(int s) const { return MicrosInFlight("1f1b", stages_, s, micros_) - 1; }
  int More(const std::vector<int>& warmups, int s) const {
    return std::max(0, std::min(micros_ - 1, warmups[s]) - Own(s));
  }
  int64_t Indices(int b) const {  // of a micro-batch, at either end of boundary b
    return b >= 0 && b + 1 < stages_ ? p_.boundaries[b].indices_bytes : 0;
  }
  // Indices at stage s of what the stage below has under way.
  int64_t Below(const std::vector<int>& warmups, int s) const {
    return s > 0 ? Indices(s - 1) * More(warmups, s - 1) : 0;
  }
  // Micro-batches of stage s that `end` has room for: `end` is s, or the stage above, which has
  // their indices. Those are in the host's memory, activations where the stage computes.
  int64_t Spare(const std::vector<int>& warmups, int s, int end) const {
    const NodeInfo& node = *p_.nodes[end];
    const int64_t host = FreeOnHost(p_, end) - (end == s ? Below(warmups, s) : 0);
    int64_t spare = micros_;
    const auto take = [&spare](int64_t each, int64_t free) {
      if (each > 0) spare = std::min(spare, std::max<int64_t>(0, free) / each);
    };
    const int64_t activations = end == s ? each_[s] : 0;
    if (OnCard(node)) take(activations, StageRoom(node) - p_.bytes[end]);
    take(OnCard(node) ? Indices(s) : activations + Indices(s), host);
    return spare;
  }

  const Placement& p_;
  const int stages_, micros_, cap_, most_apart_;
  std::vector<int64_t> each_;  // bytes of a micro-batch under way, without indices
};

// Seconds of a step's passes.
struct PipelineSeconds {
  double first = 0, again = 0, mean = 0;
};

// The first visits come together, in the first pass: the mean is one of steps, not of frames.
absl::StatusOr<PipelineSeconds> Pipeline(const JobSpec& job, const Placement& p,
                                         const std::vector<int>& warmups) {
  const int stages = p.nodes.size();
  // A boundary holds frames in the queues of both its ends.
  const int limit = 2 * job.strategy().queue_limit();
  const auto seconds = [&](Visits visits) -> absl::StatusOr<double> {
    ScheduleCosts costs = Costs(p, visits);
    RETURN_IF_ERROR(AddEpilogues(job, p, warmups, &costs));
    return StepSeconds(job.strategy().schedule(), stages, Micros(job), warmups, limit, costs);
  };
  PipelineSeconds s;
  ASSIGN_OR_RETURN(s.again, seconds(Visits::kAgain));
  s.first = s.mean = s.again;
  if (!HasDelta(p)) return s;
  ASSIGN_OR_RETURN(s.first, seconds(Visits::kFirst));
  s.mean = p.first_visits * s.first + (1 - p.first_visits) * s.again;
  return s;
}

// Bytes of indices on a stage that `other`'s schedule needs beyond the job's own.
int64_t MoreIndices(const JobSpec& job, const JobSpec& other, const Placement& p, int stage) {
  const int stages = p.nodes.size(), micros = Micros(job);
  int64_t bytes = 0;
  for (int b : {stage - 1, stage}) {
    if (b < 0 || b + 1 >= stages) continue;
    bytes += p.boundaries[b].indices_bytes *
             (MicrosInFlight(other.strategy().schedule(), stages, b, micros) -
              MicrosInFlight(job.strategy().schedule(), stages, b, micros));
  }
  return bytes;
}

struct WarmUps {
  std::vector<int> forwards;
  std::string limited;
  double slowest_s = 0;  // a micro-batch, on the slowest part
};

WarmUps WarmUpsFor(const JobSpec& job, const Placement& p, Visits visits) {
  const int stages = p.nodes.size(), micros = Micros(job);
  const int limit = job.strategy().queue_limit();
  const ScheduleCosts costs = Costs(p, visits);
  WarmUps w;
  const int votes = VoteFrames(job.strategy().schedule());
  w.forwards = WarmUpForwards(costs, stages, micros, limit, votes);
  w.slowest_s = SlowestPart(costs, stages);
  const int wanted = WarmUpForwards(costs, stages, micros, micros)[0];
  if (wanted > w.forwards[0])
    w.limited = absl::StrCat(" (strategy.queue_limit ", limit, " allows no more; ",
                             std::min(micros, wanted + 1), " would hide the links)");
  WarmUpLimits(job, p).Apply(&w.forwards, &w.limited);
  return w;
}

// What may be the best: one that keeps the slowest part at work in first or in later visits. Steps
// that overlap run one after the other where all of a step is under way on several stages: fewer
// are tried there, in the same proportions, down to the published stages - 1 - s.
// `all_of_them`: else two of those, as each of many codecs is looked at.
std::vector<WarmUps> WarmUpChoices(const JobSpec& job, const Placement& p, bool all_of_them) {
  std::vector<WarmUps> all = {WarmUpsFor(job, p, Visits::kMean)};
  if (HasDelta(p)) {
    for (const Visits visits : {Visits::kFirst, Visits::kAgain})
      all.push_back(WarmUpsFor(job, p, visits));
  }
  if (!Overlaps(job)) return all;
  const int stages = static_cast<int>(p.nodes.size()), micros = Micros(job);
  const std::vector<int> wanted =
      WarmUpForwards(Costs(p, Visits::kMean), stages, std::numeric_limits<int>::max() / 2,
                     job.strategy().queue_limit(), VoteFrames(job.strategy().schedule()));
  const WarmUpLimits limits(job, p);
  const int end = std::min(wanted[0], micros + 1);
  for (int most = 1; most < end;
       most = all_of_them ? std::max(most + 1, most * 4 / 3) : std::max(stages, end / 2) * most) {
    WarmUps fewer = all[0];
    for (int s = 0; s < stages; ++s) {
      const double share = static_cast<double>(wanted[s]) / wanted[0];
      fewer.forwards[s] = std::max(stages - 1 - s, static_cast<int>(std::ceil(share * most)));
    }
    fewer.limited = " (more of them would make a step longer)";
    limits.Apply(&fewer.forwards, &fewer.limited);
    const auto same = [&](const WarmUps& w) { return w.forwards == fewer.forwards; };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(std::move(fewer));
  }
  return all;
}

// Those that make the mean step of the run the shortest.
WarmUps BestWarmUps(const JobSpec& job, const Placement& p, bool of_all) {
  std::vector<WarmUps> all = WarmUpChoices(job, p, of_all);
  if (all.size() == 1) return std::move(all[0]);
  const double first = p.data.known ? p.first_visits : kUnknownFirstVisits;
  const auto seconds = [&](const WarmUps& w) {
    const absl::StatusOr<PipelineSeconds> s = Pipeline(job, p, w.forwards);
    return s.ok() ? first * s->first + (1 - first) * s->again
                  : std::numeric_limits<double>::infinity();
  };
  WarmUps best = all[0];
  double best_s = seconds(best);
  for (const WarmUps& other : all) {
    if (other.forwards == best.forwards) continue;
    const double other_s = seconds(other);
    if (other_s >= best_s * (1 - 1e-9)) continue;
    best = other;
    best_s = other_s;
  }
  return best;
}

// The tied embedding's exchange, the vote down and the decision up, none of it hidden.
double WholeSync(const Placement& p) {
  double sync_s = p.tied_s + std::max(p.tied_up.round_trip_s, p.tied_down.round_trip_s) / 2;
  for (const BoundaryChoice& b : p.boundaries)
    sync_s += (b.up.round_trip_s + b.down.round_trip_s) / 2;
  return sync_s;
}

// The time with the other schedule, where it fits the memory.
absl::Status PriceOther(const JobSpec& job, Placement* p) {
  const int stages = p->nodes.size();
  JobSpec other = job;
  p->other_schedule = job.strategy().schedule() == "1f1b" ? "gpipe" : "1f1b";
  other.mutable_strategy()->set_schedule(p->other_schedule);
  bool other_fits = stages > 1;
  for (int s = 0, first = 0; s < stages; first += p->layers[s], ++s) {
    const int end = first + p->layers[s];
    const NodeInfo& node = *p->nodes[s];
    const int64_t more = StageBytes(other, stages, s, first, end, node) -
                         StageBytes(job, stages, s, first, end, node);
    Placement with = *p;
    with.bytes[s] += more;
    HostBytes(s, &with) += MoreIndices(job, other, *p, s);
    other_fits = other_fits && with.bytes[s] <= StageRoom(node) &&
                 HostBytes(s, &with) <= node.memory_bytes();
  }
  if (!other_fits) return absl::OkStatus();
  const std::vector<int> warmups =
      Overlaps(job) ? BestWarmUps(other, *p, true).forwards : p->warmups;
  ASSIGN_OR_RETURN(const PipelineSeconds seconds, Pipeline(other, *p, warmups));
  p->other_step_s = seconds.mean + WholeSync(*p) + p->optimizer_s;
  return absl::OkStatus();
}

double Optimizer(const JobSpec& job, const Placement& p) {
  double slowest_s = 0;
  for (size_t s = 0, first = 0; s < p.nodes.size(); first += p.layers[s], ++s) {
    const int end = static_cast<int>(first) + p.layers[s];
    slowest_s = std::max(
        slowest_s, kOptimizerSecondsPerParameter *
                       StageCost(job.model(), static_cast<int>(first), end, 1, p.slice).parameters);
  }
  return slowest_s;
}

// Seconds of the exchange with this codec: both directions at once, the slower one counts.
double TiedSeconds(const JobSpec& job, const CodecSpec& codec, double rate_bits_per_s) {
  const TensorDims dims{1, job.model().vocabulary(), job.model().hidden()};
  const double leaves = codec.zstd() ? kZstdLeaves : 1;
  const double bytes = leaves * WireBytes(codec, dims, true);
  return 8 * bytes / rate_bits_per_s +
         2 * (CodecSeconds(codec, dims) + kTransportSecondsPerByte * bytes);
}

}  // namespace

double HiddenSync(const JobSpec& job, const Placement& p) {
  if (!Overlaps(job)) return 0;
  const int before = p.warmups.empty() ? static_cast<int>(p.nodes.size()) - 1 : p.warmups[0];
  const int micros = Micros(job);
  const ScheduleCosts costs = Costs(p, Visits::kMean);
  double votes_s = 0;  // simulated with the passes
  for (const BoundaryChoice& b : p.boundaries)
    votes_s += (b.up.round_trip_s + b.down.round_trip_s) / 2;
  return votes_s + static_cast<double>(micros - std::min(micros, before)) / 2 *
                       SlowestPart(costs, static_cast<int>(p.nodes.size()));
}

void ChooseWarmUps(const JobSpec& job, bool of_all, Placement* p) {
  const int stages = p->nodes.size(), micros = Micros(job);
  const std::string& schedule = job.strategy().schedule();
  if (schedule == "gpipe" || stages == 1) return;
  const WarmUps best = BestWarmUps(job, *p, of_all);
  p->warmups = best.forwards;
  WarmUpLimits(job, *p).AddBytes(p->warmups, p);
  if (!Overlaps(job) && p->warmups[0] <= stages - 1 && best.limited.empty()) return;
  std::vector<int> under_way;
  for (int w : p->warmups) under_way.push_back(std::min(micros, w + 1));
  p->warmups_why = absl::StrCat(
      "schedule: ", schedule, " with ", absl::StrJoin(under_way, ", "),
      " micro-batches under way on the stages (1f1b's own: ", std::min(micros, stages),
      " falling to 1), so that the links work while the stages compute; the slowest part takes ",
      FormatSeconds(best.slowest_s), " a micro-batch", best.limited,
      Overlaps(job) ? "; passes of the next step begin while those of this one end, with weights "
                      "that are one step late on every stage"
                    : "");
}

absl::Status CountEpilogues(const JobSpec& job, Placement* p) {
  if (Overlaps(job)) return absl::OkStatus();  // there are none
  const int stages = static_cast<int>(p->nodes.size());
  ASSIGN_OR_RETURN(const std::vector<ActionList> schedule,
                   BuildSchedule(job.strategy().schedule(), stages, Micros(job), p->warmups));
  for (int b = 0; b + 1 < stages; ++b) {
    BoundaryChoice& c = p->boundaries[b];
    if (c.epilogue) c.epilogue_micros = static_cast<int>(EpilogueMicros(schedule[b], b).size());
  }
  return absl::OkStatus();
}

absl::Status SetAhead(const JobSpec& job, Placement* p) {
  if (Overlaps(job)) return absl::OkStatus();
  const int stages = static_cast<int>(p->nodes.size());
  ASSIGN_OR_RETURN(const std::vector<ActionList> schedule,
                   BuildSchedule(job.strategy().schedule(), stages, Micros(job), p->warmups));
  ScheduleCosts costs = Costs(*p, Visits::kAgain);
  RETURN_IF_ERROR(AddEpilogues(job, *p, p->warmups, &costs));
  ASSIGN_OR_RETURN(const Simulation run, Simulate(schedule, Wiring::Chain(stages),
                                                  2 * job.strategy().queue_limit(), costs));
  for (const std::vector<TimedAction>& stage : run.ranks) {
    double end_s = 0;
    for (const TimedAction& t : stage) {
      if (t.action.op() == Action::BWD) end_s = t.end_s;
    }
    p->ahead_s.push_back(run.makespan_s - end_s);
  }
  return absl::OkStatus();
}

namespace {

// The exchange of the tied embedding's gradient: its codec, and its seconds without latency.
absl::Status PriceExchange(const JobSpec& job, const LinkIndex& links, Placement* p) {
  const NodeInfo &first = *p->nodes.front(), &last = *p->nodes.back();
  p->tied_up = links.Get(first.id(), last.id());
  p->tied_down = links.Get(last.id(), first.id());
  for (const auto& [link, from, to] :
       {std::tie(p->tied_up, first, last), std::tie(p->tied_down, last, first)}) {
    if (!link.usable)
      return absl::UnavailableError(absl::StrCat("link: ", from.name(), " -> ", to.name(),
                                                 " (tied embedding): ", link.why_not));
  }
  const double rate = std::min(p->tied_up.rate_bits_per_s, p->tied_down.rate_bits_per_s);
  const bool by_auto = job.compression().tied() == "auto";
  std::string why;
  ASSIGN_OR_RETURN(
      p->tied, ChooseReduced(
                   job, job.compression().tied(), kFourBitTiedLoss, p->slowest_s * Micros(job),
                   [&](const CodecSpec& codec) { return TiedSeconds(job, codec, rate); }, &why));
  WithFeedback(&p->tied, &why);
  if (!why.empty())
    p->tied_why = absl::StrCat(
        "tied embedding ", first.name(), " - ", last.name(), ": ",
        by_auto ? absl::StrCat(FormatRate(rate), " measured, its gradient takes ") : "", why);
  p->tied_s = TiedSeconds(job, p->tied, rate);
  return absl::OkStatus();
}

}  // namespace

absl::Status PriceTied(const JobSpec& job, const LinkIndex& links, Placement* p) {
  if (IsTied(job.model())) RETURN_IF_ERROR(PriceExchange(job, links, p));
  p->sync_s = std::max(0.0, WholeSync(*p) - HiddenSync(job, *p));
  return absl::OkStatus();
}

absl::Status PriceStep(const JobSpec& job, bool other, Placement* p) {
  ASSIGN_OR_RETURN(const PipelineSeconds pipeline, Pipeline(job, *p, p->warmups));
  p->pipeline_s = pipeline.mean;
  p->optimizer_s = Optimizer(job, *p);
  const double after_s = p->sync_s + p->optimizer_s;
  p->step_s = p->pipeline_s + after_s;
  p->first_step_s = pipeline.first + after_s;
  p->again_step_s = pipeline.again + after_s;
  p->cost_s = p->step_s * (1 + p->price);
  return other ? PriceOther(job, p) : absl::OkStatus();
}

}  // namespace isthmus::coordinator
