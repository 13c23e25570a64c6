#include "coordinator/planner/codec_search.h"

#include <algorithm>
#include <limits>

namespace isthmus::coordinator {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kLeastWeight = 0.25;
constexpr double kGain = 1 - 1e-9;  // a cost below this share of another one is less
// A codec of no lower price that keeps the link busier must gain this much: what a plan gains by
// fp32 in place of bf16 where a link seems hidden, a slower moment of that link takes back.
constexpr double kBusierMustPay = 1 - 5e-3;
constexpr int kRounds = 3;   // over all directions
constexpr int kForIds = 60;  // of kMaxPricings, left for DropIds

struct Best {
  size_t index = 0;
  double score = kNever;
};

// With or without `tokens`, or either.
enum class Tokens { kWith, kWithout, kAny };

Best BestOf(const std::vector<CodecOption>& options, double weight, double step_s, Tokens tokens) {
  Best best;
  for (size_t i = 0; i < options.size(); ++i) {
    const CodecOption& o = options[i];
    if (tokens != Tokens::kAny && o.tokens != (tokens == Tokens::kWith)) continue;
    const double score = weight * o.link_s + o.price * step_s;
    if (score < best.score * kGain || best.score == kNever) best = {i, score};
  }
  return best;
}

struct Scored {
  CodecPick pick;
  double score = kNever;
};

// Of one boundary. With token ids the backward codec may be any, without it is no predict.
Scored PickOne(const BoundaryOptions& options, double weight, double step_s, bool tokens) {
  const Best forward =
      BestOf(options.forward, weight, step_s, tokens ? Tokens::kWith : Tokens::kWithout);
  const Best backward =
      BestOf(options.backward, weight, step_s, tokens ? Tokens::kAny : Tokens::kWithout);
  return {{forward.index, backward.index}, forward.score + backward.score};
}

class Search {
 public:
  Search(const std::vector<BoundaryOptions>& options,
         const std::function<double(const CodecPicks&)>& cost)
      : options_(options), cost_(cost) {}

  void Try(const CodecPicks& picks, double share = kGain, int most = kMaxPricings - kForIds) {
    if (picks == best_ || pricings_ >= most) return;
    ++pricings_;
    const double cost = cost_(picks);
    if (!best_.empty() && !(cost < best_cost_ * share)) return;
    best_ = picks;
    best_cost_ = cost;
  }

  // `none` on all boundaries at once: on one alone it may gain too little to be taken.
  void TryUncompressed() {
    CodecPicks picks = best_;
    const auto take = [](const std::vector<CodecOption>& options, size_t* pick) {
      const auto none = std::find_if(options.begin(), options.end(), [](const CodecOption& o) {
        return o.codec.kind() == CodecSpec::NONE;
      });
      if (none != options.end()) *pick = none - options.begin();
    };
    for (size_t b = 0; b < picks.size(); ++b) {
      take(options_[b].forward, &picks[b].forward);
      take(options_[b].backward, &picks[b].backward);
    }
    Try(picks, kBusierMustPay);
  }

  // One direction at a time, the token ids as they are. False: nothing was gained.
  bool Improve() {
    const double before = best_cost_;
    for (size_t b = 0; b < options_.size(); ++b) {
      for (const bool forward : {true, false}) {
        const std::vector<CodecOption>& options =
            forward ? options_[b].forward : options_[b].backward;
        for (size_t i = 0; i < options.size(); ++i) {
          const bool ids = options_[b].forward[best_[b].forward].tokens;
          if (forward ? options[i].tokens != ids : options[i].tokens && !ids) continue;
          TryOne(b, forward, i, kMaxPricings - kForIds);
        }
      }
    }
    return best_cost_ < before * kGain;
  }

  // Token ids go no further than a predict that gains by them: from the last stage down, a
  // boundary whose ids nobody above it takes goes without where that costs less. One that passes
  // them on to nobody does in any case. True: something changed.
  bool DropIds(const std::vector<double>& weights, double step_s) {
    const CodecPicks before = best_;
    if (best_cost_ == kNever) return false;
    for (size_t b = options_.size(); b-- > 0;) {
      const auto ids = [&] { return options_[b].forward[best_[b].forward].tokens; };
      if (!ids()) continue;
      if (!options_[b].backward[best_[b].backward].tokens) {
        DropPassing(b);
        for (size_t i = 0; !weights.empty() && i < options_[b].forward.size(); ++i) {
          if (!options_[b].forward[i].tokens) TryOne(b, true, i, kMaxPricings);
        }
      }
      for (const double weight : weights) {
        const Scored without = PickOne(options_[b], weight, step_s, false);
        if (!ids() || without.score == kNever) break;
        CodecPicks picks = best_;
        picks[b] = without.pick;
        Try(picks, kGain, kMaxPricings);
      }
      if (ids()) break;  // those below pass them on
    }
    return !(best_ == before);
  }

  const CodecPicks& best() const { return best_; }

 private:
  void TryOne(size_t b, bool forward, size_t i, int most) {
    const std::vector<CodecOption>& options = forward ? options_[b].forward : options_[b].backward;
    CodecPicks picks = best_;
    size_t& pick = forward ? picks[b].forward : picks[b].backward;
    const CodecOption &now = options[pick], &then = options[i];
    const bool busier = then.price >= now.price && then.link_s > now.link_s * (1 + 1e-9);
    pick = i;
    Try(picks, busier ? kBusierMustPay : kGain, most);
  }

  // predict(bf16) becomes bf16.
  void DropPassing(size_t b) {
    const std::vector<CodecOption>& options = options_[b].forward;
    const CodecSpec& inner = options[best_[b].forward].codec.inner();
    if (inner.kind() == CodecSpec::QUANT) return;
    for (size_t i = 0; i < options.size(); ++i) {
      if (options[i].tokens || options[i].codec.kind() != inner.kind()) continue;
      best_[b].forward = i;
      best_cost_ = cost_(best_);
      ++pricings_;
      return;
    }
  }

  const std::vector<BoundaryOptions>& options_;
  const std::function<double(const CodecPicks&)>& cost_;
  CodecPicks best_;
  double best_cost_ = kNever;
  int pricings_ = 0;
};

}  // namespace

CodecPicks PicksAt(const std::vector<BoundaryOptions>& options, double weight, double step_s) {
  const size_t n = options.size();
  std::vector<Scored> with, without;
  for (const BoundaryOptions& o : options) {
    with.push_back(PickOne(o, weight, step_s, true));
    without.push_back(PickOne(o, weight, step_s, false));
  }
  // Token ids on the first `ids` boundaries.
  size_t best_ids = n + 1;
  double best = kNever;
  for (size_t ids = 0; ids <= n; ++ids) {
    double sum = 0;
    for (size_t b = 0; b < n; ++b) sum += (b < ids ? with : without)[b].score;
    if (sum < best * kGain) {
      best = sum;
      best_ids = ids;
    }
  }
  CodecPicks picks;
  for (size_t b = 0; b < n; ++b) {
    if (best_ids <= n) {
      picks.push_back((b < best_ids ? with : without)[b].pick);
      continue;
    }
    picks.push_back({BestOf(options[b].forward, weight, step_s, Tokens::kAny).index,
                     BestOf(options[b].backward, weight, step_s, Tokens::kAny).index});
  }
  return picks;
}

CodecPicks SearchCodecs(const std::vector<BoundaryOptions>& options, int micros, double step_s,
                        Effort effort, const std::function<double(const CodecPicks&)>& cost) {
  if (options.empty()) return {};
  Search search(options, cost);
  if (effort == Effort::kQuick) {
    for (double weight : {1.0, static_cast<double>(micros)})
      search.Try(PicksAt(options, weight, step_s));
    search.DropIds({}, step_s);
    return search.best();
  }
  std::vector<double> weights;
  for (double weight = kLeastWeight; weight < 4.0 * micros; weight *= 2) {
    weights.push_back(weight);
    search.Try(PicksAt(options, weight, step_s));
  }
  search.TryUncompressed();
  const bool improves = options.size() <= kMaxImprovedBoundaries;
  for (int round = 0; improves && round < kRounds && search.Improve(); ++round) {
  }
  if (search.DropIds(weights, step_s) && improves) search.Improve();
  return search.best();
}

}  // namespace isthmus::coordinator
