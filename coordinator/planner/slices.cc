#include "coordinator/planner/slices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/reduction_cost.h"
#include "proto/model/family.h"
#include "proto/plan/deal.h"

namespace isthmus::coordinator {
namespace {

constexpr double kSmallestShare = 1e-3;
constexpr int kHalvings = 12;  // of the interval in which the largest share lies

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// A slice of so many heads and units, as a share of a block's weights that are dealt.
SliceShare Held(const ModelSpec& model, int heads, int units, int whole_layers, int replica) {
  const auto weights = [&](int h, int u) {
    return static_cast<double>(
        SliceElements(model, {{true, std::vector<int>(h), std::vector<int>(u)}}));
  };
  return {weights(heads, units) / weights(model.heads(), UnitsOf(model)), whole_layers,
          replica == 0};
}

// Does every stage of a chain, one of `replicas`, have memory for such a slice?
bool Fits(const JobSpec& job, int replicas, const std::vector<const NodeInfo*>& chain,
          const std::vector<int>& layers, const SliceShare& slice) {
  const int stages = static_cast<int>(chain.size());
  for (int s = 0, first = 0; s < stages; first += layers[s], ++s) {
    const int end = first + layers[s];
    const int64_t dealt = DealtParameters(job.model(), first, end, slice);
    const int64_t shared = StageCost(job.model(), first, end, 1).parameters - dealt;
    const NodeInfo& node = *chain[s];
    const bool tied = stages > 1 && (s == 0 || s + 1 == stages);
    const TiedBytes more = tied ? TiedBytesAt(job, replicas, node) : TiedBytes();
    const int64_t stage = StageBytes(job, stages, s, first, end, node, slice) + more.stage;
    const int64_t agrees =
        ReductionBytes(job, shared, replicas) + ExchangeBytes(dealt, slice) + more.host;
    // Replicas agree in the memory of the host, whatever computes.
    if (stage > StageRoom(node) ||
        (OnCard(node) ? kProcessBytes : stage) + agrees > node.memory_bytes())
      return false;
  }
  return true;
}

// The largest share of `replica` that fits; 0: none does.
double MostOf(const JobSpec& job, int replica,
              const std::vector<std::vector<const NodeInfo*>>& nodes,
              const std::vector<int>& layers) {
  const auto fits = [&](double share) {
    return Fits(job, static_cast<int>(nodes.size()), nodes[replica], layers,
                SliceFor(job, replica, share));
  };
  double most = 1 - kSmallestShare, least = kSmallestShare;
  if (fits(most)) return most;
  if (!fits(least)) return 0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (least + most) / 2;
    (fits(middle) ? least : most) = middle;
  }
  return least;
}

// Operations a second of what limits a chain: its daemons compute layers in proportion to `layers`.
double SpeedOf(const JobSpec& job, const std::vector<const NodeInfo*>& chain,
               const std::vector<int>& layers) {
  double slowest_s = 0;
  for (size_t s = 0, first = 0; s < chain.size(); first += layers[s], ++s) {
    const int begin = static_cast<int>(first);
    slowest_s = std::max(slowest_s, StageTime(job, *chain[s], begin, begin + layers[s]).sum());
  }
  return 1 / slowest_s;
}

}  // namespace

SliceShare SliceFor(const JobSpec& job, int replica, double share) {
  const auto most = [share](int all) {
    return std::clamp(static_cast<int>(std::ceil(share * all)), 1, std::max(1, all - 1));
  };
  return Held(job.model(), most(job.model().heads()), most(UnitsOf(job.model())),
              job.strategy().whole_layers(), replica);
}

SliceShare SliceIn(const JobSpec& job, int replica, const std::vector<double>& shares) {
  return Held(job.model(), DealCounts(job.model().heads(), shares)[replica],
              DealCounts(UnitsOf(job.model()), shares)[replica], job.strategy().whole_layers(),
              replica);
}

SliceShare SliceOfRank(const Plan& plan, const RankPlan& rank) {
  if (!Deals(plan)) return {};
  const std::vector<double> shares = SharesOf(plan.deal());
  const int slice = plan.replicas(rank.replica()).slice();
  const ModelSpec& model = plan.job().model();
  return Held(model, DealCounts(model.heads(), shares)[slice],
              DealCounts(UnitsOf(model), shares)[slice], plan.deal().whole_layers(),
              rank.replica());
}

absl::StatusOr<std::vector<double>> ShareSlices(
    const JobSpec& job, const std::vector<std::vector<const NodeInfo*>>& nodes,
    const std::vector<int>& layers) {
  const int replicas = static_cast<int>(nodes.size());
  std::vector<double> speed, most, shares(replicas);
  for (int r = 0; r < replicas; ++r) {
    speed.push_back(SpeedOf(job, nodes[r], layers));
    most.push_back(MostOf(job, r, nodes, layers));
  }
  const double room = Sum(most);
  if (room < 1 || std::count(most.begin(), most.end(), 0) > 0) {
    std::vector<std::string> words;
    for (int r = 0; r < replicas; ++r)
      words.push_back(absl::StrCat(nodes[r].front()->name(), " ", FormatShare(most[r])));
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: of the heads and hidden units that subnetworks share, the replicas hold at most ",
        absl::StrJoin(words, ", "),
        "; together that must be all of them, and something on each. Use more replicas or stages, "
        "or a smaller model"));
  }
  // By speed; what a replica has no memory for goes to the others.
  std::vector<bool> full(replicas);
  for (double left = 1; left > 1e-9;) {
    double speeds = 0;
    for (int r = 0; r < replicas; ++r) speeds += full[r] ? 0 : speed[r];
    if (speeds == 0) break;
    double given = 0;
    for (int r = 0; r < replicas; ++r) {
      if (full[r]) continue;
      const double more = std::min(left * speed[r] / speeds, most[r] - shares[r]);
      shares[r] += more;
      given += more;
      full[r] = shares[r] >= most[r] * (1 - 1e-12);
    }
    left -= given;
  }
  const double sum = Sum(shares);
  for (double& share : shares) share /= sum;
  return shares;
}

int64_t ExchangeBytes(int64_t dealt, const SliceShare& slice) {
  const double own = slice.share * static_cast<double>(dealt);
  // What goes out and its frames, what comes in; all that is dealt where it comes together.
  const double in = slice.gathers ? static_cast<double>(dealt) : own;
  return dealt == 0 ? 0 : static_cast<int64_t>(4 * (2 * own + 2 * in));
}

double MergedRounds(const JobSpec& job) {
  const int64_t round = job.strategy().local_steps();
  const int64_t evals = job.recipe().eval_samples() > 0 ? job.recipe().eval_every() : 0;
  const int64_t stored = job.checkpoint().every();
  const auto share = [round](int64_t every) {
    return every <= 0 ? 0 : std::min(1.0, static_cast<double>(round) / static_cast<double>(every));
  };
  // Where one interval has the other in it, so are its merges.
  const bool together = evals > 0 && stored > 0 && (evals % stored == 0 || stored % evals == 0);
  return together ? std::max(share(evals), share(stored))
                  : std::min(1.0, share(evals) + share(stored));
}

std::string SubnetworkWords(const JobSpec& job, const Layout& layout) {
  std::vector<std::string> slices;
  for (int r = 0; r < layout.replicas(); ++r)
    slices.push_back(absl::StrCat(FormatShare(layout.slices[r]), " on ",
                                  layout.chains[r].nodes.front()->name()));
  const int64_t steps = job.strategy().local_steps();
  const int whole = job.strategy().whole_layers();
  const ModelSpec& model = job.model();
  const std::string dealt =
      FormatBytes(4 * DealtParameters(model, 0, model.layers(), layout.chain().slice));
  return absl::StrCat(
      "subnetworks: each replica trains a slice of the ",
      IsMlp(model) ? "hidden units of each layer" : "heads and hidden units", ", dealt anew after ",
      steps, " steps: ", absl::StrJoin(slices, ", "), ", by speed and memory. Of ",
      FormatBytes(4 * ParameterCount(model)), " of weights ", dealt,
      " are dealt, and go straight to who holds them next; the mean of the others is taken",
      whole > 0 ? absl::StrCat("; ", whole, " first and ", whole, " last layers are whole in all")
                : "",
      ". The end of a round takes ", FormatSeconds(layout.agree_s), ", ",
      FormatSeconds(layout.agree_s / static_cast<double>(steps)),
      " a step in the mean. For checkpoints, validations and a stop, which may wait two rounds, "
      "the model comes together on ",
      layout.chain().nodes.front()->name(), ": ", dealt, " of its memory, and such an end takes ",
      FormatSeconds(layout.longest_agree_s));
}

void WriteDeal(const std::vector<double>& shares, Plan* plan) {
  DealPlan* deal = plan->mutable_deal();
  deal->set_seed(plan->job().seed());
  deal->set_whole_layers(plan->job().strategy().whole_layers());
  for (int r = 0; r < plan->replicas_size(); ++r) {
    deal->add_shares(shares[r]);
    plan->mutable_replicas(r)->set_slice(r);
  }
}

}  // namespace isthmus::coordinator
