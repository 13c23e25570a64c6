#include "coordinator/planner/planner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/counted_plan.h"
#include "coordinator/planner/deadlines.h"
#include "coordinator/planner/local_checkpoints.h"
#include "coordinator/planner/plan_words.h"
#include "coordinator/planner/search.h"
#include "coordinator/planner/shared_cards.h"
#include "coordinator/planner/slices.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/plan/actions.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"
#include "proto/plan/link_bounds.h"

namespace isthmus::coordinator {
namespace {

// Window of a link: what is under way in two round trips at the measured rate, within bounds. The
// round trip was measured on an idle line; threads that wake up in turn make it longer.
constexpr double kLeastRoundTrip_s = 0.002;
constexpr int64_t kMinWindowBytes = 256 << 10;
constexpr int64_t kMaxWindowBytes = 64 << 20;
constexpr double kWindowRoundTrips = 2;
// Chunk: what the link carries in this time, within bounds, so that votes never wait long behind a
// tensor.
constexpr double kChunkSeconds = 0.05;
constexpr int64_t kMinChunkBytes = 64 << 10;
constexpr int64_t kMaxChunkBytes = 512 << 10;

int64_t WindowBytes(double rate_up, double rate_down, double round_trip_s) {
  const double bytes = std::max(rate_up, rate_down) / 8 *
                       std::max(round_trip_s, kLeastRoundTrip_s) * kWindowRoundTrips;
  return static_cast<int64_t>(std::clamp<double>(bytes, kMinWindowBytes, kMaxWindowBytes));
}

int64_t ChunkBytes(double rate) {
  const double bytes = std::clamp<double>(rate / 8 * kChunkSeconds, kMinChunkBytes, kMaxChunkBytes);
  return static_cast<int64_t>(bytes) / kMinChunkBytes * kMinChunkBytes;
}

class Writer {
 public:
  Writer(const PlannerInput& input, const LinkIndex& links, const Found& found)
      : in_(input), links_(links), found_(found), layout_(found.best), stages_(layout_.stages()) {}

  absl::StatusOr<PlannedJob> Write() {
    Plan& plan = out_.plan;
    plan.set_job_id(in_.job_id);
    plan.set_generation(in_.generation);
    *plan.mutable_job() = in_.job;
    int64_t buffer_bytes = layout_.chain().buffer_memory_bytes;
    for (const Placement& p : layout_.chains)
      buffer_bytes = std::min(buffer_bytes, p.buffer_memory_bytes);
    plan.mutable_job()->mutable_compression()->set_buffer_memory_bytes(buffer_bytes);
    plan.mutable_job()->mutable_compression()->set_tied(FormatCodec(layout_.tied));
    *plan.mutable_job()->mutable_phases() = {in_.phases.begin(), in_.phases.end()};
    plan.set_phase(in_.phase);
    plan.set_phase_start(in_.phase_start);
    plan.set_start_step(in_.start_step);
    plan.set_from_checkpoint(in_.from_checkpoint);
    if (in_.data.has_value()) *plan.mutable_data() = *in_.data;
    ASSIGN_OR_RETURN(const DataSize data, CountSamples(in_.job, *layout_.chain().nodes.front()));
    if (data.known) plan.set_train_samples(data.train_samples);
    plan.set_predicted_step_s(layout_.step_s);
    double first_visits = 0;
    for (const Placement& p : layout_.chains)
      first_visits = std::max(first_visits, HasDelta(p) ? p.first_visits : 0);
    plan.set_first_visits(first_visits);
    WriteRanks();
    if (!layout_.slices.empty()) WriteDeal(layout_.slices, &plan);
    WriteLinks();
    RETURN_IF_ERROR(WriteGroups());
    WriteDeadlines();
    PlanWords words = WordsOfPlan(in_, found_, data, deadlines_, plan);
    plan.mutable_explanation()->Add(words.explanation.begin(), words.explanation.end());
    out_.warnings = std::move(words.warnings);
    const LocalCheckpointWords local = PlanLocalCheckpoints(links_, &plan);
    plan.mutable_explanation()->Add(local.explanation.begin(), local.explanation.end());
    out_.warnings.insert(out_.warnings.end(), local.warnings.begin(), local.warnings.end());
    out_.cost_s = layout_.cost_s;
    out_.previous_cost_s = found_.previous_cost_s;
    if (plan.ByteSizeLong() > static_cast<size_t>(kMaxPlanBytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan would have ", plan.ByteSizeLong(), " bytes, more than the ",
                       kMaxPlanBytes, " that one message carries: ", Micros(in_.job),
                       " micro-batches on ", stages_, " stages. Use larger micro-batches"));
    }
    return std::move(out_);
  }

 private:
  void WriteRanks() {
    for (int r = 0; r < layout_.replicas(); ++r) {
      const Placement& p = layout_.chains[r];
      const int micros = Micros(ReplicaJob(in_.job, layout_.samples[r]));
      if (layout_.replicas() > 1) out_.plan.add_replicas()->set_samples(layout_.samples[r]);
      for (int s = 0, first = 0; s < stages_; first += p.layers[s], ++s) {
        RankPlan* rank = out_.plan.add_ranks();
        rank->set_stage(s);
        rank->set_replica(r);
        rank->set_node_id(p.nodes[s]->id());
        rank->set_node_name(p.nodes[s]->name());
        rank->set_address(p.nodes[s]->address());
        rank->set_first_layer(first);
        rank->set_end_layer(first + p.layers[s]);
        rank->set_predicted_step_s(p.compute[s].sum() * micros);
        rank->set_memory_bytes(p.bytes[s]);
      }
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
    if (!up.dials) {
      const RankPlan &low = out_.plan.ranks(lower), &high = out_.plan.ranks(upper);
      out_.plan.add_explanation(absl::StrCat("link ", id, ": ", high.node_name(), " dials ",
                                             low.node_name(),
                                             ", which can't dial it: ", up.why_not));
    }
    const double round_trip_s = std::max(up.round_trip_s, down.round_trip_s);
    link->set_window_bytes(WindowBytes(up.rate_bits_per_s, down.rate_bits_per_s, round_trip_s));
    link->set_chunk_bytes(ChunkBytes(std::min(up.rate_bits_per_s, down.rate_bits_per_s)));
    link->set_queue_limit(in_.job.strategy().queue_limit());
    link->set_rate_up_bits_per_s(up.rate_bits_per_s);
    link->set_rate_down_bits_per_s(down.rate_bits_per_s);
    link->set_round_trip_s(round_trip_s);
    SetConnections(std::max(up.connections, down.connections), link);
    longest_round_trip_s_ = std::max(longest_round_trip_s_, round_trip_s);
    for (double rate : {up.rate_bits_per_s, down.rate_bits_per_s}) {
      slowest_rate_ = slowest_rate_ == 0 ? rate : std::min(slowest_rate_, rate);
    }
    return link;
  }

  // So many as the rates were measured with, or as many as both ends have memory for.
  void SetConnections(int measured, LinkPlan* link) {
    if (measured <= 1) return;
    const RankPlan* full = nullptr;  // who has no room for more
    int connections = measured;
    for (; connections > 1; connections /= 2) {
      const RankPlan* lacks = nullptr;
      for (int r : {link->lower(), link->upper()}) {
        if (MoreBytes(*link, r, connections) > HostRoom(r)) lacks = &out_.plan.ranks(r);
      }
      if (lacks == nullptr) break;
      full = lacks;
    }
    for (int r : {link->lower(), link->upper()}) {
      RankPlan* rank = out_.plan.mutable_ranks(r);
      if (!OnCard(NodeOf(r)))
        rank->set_memory_bytes(rank->memory_bytes() + MoreBytes(*link, r, connections));
    }
    if (connections > 1) link->set_connections(connections);
    out_.plan.add_explanation(
        absl::StrCat("link ", link->id(), ": ", measured,
                     " TCP connections side by side were measured to carry more than fewer; it is "
                     "counted on for ",
                     FormatRate(link->rate_up_bits_per_s()), " up and ",
                     FormatRate(link->rate_down_bits_per_s()), " down",
                     full == nullptr ? ""
                                     : absl::StrCat(". It has ", connections, ": the memory of ",
                                                    full->node_name(), " has no room for more")));
  }

  const NodeInfo& NodeOf(int rank) const {
    const RankPlan& plan = out_.plan.ranks(rank);
    return *layout_.chains[plan.replica()].nodes[plan.stage()];
  }
  int64_t HostRoom(int rank) const {
    const NodeInfo& node = NodeOf(rank);
    const RankPlan& plan = out_.plan.ranks(rank);
    return node.memory_bytes() - (OnCard(node)
                                      ? layout_.chains[plan.replica()].host_bytes[plan.stage()]
                                      : plan.memory_bytes());
  }
  // What this rank's end of the link holds more than with one connection.
  static int64_t MoreBytes(LinkPlan link, int rank, int connections) {
    const bool dials = (rank == link.lower()) != link.upper_dials();
    link.set_connections(connections);
    const int64_t bytes = MostBytesHeld(link, dials);
    link.clear_connections();
    return bytes - MostBytesHeld(link, dials);
  }

  void WriteLinks() {
    for (int r = 0; r < layout_.replicas(); ++r) {
      for (int b = 0; b + 1 < stages_; ++b) {
        const BoundaryChoice& choice = layout_.chains[r].boundaries[b];
        const int lower = r * stages_ + b;
        LinkPlan* link = AddLink(BoundaryId(layout_, r, b), LinkPlan::BOUNDARY, lower, lower + 1,
                                 choice.up, choice.down);
        *link->mutable_forward() = choice.forward;
        *link->mutable_backward() = choice.backward;
        *link->mutable_evaluation() = choice.evaluation;
        link->set_epilogue(choice.epilogue);
      }
    }
    if (layout_.replicas() == 1) {
      const Placement& p = layout_.chain();
      if (stages_ > 1 && IsTied(in_.job.model()))
        AddLink(kTiedGroup, LinkPlan::GROUP, 0, stages_ - 1, p.tied_up, p.tied_down);
      return;
    }
    for (const GroupPair& pair : layout_.pairs) {
      LinkPlan* link = AddLink(absl::StrCat("g", pair.lower, "-", pair.upper), LinkPlan::GROUP,
                               pair.lower, pair.upper, pair.up, pair.down);
      link->set_queue_limit(in_.job.strategy().queue_limit());
    }
  }

  absl::Status WriteGroups() {
    Plan& plan = out_.plan;
    AddTiedGroup(layout_.tied, &plan);
    if (layout_.replicas() > 1) {
      plan.mutable_job()->mutable_compression()->set_gradients(FormatCodec(layout_.gradients));
      std::vector<LayerTensors> layers;
      for (int s = 0; s < stages_; ++s) layers.push_back(OwnShapes(plan, s));
      AddGradientGroups(layout_.gradients, layout_.gradients, layers, layout_.buckets, &plan);
      if (Deals(plan)) AddSliceGroups(layout_.gradients, &plan);
    }
    LimitQueues(&plan);
    std::vector<std::vector<int>> warmups;
    for (const Placement& p : layout_.chains) warmups.push_back(p.warmups);
    return WriteActions(warmups, &plan);
  }

  void WriteDeadlines() {
    DeadlineInput input;
    input.first_step_s = layout_.first_step_s + layout_.warmup_s;
    input.again_step_s = layout_.again_step_s + layout_.warmup_s;
    input.agree_s = layout_.longest_agree_s;
    input.longest_round_trip_s = longest_round_trip_s_;
    input.slowest_rate_bits_per_s = slowest_rate_;
    input.paths = &in_.paths;
    deadlines_ = MakeDeadlines(out_.plan, input);
    *out_.plan.mutable_deadlines() = deadlines_.deadlines;
  }

  const PlannerInput& in_;
  const LinkIndex& links_;
  const Found& found_;
  const Layout& layout_;
  const int stages_;
  PlannedJob out_;
  double longest_round_trip_s_ = 0;
  double slowest_rate_ = 0;
  PlannedDeadlines deadlines_;
};

absl::StatusOr<PlannedJob> PlanOnCards(PlannerInput input, std::vector<CardWords> words,
                                       int64_t* priced) {
  ShareCards(&input, &words);
  const LinkIndex links(input.topology);
  const absl::StatusOr<Found> found = FindLayout(input, links);
  if (!found.ok()) {
    std::string text(found.status().message());
    for (const CardWords& card : words) absl::StrAppend(&text, "; ", card.text);
    return absl::Status(found.status().code(), text);
  }
  *priced += found->priced;
  ASSIGN_OR_RETURN(PlannedJob planned, Writer(input, links, *found).Write());
  for (const CardWords& card : words) {
    const bool taken = std::any_of(card.ids.begin(), card.ids.end(), [&](const std::string& id) {
      const auto& ranks = planned.plan.ranks();
      return std::any_of(ranks.begin(), ranks.end(),
                         [&](const RankPlan& rank) { return rank.node_id() == id; });
    });
    if (taken) planned.plan.add_explanation(card.text);
  }
  return planned;
}

// As few of each card as will do. False: none is left out.
bool TakeOfEachCard(const PlannerInput& input, PlannerInput* some, std::vector<CardWords>* words) {
  bool left_out = true;
  for (int most = 1; left_out; ++most) {
    *some = input;
    words->clear();
    left_out = LeaveSomeOfEachCard(most, some, words);
    if (some->topology.nodes_size() >= LeastDaemons(input.job.strategy())) break;
  }
  return left_out;
}

}  // namespace

PlannerInput InputOnCards(const PlannerInput& input) {
  PlannerInput some;
  std::vector<CardWords> words;
  TakeOfEachCard(input, &some, &words);
  ShareCards(&some, &words);
  return some;
}

absl::StatusOr<PlannedJob> MakeCountedPlan(const PlannerInput& input, int64_t* priced) {
  RETURN_IF_ERROR(ValidateJob(input.job));
  if (input.start_step >= input.job.recipe().steps()) {
    return absl::InvalidArgumentError(absl::StrCat("recipe.steps: ", input.job.recipe().steps(),
                                                   " steps, and ", input.start_step,
                                                   " are done already: nothing is left to do"));
  }
  PlannerInput some;
  std::vector<CardWords> words;
  const bool left_out = TakeOfEachCard(input, &some, &words);
  absl::StatusOr<PlannedJob> planned = PlanOnCards(std::move(some), std::move(words), priced);
  if (planned.ok() || !left_out) return planned;
  absl::StatusOr<PlannedJob> shared =
      PlanOnCards(input, {}, priced);  // another one of a card may do
  return shared.ok() ? shared : planned;
}

absl::StatusOr<PlannedJob> MakePlan(const PlannerInput& input) {
  int64_t priced = 0;
  return MakeCountedPlan(input, &priced);
}

}  // namespace isthmus::coordinator
