#include "coordinator/core/trace_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Plan TwoRanks() {
  Plan plan;
  plan.set_job_id("bible-1");
  plan.set_generation(4);
  for (const char* node : {"a", "b"}) {
    plan.add_ranks()->set_node_id(node);
    plan.mutable_ranks()->rbegin()->add_train();
  }
  return plan;
}

StepTrace TraceOf(int rank, int64_t step, int spans = 1) {
  StepTrace trace;
  trace.set_job_id("bible-1");
  trace.set_generation(4);
  trace.set_rank(rank);
  trace.set_step(step);
  for (int i = 0; i < spans; ++i) trace.add_spans()->set_begin_ns(1);
  return trace;
}

std::vector<std::pair<int, int64_t>> Told(const TraceJobReply& reply) {
  std::vector<std::pair<int, int64_t>> told;
  for (const StepTrace& t : reply.traces()) told.emplace_back(t.rank(), t.step());
  return told;
}

// Answers every reading at once, of a clock that is `ahead`; the round trip takes `trip`.
void ReadClocks(TraceTable* table, Commands commands, uint64_t* now, uint64_t ahead,
                uint64_t trip) {
  while (!commands.empty()) {
    const Command command = commands.back();
    commands.pop_back();
    ClockReading reading = command.message.clock();
    *now = std::max(*now, reading.coordinator_ns()) + trip;
    reading.set_daemon_ns(reading.coordinator_ns() + trip / 2 + ahead);
    for (Command& c : table->OnClock(command.node_id, reading, *now))
      commands.push_back(std::move(c));
  }
}

TEST(TraceTable, ReadsClocksOneAfterTheOtherThenAsks) {
  TraceTable table;
  uint64_t now = 1000;
  const auto first = table.Begin(TwoRanks(), 2, now);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_THAT(*first, SizeIs(2));
  EXPECT_EQ((*first)[1].node_id, "b");
  EXPECT_FALSE(table.ClocksRead("bible-1"));
  ClockReading unasked;
  unasked.set_coordinator_ns(7);
  EXPECT_THAT(table.OnClock("a", unasked, now), IsEmpty());
  EXPECT_THAT(table.OnClock("stranger", (*first)[0].message.clock(), now), IsEmpty());
  ReadClocks(&table, *first, &now, 5'000'000, 200);
  EXPECT_TRUE(table.ClocksRead("bible-1"));
  // A step takes 50 ns where the news of a trace may be 200 ns apart.
  const Commands asked = table.Ask("bible-1", absl::Nanoseconds(50'000));
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].message.trace().job_id(), "bible-1");
  EXPECT_EQ(asked[0].message.trace().generation(), 4u);
  EXPECT_EQ(asked[0].message.trace().steps(), 2 + 2 + 1);
  const TraceJobReply reply = table.End("bible-1");
  ASSERT_EQ(reply.clocks_size(), 2);
  EXPECT_EQ(reply.clocks(0).offset_ns(), -5'000'000);
  EXPECT_EQ(reply.clocks(0).error_ns(), 100);
  EXPECT_TRUE(reply.plan().ranks(0).train().empty()) << "nobody follows them there";
}

TEST(TraceTable, RanksThatHearItLateAreAskedForMore) {
  TraceTable table;
  uint64_t now = 1;
  const Commands first = table.Begin(TwoRanks(), 5, now).value();
  ReadClocks(&table, first, &now, 0, 100'000'000);
  EXPECT_EQ(table.Ask("bible-1", absl::Milliseconds(10))[0].message.trace().steps(), 5 + 2 + 10);
  EXPECT_EQ(table.Ask("bible-1", absl::ZeroDuration())[0].message.trace().steps(), 5 + 2 + 400);
}

TEST(TraceTable, CountsTheStepsThatAllRanksTellOf) {
  TraceTable table;
  table.Begin(TwoRanks(), 2, 1).value();
  for (const int64_t step : {10, 11, 12, 13}) table.OnTrace("a", TraceOf(0, step));
  table.OnTrace("b", TraceOf(1, 12));
  table.OnTrace("b", TraceOf(1, 12));
  EXPECT_EQ(table.heard("bible-1"), 5) << "one came twice";
  EXPECT_FALSE(table.Done("bible-1"));
  table.OnTrace("b", TraceOf(1, 13));
  EXPECT_TRUE(table.Done("bible-1"));
  table.OnTrace("b", TraceOf(1, 14));
  table.OnTrace("a", TraceOf(0, 14));
  EXPECT_THAT(Told(table.End("bible-1")),
              ElementsAre(std::pair(0, 12), std::pair(1, 12), std::pair(0, 13), std::pair(1, 13)));
}

TEST(TraceTable, WhatIsNotOfThatTraceIsLeftOut) {
  TraceTable table;
  table.Begin(TwoRanks(), 1, 1).value();
  StepTrace other = TraceOf(0, 1);
  other.set_generation(3);
  table.OnTrace("a", other);
  other = TraceOf(0, 1);
  other.set_job_id("bible-2");
  table.OnTrace("a", other);
  table.OnTrace("a", TraceOf(1, 1));  // another's rank
  table.OnTrace("a", TraceOf(-1, 1));
  table.OnTrace("stranger", TraceOf(0, 1));
  EXPECT_EQ(table.heard("bible-1"), 0);
  EXPECT_EQ(table.heard("bible-2"), 0);
}

TEST(TraceTable, ASilentRankTakesNothingFromTheOthers) {
  TraceTable table;
  table.Begin(TwoRanks(), 1, 1).value();
  table.OnTrace("a", TraceOf(0, 3));
  EXPECT_FALSE(table.Done("bible-1")) << "it may still come";
  const TraceJobReply reply = table.End("bible-1");
  EXPECT_THAT(Told(reply), ElementsAre(std::pair(0, 3)));
  EXPECT_FALSE(reply.clocks(1).known());
}

TEST(TraceTable, OneOfAJobAtATime) {
  TraceTable table;
  table.Begin(TwoRanks(), 1, 1).value();
  EXPECT_THAT(std::string(table.Begin(TwoRanks(), 1, 1).status().message()),
              HasSubstr("is being traced for somebody else"));
  table.End("bible-1");
  EXPECT_TRUE(table.Begin(TwoRanks(), 1, 1).ok());
}

TEST(TraceTable, HasBounds) {
  TraceTable table;
  EXPECT_EQ(table.Begin(TwoRanks(), 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table.Begin(TwoRanks(), kMaxTraceSteps + 1, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  table.Begin(TwoRanks(), kMaxTraceSteps, 1).value();
  for (int64_t step = 0; step < 40; ++step) {
    table.OnTrace("a", TraceOf(0, step, 20'000));
    table.OnTrace("b", TraceOf(1, step, 20'000));
  }
  EXPECT_TRUE(table.Done("bible-1")) << "it is full";
  const TraceJobReply reply = table.End("bible-1");
  EXPECT_GT(reply.traces_size(), 0);
  EXPECT_LT(reply.ByteSizeLong(), 4 << 20) << "one message";
}

}  // namespace
}  // namespace isthmus::coordinator
