#include "base/link_rate.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"

namespace isthmus {
namespace {

// A link of a steady rate after a slow start that loses `lost_s` once a round, and whose first
// `burst` bytes are free (a token bucket).
struct Model {
  double rate_bits_per_s;
  double lost_s;
  double burst_bytes;
  double Elapsed(int64_t bytes) const {
    return lost_s + std::max(0.0, static_cast<double>(bytes) - burst_bytes) * 8 / rate_bits_per_s;
  }
};

double Search(const Model& model, double budget_s, double* used_s) {
  RateSearch search;
  *used_s = 0;
  while (const int64_t bytes = search.NextBytes(budget_s - *used_s)) {
    ArrivalLog log;
    for (int64_t i = 1; i <= 16; ++i) log.Add(bytes / 16, model.Elapsed(bytes * i / 16));
    search.Add(log.Round());
    *used_s += model.Elapsed(bytes);
  }
  return search.rate_bits_per_s();
}

TEST(RateSearch, FindsSteadyRatesOverFiveDecades) {
  for (double rate : {6.4e4, 1e5, 1e6, 5e6, 2e7, 1e8, 1e9, 1e10}) {
    double used = 0;
    EXPECT_NEAR(Search({rate, 0, 0}, 30, &used), rate, 0.01 * rate);
    EXPECT_LT(used, 10) << rate;
  }
}

TEST(RateSearch, SlowStartAndBurstsFade) {
  double used = 0;
  // 100 ms lost to slow start in each round: over before its second half.
  EXPECT_NEAR(Search({2e7, 0.1, 0}, 30, &used), 2e7, 0.01 * 2e7);
  EXPECT_NEAR(Search({1e8, 0.1, 0}, 30, &used), 1e8, 0.01 * 1e8);
  // A bucket of 64 KiB.
  EXPECT_NEAR(Search({5e6, 0, 65536}, 30, &used), 5e6, 0.01 * 5e6);
}

TEST(RateSearch, KeepsWithinItsBudget) {
  for (double budget : {0.5, 2.0, 5.0}) {
    double used = 0;
    const double rate = Search({2e5, 0, 0}, budget, &used);
    EXPECT_LE(used, std::max(budget,
                             RateSearch::kFirstBytes * 8 / 2e5 * 1.1));  // the first round is blind
    EXPECT_GT(rate, 0);
  }
}

// A host behind 200 kbit/s was refused: connecting and echoes took what its first round needed.
TEST(RateSearch, ASlowPathIsMeasuredThoughNoTimeIsLeft) {
  for (double rate : {6.4e4, 2e5}) {
    double used = 0;
    EXPECT_NEAR(Search({rate, 0, 0}, -1, &used), rate, 0.01 * rate);
    EXPECT_LT(used, 1.1) << "one round";
    const RateSearch search;
    EXPECT_LT(RateSearch::kFirstBytes * 8 / rate, search.Patience(-1)) << "it may take that";
  }
  RateSearch search;
  EXPECT_EQ(search.Patience(8), 8);
  EXPECT_GT(search.NextBytes(-1), 0);
  search.AddUnfinished(RateSearch::kFirstBytes, RateSearch::kFirstSeconds);
  EXPECT_EQ(search.NextBytes(-1), 0) << "not again and again";
  EXPECT_EQ(search.Patience(0.5), 0.5);
}

// 1 Mbit/s, 100 ms: a packet near the start was lost, so the receiver saw nothing for a second and
// then all of it within 20 us.
TEST(RateSearch, BytesThatALossHeldBackAreNoFastLink) {
  RateSearch search(0.1);
  search.Add({131072, 20e-6, 65536, 10e-6, 1.35});
  EXPECT_GT(search.rate_bits_per_s(), 1e6);
  EXPECT_LT(search.rate_bits_per_s(), 2e6);
  RateSearch short_round(0.1);
  short_round.Add({32768, 20e-6, 16384, 10e-6, 0.3});
  EXPECT_GT(short_round.NextBytes(8), 0) << "too short to tell: goes on";
  short_round.AddUnfinished(2 << 20, 8);
  EXPECT_LT(short_round.rate_bits_per_s(), 3e6) << "2 MiB were not through after 8 s";
  EXPECT_GT(short_round.rate_bits_per_s(), 2e6);
}

TEST(RateSearch, TheSendersClockLeavesAHonestRateAlone) {
  for (double rate : {1e6, 1e8, 1e9}) {
    for (double round_trip : {0.0001, 0.02, 0.3}) {
      RateSearch search(round_trip);
      const double sending_s = (1 << 20) * 8 / rate;
      search.Add({1 << 20, sending_s, 1 << 19, sending_s / 2, sending_s + round_trip});
      EXPECT_NEAR(search.rate_bits_per_s(), rate, 1e-6 * rate) << rate << " " << round_trip;
      search.AddUnfinished(1 << 20, 0.5 * sending_s);
      EXPECT_NEAR(search.rate_bits_per_s(), rate, 1e-6 * rate) << "the peer went away early";
    }
  }
}

TEST(RateSearch, IgnoresRoundsThatShowNothing) {
  RateSearch search;
  search.Add({0, 1, 0, 1});
  EXPECT_EQ(search.NextBytes(0), 0);
  ArrivalLog one;
  one.Add(1000, 1);
  search.Add(one.Round());
  EXPECT_EQ(search.rate_bits_per_s(), 0);
  search.Add({1 << 20, 0, 1 << 19, 0});  // faster than the clock
  EXPECT_TRUE(std::isfinite(search.rate_bits_per_s()));
}

TEST(ArrivalLog, TheSecondHalfIsMeasuredAlone) {
  ArrivalLog log;
  EXPECT_EQ(log.Round().tail_bytes, 0);
  for (int i = 0; i < 4; ++i) log.Add(100, i);             // slow ...
  for (int i = 1; i <= 4; ++i) log.Add(100, 3 + i * 0.1);  // ... then fast
  const RateSearch::Round round = log.Round();
  EXPECT_EQ(round.received_bytes, 800);
  EXPECT_NEAR(round.elapsed_s, 3.4, 1e-9);
  EXPECT_EQ(round.tail_bytes, 400);
  EXPECT_NEAR(round.tail_s, 0.4, 1e-9);
}

// 8 MiB over 100 Mbit/s in 128 messages; a packet of message `lost` comes `held_s` late, and with
// it what lay behind it.
RateSearch::Round WithALoss(int lost, double held_s) {
  constexpr int kMessages = 128;
  constexpr double kEach = 65536 * 8 / 1e8;
  ArrivalLog log;
  for (int i = 0; i < kMessages; ++i) {
    const double sent_s = (i + 1) * kEach, again_s = (lost + 1) * kEach + held_s;
    log.Add(65536, i < lost ? sent_s : std::max(sent_s, again_s + (i - lost) * 30e-6));
  }
  return log.Round();
}

TEST(ArrivalLog, WhatALossHeldBackIsNoFastLink) {
  for (int lost = 0; lost < 128; ++lost) {
    for (const double held_s : {0.0, 0.08, 0.2, 0.3, 0.5, 0.6}) {
      const RateSearch::Round round = WithALoss(lost, held_s);
      const double rate = 8 * static_cast<double>(round.tail_bytes) / round.tail_s;
      EXPECT_LT(rate, 1.03e8) << lost << " " << held_s;
      EXPECT_GT(rate, 0.3e8) << lost << " " << held_s;
    }
  }
}

// All but the first messages came at once, after 0.9 s: 80 ms of round trip, so no slow start on a
// connection that has had half as many bytes takes so long.
TEST(RateSearch, ARoundBeforeLeavesLittleOfSlowStart) {
  RateSearch search(0.08);
  search.Add({4 << 20, 0.34, 2 << 20, 0.17, 0.42});
  search.Add({8 << 20, 0.8, 4 << 20, 0.03, 0.9});
  EXPECT_LT(search.rate_bits_per_s(), 1.5e8);
  EXPECT_GT(search.rate_bits_per_s(), 0.7e8);
}

TEST(ArrivalLog, HoldsABoundedNumberOfEntries) {
  ArrivalLog log;
  for (size_t i = 0; i < 2 * ArrivalLog::kMaxEntries; ++i) log.Add(1, i);
  EXPECT_EQ(log.bytes(), 2 * static_cast<int64_t>(ArrivalLog::kMaxEntries));
  EXPECT_EQ(log.Round().received_bytes, log.bytes());
}

TEST(RateSearch, ARoundHasAtMostTheBytesThatAreAllowed) {
  RateSearch search(0, 1 << 20);
  int64_t all = 0, largest = 0;
  while (const int64_t bytes = search.NextBytes(1e9)) {
    all += bytes;
    largest = std::max(largest, bytes);
    search.Add({bytes, 1e-6, bytes / 2, 1e-9 / static_cast<double>(all)});  // ever faster
  }
  EXPECT_EQ(largest, 1 << 20);
  EXPECT_LT(all, 2 << 20);
}

TEST(ProbeMessageBytes, ARoundHasSixteenMessagesOrMore) {
  EXPECT_EQ(ProbeMessageBytes(0), 512);
  EXPECT_EQ(ProbeMessageBytes(RateSearch::kFirstBytes), RateSearch::kFirstBytes / 16);
  EXPECT_EQ(ProbeMessageBytes(RateSearch::kMaxBytes), 64 << 10);
}

}  // namespace
}  // namespace isthmus
