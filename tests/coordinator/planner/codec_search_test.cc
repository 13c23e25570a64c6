#include "coordinator/planner/codec_search.h"

#include <limits>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"

namespace isthmus::coordinator {
namespace {

using ::testing::IsEmpty;

CodecOption Option(double link_s, double price, bool tokens = false) {
  CodecOption o;
  o.link_s = link_s;
  o.price = price;
  o.tokens = tokens;
  return o;
}

// Mild and slow, middling, harsh and fast; then the same as predicts, a little better.
std::vector<CodecOption> Six() {
  return {Option(4, 0),         Option(2, 0.01),          Option(1, 0.1),
          Option(4.1, 0, true), Option(2.1, 0.005, true), Option(1.1, 0.02, true)};
}

std::vector<CodecOption> Three() { return {Option(4, 0), Option(2, 0.01), Option(1, 0.1)}; }

bool TokensComeAlong(const std::vector<BoundaryOptions>& options, const CodecPicks& picks) {
  bool come = true;
  for (size_t b = 0; b < picks.size(); ++b) {
    const bool forward = options[b].forward[picks[b].forward].tokens;
    if (forward && !come) return false;
    come = come && forward;
    if (options[b].backward[picks[b].backward].tokens && !come) return false;
  }
  return true;
}

TEST(CodecSearch, AHigherWeightTakesHarsherCodecs) {
  const std::vector<BoundaryOptions> one = {{Three(), Three()}};
  EXPECT_EQ(PicksAt(one, 0, 100)[0].forward, 0u) << "between equals the milder";
  EXPECT_EQ(PicksAt(one, 1, 100)[0].forward, 1u);
  EXPECT_EQ(PicksAt(one, 20, 100)[0].forward, 2u);
  EXPECT_EQ(PicksAt(one, 20, 100)[0].backward, 2u);
}

TEST(CodecSearch, PredictsReachFromTheFirstStageOn) {
  // Only the last of three boundaries gains by a prediction: those below pass the ids on.
  const std::vector<CodecOption> plain = {Option(1, 0)},
                                 passes = {Option(1, 0), Option(1.5, 0, true)},
                                 gains = {Option(9, 0), Option(1, 0, true)};
  const std::vector<BoundaryOptions> far = {{passes, plain}, {passes, plain}, {gains, plain}};
  const CodecPicks picks = PicksAt(far, 1, 100);
  for (const CodecPick& pick : picks) EXPECT_EQ(pick.forward, 1u);
  // Where the way is closed (the job names a codec that passes nothing), there is none.
  const std::vector<BoundaryOptions> closed = {{passes, plain}, {plain, plain}, {gains, plain}};
  for (const CodecPick& pick : PicksAt(closed, 1, 100)) EXPECT_EQ(pick.forward, 0u);
  // A backward predict needs the forward one of its boundary.
  const std::vector<BoundaryOptions> down = {{passes, gains}};
  EXPECT_EQ(PicksAt(down, 1, 100)[0].forward, 1u);
  EXPECT_EQ(PicksAt({{plain, gains}}, 1, 100)[0].backward, 0u);
  // What the job names though it can't be is picked, for the words of the refusal.
  EXPECT_THAT(PicksAt({{plain, {Option(1, 0, true)}}}, 1, 100), ::testing::SizeIs(1));
}

TEST(CodecSearch, MoreBytesAtNoLowerPriceMustPay) {
  const std::vector<BoundaryOptions> one = {{{Option(1, 0), Option(2, 0)}, {Option(1, 0)}}};
  const auto picked = [&](double with_more_bytes) {
    return SearchCodecs(one, 8, 1, Effort::kThorough,
                        [&](const CodecPicks& picks) {
                          return picks[0].forward == 1 ? with_more_bytes : 1.0;
                        })[0]
        .forward;
  };
  EXPECT_EQ(picked(0.999), 0u);
  EXPECT_EQ(picked(0.99), 1u);
}

// A step as a pipeline has it: fill and drain, and the slowest part for each micro-batch.
struct Model {
  const std::vector<BoundaryOptions>* options;
  double compute_s;
  int micros;
  double operator()(const CodecPicks& picks) const {
    double fill = 0, slowest = compute_s, price = 0;
    for (size_t b = 0; b < picks.size(); ++b) {
      const CodecOption &up = (*options)[b].forward[picks[b].forward],
                        &down = (*options)[b].backward[picks[b].backward];
      fill += up.link_s + down.link_s;
      slowest = std::max({slowest, up.link_s, down.link_s});
      price += up.price + down.price;
    }
    return (micros * slowest + fill) * (1 + price);
  }
};

// A plan of bf16 took 4.8 % longer than one of none, and each direction alone gained nothing.
TEST(CodecSearch, NoCompressionAtAllIsTried) {
  CodecOption bf16 = Option(1, 0), none = Option(2, 0);
  bf16.codec.set_kind(CodecSpec::BF16);
  const std::vector<BoundaryOptions> two(2, {{bf16, none}, {bf16, none}});
  const auto picked = [&](double without) {
    return SearchCodecs(two, 8, 1, Effort::kThorough, [&](const CodecPicks& picks) {
      for (const CodecPick& pick : picks)
        if (pick.forward + pick.backward < 2) return 1.0;
      return without;
    });
  };
  EXPECT_EQ(picked(0.95)[1].backward, 1u);
  EXPECT_EQ(picked(0.999)[1].backward, 0u) << "more bytes must pay";
}

TEST(CodecSearch, FindsTheBestOfAllOrNearlyAndAllTokensComeAlong) {
  for (const double compute_s : {0.5, 1.5, 3.0, 8.0, 50.0}) {
    for (const double slow : {1.0, 3.0}) {  // the second boundary's links
      std::vector<BoundaryOptions> options = {{Six(), Six()}, {Six(), Six()}};
      for (CodecOption& o : options[1].forward) o.link_s *= slow;
      const Model model{&options, compute_s, 8};
      double best = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < 6 * 6 * 6 * 6; ++i) {
        const CodecPicks picks = {{i % 6, i / 6 % 6}, {i / 36 % 6, i / 216}};
        if (TokensComeAlong(options, picks)) best = std::min(best, model(picks));
      }
      const CodecPicks found = SearchCodecs(options, 8, 8 * compute_s, Effort::kThorough, model);
      EXPECT_TRUE(TokensComeAlong(options, found));
      EXPECT_LE(model(found), 1.01 * best) << compute_s << " s of compute, links x " << slow;
      const CodecPicks quick = SearchCodecs(options, 8, 8 * compute_s, Effort::kQuick, model);
      EXPECT_LE(model(quick), 1.3 * best) << compute_s << " s of compute, links x " << slow;
    }
  }
}

TEST(CodecSearch, PricesNoMoreThanItsLimitAndNothingTwiceInARow) {
  const std::vector<BoundaryOptions> options(kMaxImprovedBoundaries, {Six(), Six()});
  const Model model{&options, 1, 8};
  int pricings = 0;
  SearchCodecs(options, 8, 8, Effort::kThorough, [&](const CodecPicks& picks) {
    ++pricings;
    return model(picks);
  });
  EXPECT_LE(pricings, kMaxPricings);
  pricings = 0;
  SearchCodecs(options, 8, 8, Effort::kQuick, [&](const CodecPicks& picks) {
    ++pricings;
    return model(picks);
  });
  EXPECT_LE(pricings, 2 + kMaxImprovedBoundaries);
  EXPECT_THAT(SearchCodecs({}, 8, 8, Effort::kThorough, [](const CodecPicks&) { return 1.0; }),
              IsEmpty());
}

TEST(CodecSearch, TokenIdsGoNoFurtherThanAPredictThatGains) {
  // Two boundaries: the first one gains by a prediction, the second one's passes the ids on.
  const auto named = [](CodecOption option, const char* codec) {
    option.codec = *ParseCodec(codec);
    return option;
  };
  const CodecOption bf16 = named(Option(2, 0), "bf16"),
                    passes = named(Option(2, 0, true), "predict(bf16)"),
                    four = named(Option(1, 0.5), "quant(4)"),
                    predicts = named(Option(1, 0.01, true), "predict(quant(4))");
  const std::vector<BoundaryOptions> options = {{{bf16, passes, four, predicts}, {bf16}},
                                                {{bf16, passes, four, predicts}, {bf16}}};
  // The second link is hidden, so that a milder codec there costs nothing.
  const auto cost = [&](const CodecPicks& picks) {
    const CodecOption &first = options[0].forward[picks[0].forward],
                      &second = options[1].forward[picks[1].forward];
    if (second.tokens && !first.tokens) return std::numeric_limits<double>::infinity();
    return (10 + first.link_s) * (1 + first.price + second.price);
  };
  const CodecPicks picks = SearchCodecs(options, 8, 10, Effort::kThorough, cost);
  EXPECT_EQ(FormatCodec(options[0].forward[picks[0].forward].codec), "predict(quant(4))");
  EXPECT_EQ(FormatCodec(options[1].forward[picks[1].forward].codec), "bf16");
  // Whatever a simulation says for ids that nobody takes.
  const auto odd = [&](const CodecPicks& p) { return p[0].forward == 1 ? 1.0 : 2.0; };
  for (const Effort effort : {Effort::kThorough, Effort::kQuick}) {
    const std::vector<BoundaryOptions> one = {{{bf16, passes}, {bf16}}};
    EXPECT_EQ(SearchCodecs(one, 8, 10, effort, odd)[0].forward, 0u);
  }
}

TEST(CodecSearch, WhatCantBeIsNotTaken) {
  const std::vector<BoundaryOptions> one = {{Three(), Three()}};
  const auto cost = [](const CodecPicks& picks) {
    return picks[0].forward == 2 ? 1.0 : std::numeric_limits<double>::infinity();
  };
  EXPECT_EQ(SearchCodecs(one, 8, 1, Effort::kThorough, cost)[0].forward, 2u);
}

}  // namespace
}  // namespace isthmus::coordinator
