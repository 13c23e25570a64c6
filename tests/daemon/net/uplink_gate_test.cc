#include "daemon/net/uplink_gate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

using std::chrono::milliseconds;
using Time = UplinkLine::Time;

constexpr int64_t kRate = 20'000'000;
constexpr int64_t kBytesPerSecond = static_cast<int64_t>(kRate / 8 * UplinkLine::kPayloadShare);
const Time kStart{std::chrono::hours(1)};

FrameHeader Header(FrameHeader::Kind kind, uint64_t bytes = 1 << 20) {
  FrameHeader header;
  header.set_kind(kind);
  header.set_payload_bytes(bytes);
  return header;
}

TEST(UplinkGate, LanesOfFrames) {
  for (const auto kind : {FrameHeader::CONTRIBUTION, FrameHeader::SUM, FrameHeader::SLICE}) {
    EXPECT_EQ(LaneOf(Header(kind)), Lane::kExchange);
    EXPECT_EQ(LaneOf(Header(kind, UplinkLine::kSmallBytes)), Lane::kCritical) << "small";
  }
  for (const auto kind :
       {FrameHeader::ACTIVATION, FrameHeader::GRADIENT, FrameHeader::VOTE, FrameHeader::DECISION,
        FrameHeader::EVAL_ACTIVATION, FrameHeader::CODEC_STATE, FrameHeader::BUFFER_HASH})
    EXPECT_EQ(LaneOf(Header(kind)), Lane::kCritical);
}

// Bytes that each lane sends in ten seconds, when each has all it can.
struct Sent {
  int64_t critical = 0, exchange = 0, copies = 0;
  milliseconds longest_ahead{0};  // of what a critical frame that came now would find before it
};
Sent TenSeconds(bool critical, bool exchange, bool copies) {
  UplinkLine line(kRate);
  const int64_t piece = line.piece_bytes();
  Sent sent;
  const Time end = kStart + std::chrono::seconds(10);
  for (Time now = kStart; now < end; now += milliseconds(1)) {
    if (critical) {
      line.Send(Lane::kCritical, kBytesPerSecond / 1000, now);  // all that the line takes
      sent.critical += kBytesPerSecond / 1000;
    }
    for (const Lane lane : {Lane::kExchange, Lane::kCopy}) {
      int64_t& bytes = lane == Lane::kCopy ? sent.copies : sent.exchange;
      while ((lane == Lane::kCopy ? copies : exchange) && line.Next(lane, exchange) <= now) {
        line.Send(lane, piece, now);
        bytes += piece;
      }
    }
    sent.longest_ahead = std::max(
        sent.longest_ahead, std::chrono::duration_cast<milliseconds>(
                                line.Next(Lane::kExchange, false) + UplinkLine::kAhead - now));
  }
  return sent;
}

TEST(UplinkGate, BulkAloneHasTheLine) {
  for (const bool copies : {false, true}) {
    const Sent sent = TenSeconds(false, !copies, copies);
    EXPECT_NEAR(static_cast<double>(copies ? sent.copies : sent.exchange), 10.0 * kBytesPerSecond,
                0.01 * 10 * kBytesPerSecond);
    EXPECT_LE(sent.longest_ahead, UplinkLine::kPiece + UplinkLine::kAhead);
  }
}

TEST(UplinkGate, BulkHasItsShareOfALineThatIsFull) {
  const double all = 10.0 * kBytesPerSecond;
  Sent sent = TenSeconds(true, true, false);
  EXPECT_NEAR(static_cast<double>(sent.exchange), all / UplinkLine::kExchangeWeight, 0.02 * all);
  sent = TenSeconds(true, false, true);
  EXPECT_NEAR(static_cast<double>(sent.copies), all / UplinkLine::kCopyWeight, 0.02 * all);
  sent = TenSeconds(true, true, true);
  EXPECT_NEAR(static_cast<double>(sent.exchange), all / UplinkLine::kExchangeWeight, 0.02 * all);
  EXPECT_NEAR(static_cast<double>(sent.copies), all / UplinkLine::kCopyWeight, 0.02 * all);
  EXPECT_GT(static_cast<double>(sent.critical), 0.9 * all);
}

TEST(UplinkGate, AnExchangeGoesBeforeCopies) {
  const double all = 10.0 * kBytesPerSecond;
  const Sent sent = TenSeconds(false, true, true);
  EXPECT_NEAR(static_cast<double>(sent.copies), all / UplinkLine::kCopyWeight, 0.02 * all);
  EXPECT_NEAR(static_cast<double>(sent.exchange + sent.copies), all, 0.02 * all);
}

TEST(UplinkGate, BulkWaitsForWhatTheLineHasAndOwesNothingForWhatItHad) {
  UplinkLine line(kRate);
  Time now = kStart;
  for (int i = 0; i < 100; ++i) {  // a second of bulk alone
    now = std::max(now, line.Next(Lane::kExchange, false));
    line.Send(Lane::kExchange, line.piece_bytes(), now);
  }
  EXPECT_LE(line.Next(Lane::kCritical, true), now) << "it never waits";
  line.Send(Lane::kCritical, kBytesPerSecond, now);  // a second of activations
  const Time next = line.Next(Lane::kExchange, false);
  EXPECT_GT(next, now + UplinkLine::kPiece);
  EXPECT_LE(next, now + UplinkLine::kExchangeWeight * UplinkLine::kPiece + milliseconds(1));
  // A line that has been idle takes a piece at once, not all that it could have taken.
  now += std::chrono::hours(1);
  int pieces = 0;
  for (; line.Next(Lane::kExchange, false) <= now; ++pieces)
    line.Send(Lane::kExchange, line.piece_bytes(), now);
  EXPECT_LE(pieces, 2);
}

// A rate that was told too low, or links that don't use the line: what they sent is no debt of it
// for as long as the line would have taken.
TEST(UplinkGate, BulkIsNotHeldUpForMoreThanAFewSecondsOfWhatWentBefore) {
  UplinkLine line(kRate);
  Time now = kStart;
  for (int i = 0; i < 600; ++i, now += milliseconds(100))  // a minute at ten times the rate
    line.Send(Lane::kCritical, kBytesPerSecond, now);
  int64_t bytes = 0;
  for (const Time end = now + 2 * UplinkLine::kMostOwed; now < end; now += milliseconds(1)) {
    for (; line.Next(Lane::kExchange, true) <= now; bytes += line.piece_bytes())
      line.Send(Lane::kExchange, line.piece_bytes(), now);
  }
  const double whole = 5.0 * kBytesPerSecond;  // of the second half; the first pays the debt
  EXPECT_GT(static_cast<double>(bytes), 0.9 * whole);
}

TEST(UplinkGate, PiecesAreTenMillisecondsOfTheLine) {
  EXPECT_NEAR(static_cast<double>(UplinkLine(kRate).piece_bytes()), kBytesPerSecond / 100.0, 2);
  EXPECT_EQ(UplinkLine(100'000).piece_bytes(), UplinkLine::kLeastPieceBytes);
  UplinkGate gate(kRate);
  EXPECT_EQ(gate.ChunkBytes(Lane::kCritical, 1 << 18), 1 << 18);
  EXPECT_LT(gate.ChunkBytes(Lane::kExchange, 1 << 18), 1 << 15);
  EXPECT_EQ(gate.ChunkBytes(Lane::kCopy, 1000), 1000);
  EXPECT_EQ(UplinkGate(0).ChunkBytes(Lane::kExchange, 1 << 18), 1 << 18);
}

TEST(UplinkGate, WithoutARateNothingWaits) {
  UplinkGate gate(0);
  const auto never = [] {
    ADD_FAILURE() << "asked";
    return true;
  };
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(gate.Pass(Lane::kCopy, 1 << 30, never));
}

// At 1 kbit/s a piece has its turn in seconds.
TEST(UplinkGate, WhatWaitsEndsWhenItIsToldTo) {
  UplinkGate gate(1000);
  int asked = 0;
  const auto stop = [&asked] { return ++asked > 2; };
  EXPECT_TRUE(gate.Pass(Lane::kExchange, 16 << 10, stop));
  EXPECT_TRUE(gate.Pass(Lane::kCritical, 16 << 10, stop));
  EXPECT_FALSE(gate.Pass(Lane::kExchange, 16 << 10, stop));
  EXPECT_EQ(asked, 3) << "at once where its turn has come, and now and then while it waits";
  EXPECT_TRUE(gate.Pass(Lane::kCritical, 16 << 10, stop));
}

}  // namespace
}  // namespace isthmus::daemon
