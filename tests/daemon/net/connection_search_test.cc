#include "daemon/net/connection_search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

constexpr int64_t kBytes = RateSearch::kMaxBytes;

// What a search tries and finds where a connection carries `one` and the line `line`.
struct Found {
  std::vector<int> tried;
  int connections = 0;
  double rate = 0;
};
Found Search(double round_trip_s, double one, double line, int64_t max_bytes = kBytes) {
  ConnectionSearch search(round_trip_s, std::min(one, line), max_bytes);
  Found found;
  while (const int n = search.Next()) {
    found.tried.push_back(n);
    EXPECT_GT(search.Bytes(n), 0);
    EXPECT_LE(search.Bytes(n), max_bytes);
    search.Add(n, std::min(n * one, line));
  }
  found.connections = search.connections();
  found.rate = search.rate_bits_per_s();
  return found;
}

TEST(ConnectionSearch, OneThatFillsTheLineIsKept) {
  const Found found = Search(0.05, 1e8, 1e8);
  EXPECT_EQ(found.tried, std::vector<int>({4}));
  EXPECT_EQ(found.connections, 1);
  EXPECT_EQ(found.rate, 1e8);
}

TEST(ConnectionSearch, TheFewestThatReachTheRateCount) {
  for (const auto& [one, connections] : std::vector<std::pair<double, int>>{
           {6e7, 2}, {5e7, 2}, {3e7, 4}, {2.5e7, 4}, {1.2e7, 8}, {3e6, 8}}) {
    const Found found = Search(0.05, one, 1e8);
    EXPECT_EQ(found.connections, connections) << one;
    EXPECT_EQ(found.rate, std::min(1e8, connections * one)) << one;
    EXPECT_LE(found.tried.size(), 3u);
  }
}

TEST(ConnectionSearch, NothingIsTriedWhereItCanNotPay) {
  EXPECT_TRUE(Search(0.004, 1e6, 1e8).tried.empty()) << "a short way";
  EXPECT_TRUE(Search(0.02, 2e6, 1e8).tried.empty()) << "a few packets under way";
  EXPECT_TRUE(Search(0.05, 1e6, 1e8, 256 << 10).tried.empty()) << "no bytes to spend";
  EXPECT_EQ(Search(0.05, 5e6, 1e8).tried, std::vector<int>({4, 4, 8}));
}

// A rack or one host: 8 Gbit/s a connection, as a thread moves them.
TEST(ConnectionSearch, AShortWayTakesSeveralWhereOneThreadIsTheLimit) {
  const Found many = Search(0.0002, 8e9, 1e11);
  EXPECT_EQ(many.tried, std::vector<int>({4, 8}));
  EXPECT_EQ(many.connections, 8);
  const Found few = Search(0.0002, 8e9, 1.6e10);
  EXPECT_EQ(few.tried, std::vector<int>({4, 2}));
  EXPECT_EQ(few.connections, 2);
  const Found noise = Search(0.0002, 8e9, 1.1e10);
  EXPECT_EQ(noise.tried, std::vector<int>({4}));
  EXPECT_EQ(noise.connections, 1) << "1.4 times as much, which load alone brings";
  EXPECT_TRUE(Search(0.0002, 3e9, 1e11).tried.empty()) << "not so fast";
}

TEST(ConnectionSearch, ARoundThatFailedEndsItWithWhatIsKnown) {
  ConnectionSearch search(0.05, 2e7, kBytes);
  search.Add(4, 4e7);
  EXPECT_EQ(search.Next(), 2);
  search.Add(2, 0);
  EXPECT_EQ(search.Next(), 0);
  EXPECT_EQ(search.connections(), 4);
  EXPECT_EQ(search.rate_bits_per_s(), 4e7);
}

// 5 Mbit/s of one; four had 52 in half a second, and 22 when they lost packets.
TEST(ConnectionSearch, AShortRoundIsMadeAgain) {
  ConnectionSearch search(0.05, 5e6, kBytes);
  const int64_t few = search.Bytes(4);
  search.Add(4, 5.2e7);
  EXPECT_EQ(search.Next(), 4);
  EXPECT_GT(search.Bytes(4), 3 * few);
  search.Add(4, 2.2e7);
  EXPECT_EQ(search.Next(), 8);
  EXPECT_EQ(search.rate_bits_per_s(), 2.2e7) << "the second one counts";
}

TEST(ConnectionSearch, ALittleMoreIsNoise) {
  ConnectionSearch search(0.05, 1e8, kBytes);
  search.Add(4, 1.09e8);
  EXPECT_EQ(search.Next(), 0);
  EXPECT_EQ(search.connections(), 1);
  EXPECT_EQ(search.rate_bits_per_s(), 1e8);
}

TEST(ConnectionSearch, BytesThatEndInSlowStartSpeakForMore) {
  // 300 Mbit/s at 150 ms: four and eight got equally far.
  ConnectionSearch search(0.15, 1.5e8, kBytes);
  EXPECT_EQ(search.Bytes(4), kBytes);
  search.Add(4, 3.0e8);
  EXPECT_EQ(search.Next(), 8) << "two would not be seen to be fewer";
  search.Add(8, 3.05e8);
  EXPECT_EQ(search.Next(), 0);
  EXPECT_EQ(search.connections(), 8);
}

TEST(ConnectionSearch, FewerConnectionsGetFewerBytes) {
  ConnectionSearch search(0.05, 1e7, kBytes);
  search.Add(4, 2e7);
  EXPECT_EQ(search.Bytes(8), search.Bytes(4));
  EXPECT_EQ(search.Bytes(2), search.Bytes(4) / 2);
}

// A connection that began at `begun_s`: 1000 bytes/s until `end_s`.
RateSearch::Round Steady(double begun_s, double end_s) {
  const double elapsed_s = end_s - begun_s;
  const auto bytes = static_cast<int64_t>(1000 * elapsed_s);
  return {bytes, elapsed_s, bytes / 2, elapsed_s / 2, end_s};
}

TEST(SideBySide, AddsUpWhatRunsAtOnce) {
  EXPECT_NEAR(SideBySideBitsPerSecond({Steady(0, 9), Steady(0, 9)}, 0), 8 * 2000, 1);
  EXPECT_NEAR(SideBySideBitsPerSecond({Steady(0, 9), Steady(1, 9)}, 0.5), 8 * 2000, 1)
      << "one began later";
}

TEST(SideBySide, WhatOneHasAfterAnotherEndedIsNoPartOfIt) {
  // Together until 4 s, then the second one alone with the whole line, twice as fast.
  EXPECT_NEAR(SideBySideBitsPerSecond({Steady(0, 4), {12'000, 8, 8'000, 4, 8}}, 0.5), 8 * 2000, 1);
}

TEST(SideBySide, TheTimeOfAllBoundsIt) {
  // What was held up came in the last second; 8000 bytes in 8 s are all that passed.
  const RateSearch::Round late = {4'000, 2, 3'900, 1, 8};
  EXPECT_NEAR(SideBySideBitsPerSecond({late, Steady(0, 4)}, 0), 8 * 1000, 1);
}

TEST(SideBySide, TooLittleIsNoFigure) {
  EXPECT_EQ(SideBySideBitsPerSecond({}, 0.05), 0);
  EXPECT_EQ(SideBySideBitsPerSecond({Steady(0, 9), RateSearch::Round()}, 0.05), 0);
}

}  // namespace
}  // namespace isthmus::daemon
