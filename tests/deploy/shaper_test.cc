#include "deploy/testnet/shaper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

namespace isthmus::testnet {
namespace {

using Verdict = Shaper::Verdict;
constexpr int64_t kMs = 1'000'000;
constexpr int64_t kMbit = 1'000'000;

LinkTable Table(LinkSpec spec, int nodes = 2) { return *UniformLinkTable(nodes, spec); }
LinkSpec Link(int64_t rate, int64_t delay_ms = 0, int64_t jitter_ms = 0, double loss = 0) {
  return {rate, absl::Milliseconds(delay_ms), absl::Milliseconds(jitter_ms), loss};
}

// A packet whose first byte tells it apart.
Packet Bytes(size_t n, uint8_t tag = 0) {
  Packet p(n, 0);
  p[0] = tag;
  return p;
}

TEST(Shaper, ArrivalIsDeparturePlusDelay) {
  Shaper s(Table(Link(8 * kMbit, 25)), {});  // 1 byte a microsecond
  EXPECT_EQ(s.NextEvent(), Shaper::kNever);
  EXPECT_EQ(s.Offer(0, 1, Bytes(1000, 7), 5 * kMs), Verdict::kAccepted);
  EXPECT_EQ(s.NextEvent(), 5 * kMs + 1 * kMs + 25 * kMs);
  EXPECT_FALSE(s.Pop(31 * kMs - 1));
  const auto d = s.Pop(31 * kMs);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->from, 0);
  EXPECT_EQ(d->to, 1);
  EXPECT_EQ(d->arrival_ns, 31 * kMs);
  EXPECT_EQ(d->packet, Bytes(1000, 7));
  EXPECT_EQ(s.NextEvent(), Shaper::kNever);
  EXPECT_EQ(s.held_bytes(), 0);
}

TEST(Shaper, PacketsOverASizeVanish) {
  LinkSpec spec = Link(8 * kMbit);
  spec.drop_over_bytes = 1280;
  Shaper s(Table(spec), {});
  EXPECT_EQ(s.Offer(0, 1, Bytes(1281), 0), Verdict::kTooLarge);
  EXPECT_EQ(s.Offer(0, 1, Bytes(1280), 0), Verdict::kAccepted);
  EXPECT_EQ(s.counters(0, 1).dropped_large, 1u);
  EXPECT_EQ(s.NextEvent(), 1280 * 1000) << "it takes no time on the link";
}

TEST(Shaper, PacketsQueueBehindEachOtherAndIdleTimeIsNotSaved) {
  Shaper s(Table(Link(8 * kMbit)), {});
  for (int i = 0; i < 3; ++i) s.Offer(0, 1, Bytes(1000), 0);
  for (int64_t want : {1, 2, 3}) EXPECT_EQ(s.Pop(want * kMs)->arrival_ns, want * kMs);
  s.Offer(0, 1, Bytes(1000), 10 * kMs);
  EXPECT_EQ(s.NextEvent(), 11 * kMs);
}

TEST(Shaper, PairsAndDirectionsDoNotShareARate) {
  Shaper s(Table(Link(8 * kMbit), 3), {});
  s.Offer(0, 1, Bytes(1000), 0);
  s.Offer(1, 0, Bytes(1000), 0);
  s.Offer(0, 2, Bytes(1000), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.Pop(1 * kMs)->arrival_ns, 1 * kMs);
}

TEST(Shaper, RateIsExactOverManyPacketsThatDoNotDivide) {
  const int64_t rate = 7'777'777;
  ShaperOptions options;
  options.queue_bytes = 1 << 30;
  Shaper s(Table(Link(rate)), options);
  const int n = 10'000;
  int64_t last = 0;
  for (int i = 0; i < n; ++i) s.Offer(0, 1, Bytes(101), 0);
  while (auto d = s.Pop(Shaper::kNever - 1)) last = d->arrival_ns;
  EXPECT_EQ(last, int64_t{n} * 101 * 8 * 1'000'000'000 / rate);
}

TEST(Shaper, UnlimitedRateIsDelayAlone) {
  Shaper s(Table(Link(0, 3)), {});
  for (int i = 0; i < 100; ++i) s.Offer(0, 1, Bytes(9000), 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(s.Pop(3 * kMs)->arrival_ns, 3 * kMs);
}

TEST(Shaper, TailDropsAtTheCapAndTakesAgainAsItDrains) {
  ShaperOptions options;
  options.queue_bytes = 3000;
  Shaper s(Table(Link(8 * kMbit, 50)), options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.Offer(0, 1, Bytes(1000), 0), Verdict::kAccepted);
  EXPECT_EQ(s.Offer(0, 1, Bytes(1000), 0), Verdict::kQueueFull);
  EXPECT_EQ(s.Offer(0, 1, Bytes(1000), kMs - 1000), Verdict::kQueueFull);
  // One has departed. What is on its way (50 ms of delay) does not count.
  EXPECT_EQ(s.Offer(0, 1, Bytes(1000), kMs), Verdict::kAccepted);
  EXPECT_EQ(s.counters(0, 1).dropped_queue, 2u);
}

TEST(Shaper, DefaultCapIs200MsOfTheRateAtLeast64KiB) {
  EXPECT_EQ(DefaultQueueBytes(1000), 65536);
  EXPECT_EQ(DefaultQueueBytes(100 * kMbit), 2'500'000);
  Shaper s(Table(Link(100 * kMbit)), {});
  int accepted = 0;
  while (s.Offer(0, 1, Bytes(1000), 0) == Verdict::kAccepted) ++accepted;
  EXPECT_EQ(accepted, 2500);
}

TEST(Shaper, HeldBytesAreBoundedOverAllPairs) {
  ShaperOptions options;
  options.max_held_bytes = 5000;
  Shaper s(Table(Link(0, 1000), 3), options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.Offer(0, 1, Bytes(1000), 0), Verdict::kAccepted);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(s.Offer(1, 2, Bytes(1000), 0), Verdict::kAccepted);
  EXPECT_EQ(s.Offer(0, 2, Bytes(1000), 0), Verdict::kQueueFull);
  EXPECT_EQ(s.held_bytes(), 5000);
}

TEST(Shaper, JitterStaysInItsBandAndInOrder) {
  Shaper s(Table(Link(0, 20, 5)), {});
  // Far apart: each within 20 +- 5 ms, and spread over the band.
  double sum = 0;
  int64_t low = INT64_MAX, high = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = i * 100 * kMs;
    s.Offer(0, 1, Bytes(10), now);
    const int64_t travel = s.Pop(now + 100 * kMs)->arrival_ns - now;
    EXPECT_GE(travel, 15 * kMs);
    EXPECT_LE(travel, 25 * kMs);
    sum += static_cast<double>(travel);
    low = std::min(low, travel);
    high = std::max(high, travel);
  }
  // The mean of 1000 uniform draws has a deviation of 10 ms / sqrt(12 * 1000) = 0.09 ms.
  EXPECT_NEAR(sum / 1000, 20e6, 0.4e6);
  EXPECT_LT(low, 15.2e6);
  EXPECT_GT(high, 24.8e6);
  // Close together: never out of order.
  const int64_t start = 1'000'000 * kMs;
  for (int i = 0; i < 200; ++i) {
    s.Offer(0, 1, Bytes(10, static_cast<uint8_t>(i)), start + i * 100'000);
  }
  int64_t previous = 0;
  for (int i = 0; i < 200; ++i) {
    const auto d = s.Pop(Shaper::kNever - 1);
    ASSERT_TRUE(d);
    EXPECT_EQ(d->packet[0], static_cast<uint8_t>(i));
    EXPECT_GE(d->arrival_ns, previous);
    previous = d->arrival_ns;
  }
}

std::vector<bool> LossPattern(uint64_t seed, int to, int other_traffic) {
  ShaperOptions options;
  options.seed = seed;
  Shaper s(Table(Link(0, 0, 0, 0.1), 3), options);
  std::vector<bool> lost;
  for (int i = 0; i < 5000; ++i) {
    for (int k = 0; k < other_traffic; ++k) s.Offer(1, 0, Bytes(10), i);
    lost.push_back(s.Offer(0, to, Bytes(10), i) == Verdict::kLost);
    while (s.Pop(i)) {
    }
  }
  return lost;
}

TEST(Shaper, LossDependsOnTheSeedAndThePairAlone) {
  EXPECT_EQ(LossPattern(1, 1, 0), LossPattern(1, 1, 3));
  EXPECT_NE(LossPattern(1, 1, 0), LossPattern(2, 1, 0));
  EXPECT_NE(LossPattern(1, 1, 0), LossPattern(1, 2, 0));
}

TEST(Shaper, LossHasItsShare) {
  for (double p : {0.001, 0.05, 0.5}) {
    Shaper s(Table(Link(0, 0, 0, p)), {});
    const int n = 200'000;
    for (int i = 0; i < n; ++i) {
      s.Offer(0, 1, Bytes(10), i);
      s.Pop(i);
    }
    // 4.5 deviations; the seed is fixed, so this either holds or not.
    EXPECT_NEAR(static_cast<double>(s.counters(0, 1).dropped_loss), n * p,
                4.5 * std::sqrt(n * p * (1 - p)))
        << p;
    EXPECT_EQ(s.counters(0, 1).packets + s.counters(0, 1).dropped_loss, static_cast<uint64_t>(n));
  }
  Shaper all(Table(Link(0, 0, 0, 1)), {});
  EXPECT_EQ(all.Offer(0, 1, Bytes(10), 0), Verdict::kLost);
}

TEST(Shaper, ALostPacketTakesItsTimeOnTheLink) {
  LinkSpec spec = Link(8 * kMbit, 0, 0, 1);
  Shaper s(Table(spec), {});
  EXPECT_EQ(s.Offer(0, 1, Bytes(1000), 0), Verdict::kLost);
  spec.loss = 0;
  s.SetLink(0, 1, spec, 0);
  s.Offer(0, 1, Bytes(1000), 0);
  EXPECT_EQ(s.NextEvent(), 2 * kMs);
}

TEST(Shaper, DownDropsWhatIsOfferedAndWhatIsOnItsWay) {
  Shaper s(Table(Link(0, 10)), {});
  s.Offer(0, 1, Bytes(100), 0);
  s.Offer(1, 0, Bytes(100), 0);
  s.SetDown(0, 1, true);
  EXPECT_TRUE(s.down(0, 1));
  EXPECT_EQ(s.Offer(0, 1, Bytes(100), kMs), Verdict::kDown);
  const auto d = s.Pop(20 * kMs);  // only the other direction's
  ASSERT_TRUE(d);
  EXPECT_EQ(d->from, 1);
  EXPECT_FALSE(s.Pop(20 * kMs));
  EXPECT_EQ(s.counters(0, 1).dropped_down, 2u);
  s.SetDown(0, 1, false);
  EXPECT_EQ(s.Offer(0, 1, Bytes(100), 30 * kMs), Verdict::kAccepted);
  EXPECT_TRUE(s.Pop(40 * kMs));
  EXPECT_EQ(s.held_bytes(), 0);
}

TEST(Shaper, ANewRateDrainsWhatWaits) {
  Shaper s(Table(Link(8 * kMbit, 5)), {});
  for (int i = 0; i < 4; ++i) s.Offer(0, 1, Bytes(1000), 0);  // depart at 1, 2, 3, 4 ms
  s.SetLink(0, 1, Link(4 * kMbit, 5), 2 * kMs);               // the last two take twice as long
  for (int64_t want : {6, 7, 9, 11}) EXPECT_EQ(s.Pop(100 * kMs)->arrival_ns, want * kMs);
  s.Offer(0, 1, Bytes(1000), 2 * kMs);  // queues behind them: 6 + 2 ms
  EXPECT_EQ(s.NextEvent(), 13 * kMs);
}

TEST(Shaper, UnlimitedFromNowOnReleasesTheQueue) {
  Shaper s(Table(Link(8 * kMbit, 5)), {});
  for (int i = 0; i < 4; ++i) s.Offer(0, 1, Bytes(1000), 0);
  s.SetLink(0, 1, Link(0, 5), 2 * kMs);
  for (int64_t want : {6, 7, 7, 7}) EXPECT_EQ(s.Pop(100 * kMs)->arrival_ns, want * kMs);
}

TEST(Shaper, AShorterDelayOvertakesNothing) {
  Shaper s(Table(Link(0, 50)), {});
  s.Offer(0, 1, Bytes(100, 1), 0);
  s.SetLink(0, 1, Link(0, 1), 10 * kMs);
  s.Offer(0, 1, Bytes(100, 2), 10 * kMs);
  const auto first = s.Pop(50 * kMs);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->packet[0], 1);
  EXPECT_EQ(first->arrival_ns, 50 * kMs);
  EXPECT_EQ(s.Pop(50 * kMs)->packet[0], 2);
  s.Offer(0, 1, Bytes(100, 3), 60 * kMs);
  EXPECT_EQ(s.NextEvent(), 61 * kMs);
}

// Three nodes; node 0 has the uplink, node 2 the downlink.
LinkTable Ends(LinkSpec spec, int64_t up_0, int64_t down_2) {
  LinkTable table = Table(spec, 3);
  table.ends[0].uplink_bits_per_s = up_0;
  table.ends[2].downlink_bits_per_s = down_2;
  return table;
}

// All that arrives until `now`: destination, tag of the packet, time in ms.
using Arrival = std::tuple<int, int, double>;
std::vector<Arrival> Arrivals(Shaper* s, int64_t now_ns) {
  std::vector<Arrival> all;
  while (auto d = s->Pop(now_ns))
    all.emplace_back(d->to, d->packet[0], static_cast<double>(d->arrival_ns) / kMs);
  return all;
}

TEST(Shaper, TwoFlowsOfANodeShareItsUplinkInTheOrderTheyCame) {
  Shaper s(Ends(Link(0, 10), 8 * kMbit, 0), {});  // 1 byte a microsecond
  for (uint8_t i = 0; i < 4; ++i) s.Offer(0, 1 + i % 2, Bytes(1000, i), 0);
  s.Offer(1, 2, Bytes(1000, 9), 0);  // not of node 0
  s.Offer(1, 0, Bytes(1000, 8), 0);  // an uplink shapes nothing that comes
  EXPECT_EQ(s.NextEvent(), 1 * kMs) << "it leaves the uplink";
  EXPECT_EQ(Arrivals(&s, 100 * kMs),
            (std::vector<Arrival>{
                {0, 8, 10}, {2, 9, 10}, {1, 0, 11}, {2, 1, 12}, {1, 2, 13}, {2, 3, 14}}));
  EXPECT_EQ(s.counters(0, Side::kUp).packets, 4u);
  EXPECT_EQ(s.counters(0, Side::kUp).bytes, 4000u);
  EXPECT_EQ(s.counters(0, Side::kUp).longest_wait_ns, 4 * kMs);
  EXPECT_EQ(s.counters(1, Side::kUp).packets, 0u);
  EXPECT_EQ(s.held_bytes(), 0);
}

TEST(Shaper, TheDownlinkTakesPacketsInTheOrderTheyArrive) {
  LinkTable table = Ends(Link(0, 10), 0, 8 * kMbit);
  table.At(1, 2).delay = absl::Milliseconds(5);
  Shaper s(table, {});
  s.Offer(0, 2, Bytes(2000, 1), 0);
  s.Offer(1, 2, Bytes(7000, 2), 0);  // there at 5 ms, through at 12
  s.Offer(1, 0, Bytes(7000, 3), 0);
  EXPECT_EQ(Arrivals(&s, 100 * kMs), (std::vector<Arrival>{{0, 3, 10}, {2, 2, 12}, {2, 1, 14}}));
  EXPECT_EQ(s.counters(2, Side::kDown).packets, 2u);
}

TEST(Shaper, APacketWaitsForUplinkPairAndDownlink) {
  Shaper s(Ends(Link(4 * kMbit, 10), 8 * kMbit, 2 * kMbit), {});
  for (uint8_t i = 0; i < 2; ++i) s.Offer(0, 2, Bytes(1000, i), 0);
  // Uplink 1 ms, link 2, way 10, downlink 4. The second waits for each slower one.
  EXPECT_EQ(Arrivals(&s, 100 * kMs), (std::vector<Arrival>{{2, 0, 17}, {2, 1, 21}}));
}

TEST(Shaper, AFullUplinkOrDownlinkDropsAtTheTail) {
  ShaperOptions options;
  options.queue_bytes = 3000;
  Shaper s(Ends(Link(0), 8 * kMbit, 4 * kMbit), options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.Offer(0, 1, Bytes(1000), 0), Verdict::kAccepted);
  EXPECT_EQ(s.Offer(0, 2, Bytes(1000), 0), Verdict::kQueueFull);
  EXPECT_EQ(s.counters(0, Side::kUp).dropped_queue, 1u);
  EXPECT_EQ(s.counters(0, 2).dropped_queue, 1u);
  EXPECT_EQ(Arrivals(&s, 100 * kMs).size(), 3u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(s.Offer(1, 2, Bytes(1000), 100 * kMs), Verdict::kAccepted);
  EXPECT_EQ(Arrivals(&s, 200 * kMs).size(), 3u);
  EXPECT_EQ(s.counters(2, Side::kDown).dropped_queue, 1u);
  EXPECT_EQ(s.counters(1, 2).dropped_queue, 1u);
  EXPECT_EQ(s.held_bytes(), 0);
}

TEST(Shaper, ANewRateOfAnUplinkDrainsWhatWaits) {
  Shaper s(Ends(Link(0), 8 * kMbit, 0), {});
  for (uint8_t i = 0; i < 4; ++i) s.Offer(0, 1, Bytes(1000, i), 0);
  s.SetEnd(0, Side::kUp, 4 * kMbit, 2 * kMs);
  EXPECT_EQ(s.end_rate(0, Side::kUp), 4 * kMbit);
  EXPECT_EQ(Arrivals(&s, 4 * kMs), (std::vector<Arrival>{{1, 0, 1}, {1, 1, 2}, {1, 2, 4}}));
  // Unlimited: what waited is not overtaken by what comes.
  s.SetEnd(0, Side::kUp, 0, 5 * kMs);
  s.Offer(0, 1, Bytes(1000, 4), 5 * kMs);
  EXPECT_EQ(Arrivals(&s, 5 * kMs), (std::vector<Arrival>{{1, 3, 5}, {1, 4, 5}}));
  s.Offer(0, 1, Bytes(1000, 5), 6 * kMs);
  EXPECT_EQ(Arrivals(&s, 6 * kMs), (std::vector<Arrival>{{1, 5, 6}}));
}

TEST(Shaper, CountersAddUp) {
  ShaperOptions options;
  options.queue_bytes = 20'000;
  Shaper s(Table(Link(8 * kMbit, 1, 0, 0.2)), options);
  uint64_t offered = 0;
  for (int i = 0; i < 1000; ++i, ++offered) s.Offer(0, 1, Bytes(1000), i * kMs / 2);
  uint64_t received = 0;
  while (s.Pop(Shaper::kNever - 1)) ++received;
  const PairCounters& c = s.counters(0, 1);
  EXPECT_EQ(c.packets, received);
  EXPECT_EQ(c.bytes, received * 1000);
  EXPECT_GT(c.dropped_loss, 0u);
  EXPECT_GT(c.dropped_queue, 0u);
  EXPECT_EQ(c.packets + c.dropped_loss + c.dropped_queue + c.dropped_down, offered);
  EXPECT_EQ(s.counters(1, 0).packets, 0u);
}

}  // namespace
}  // namespace isthmus::testnet
