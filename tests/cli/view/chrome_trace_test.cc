#include "coordinator/cli/view/chrome_trace.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/view/trace_fixture.h"

namespace isthmus::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ChromeTrace, Golden) {
  std::ifstream in(ISTHMUS_SOURCE_DIR "/tests/cli/view/golden/trace.json");
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(ChromeTrace(TwoStageTrace()), golden.str());
}

TEST(ChromeTrace, IsJsonWithArrowsFromSendToReceive) {
  const auto json = nlohmann::json::parse(ChromeTrace(TwoStageTrace()));
  nlohmann::json send, receive, start, end;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "X" && e["cat"] == "send") send = e;
    if (e["ph"] == "X" && e["cat"] == "receive") receive = e;
    if (e["ph"] == "s") start = e;
    if (e["ph"] == "f") end = e;
  }
  EXPECT_EQ(send["ts"], 2100);
  EXPECT_EQ(receive["ts"], 2200) << "on the coordinator's clock";
  EXPECT_EQ(start["pid"], 0);
  EXPECT_EQ(end["pid"], 1);
  EXPECT_EQ(start["id"], end["id"]);
  EXPECT_EQ(start["ts"], send["ts"]);
  EXPECT_EQ(start["tid"], send["tid"]);
  EXPECT_EQ(end["tid"], receive["tid"]);
  EXPECT_EQ(send["args"]["step"], 7) << "steps count from 1";
  EXPECT_EQ(send["args"]["bytes"], 512);
}

TEST(ChromeTrace, AnEndThatIsMissingHasNoArrow) {
  TraceJobReply reply = TwoStageTrace();
  reply.mutable_traces()->RemoveLast();
  EXPECT_THAT(ChromeTrace(reply), testing::Not(HasSubstr("\"ph\":\"s\"")));
}

TEST(ChromeTrace, AnUnknownClockBeginsWithTheOthers) {
  TraceJobReply reply = TwoStageTrace();
  EXPECT_THAT(ClockOffsets(reply), ElementsAre(0, int64_t{10'000'000'000}));
  reply.mutable_clocks(1)->set_known(false);
  EXPECT_THAT(ClockOffsets(reply), ElementsAre(0, int64_t{9'999'900'000}));
  EXPECT_THAT(TraceFaults(reply, 1),
              ElementsAre("stage 1 on n\"2: its clock is not known; its first span is put where "
                          "the others' first one is"));
  reply.clear_clocks();
  EXPECT_NO_FATAL_FAILURE(ChromeTrace(reply));
}

TEST(ChromeTrace, IndicesThatAreNoneDoNoHarm) {
  TraceJobReply reply = TwoStageTrace();
  for (int at : {-5, 99}) {
    AddSpan(reply.mutable_traces(0), {TraceSpan::SEND, 1, 1, 0, at});
    AddSpan(reply.mutable_traces(0), {TraceSpan::REDUCE, 1, -7, at, at, FrameHeader::SUM, at});
  }
  EXPECT_FALSE(nlohmann::json::parse(ChromeTrace(reply)).empty());
}

TEST(ChromeTrace, SharesOfTheComputeThreadAddUp) {
  TraceJobReply reply = TwoStageTrace();
  const RankShares lower = SharesOf(reply)[0];
  EXPECT_DOUBLE_EQ(lower.step_s, 0.010);
  EXPECT_DOUBLE_EQ(lower.forward, 0.20);
  EXPECT_DOUBLE_EQ(lower.backward, 0.25);
  EXPECT_DOUBLE_EQ(lower.wait, 0.52);
  EXPECT_DOUBLE_EQ(lower.reduce, 0.02) << "without its wait";
  EXPECT_DOUBLE_EQ(lower.optimiser, 0.01);
  EXPECT_NEAR(lower.other, 0, 1e-12);
  EXPECT_DOUBLE_EQ(lower.send, 0.09);
  // A validation pass holds forward passes of its own.
  AddSpan(reply.mutable_traces(0), {TraceSpan::EVALUATE, 50'010'000, 10'000});
  AddSpan(reply.mutable_traces(0), {TraceSpan::FORWARD, 50'011'000, 4000, 0});
  const RankShares with_eval = SharesOf(reply)[0];
  EXPECT_DOUBLE_EQ(with_eval.evaluate, 0.5);
  EXPECT_DOUBLE_EQ(with_eval.forward, 0.1);
}

TEST(ChromeTrace, SummaryInWords) {
  EXPECT_EQ(TraceSummary(TwoStageTrace()),
            "stage 0 on n1: 10.0 ms a step: compute 46 % (forward 20 %, backward 25 %, optimiser "
            "1 %), waiting 52 %, reductions 2 %; beside it: encoding 1 %, sending 9 %, receiving "
            "0 %, decoding 0 %\n"
            "stage 1 on n\"2: 4.9 ms a step: compute 39 % (forward 39 %, backward 0 %, optimiser "
            "0 %), waiting 61 %; beside it: encoding 0 %, sending 0 %, receiving 17 %, decoding "
            "1 %\n");
  const auto json = nlohmann::json::parse(TraceSummaryJson(TwoStageTrace(), "t.json"));
  EXPECT_EQ(json["file"], "t.json");
  EXPECT_EQ(json["steps"], nlohmann::json::array({7}));
  EXPECT_EQ(json["ranks"][1]["node"], "n\"2");
  EXPECT_DOUBLE_EQ(json["ranks"][1]["clock_error_s"], 0.00025);
  EXPECT_DOUBLE_EQ(json["ranks"][0]["wait_share"], 0.52);
}

TEST(ChromeTrace, FaultsAreNamed) {
  EXPECT_THAT(TraceFaults(TwoStageTrace(), 1), IsEmpty());
  EXPECT_THAT(TraceFaults(TwoStageTrace(), 3), ElementsAre(HasSubstr("1 of 3 steps")));
  TraceJobReply reply = TwoStageTrace();
  reply.mutable_traces(0)->set_dropped(7);
  reply.mutable_traces()->RemoveLast();
  EXPECT_THAT(TraceFaults(reply, 1),
              ElementsAre(HasSubstr("left out 7 spans"), HasSubstr("stage 1 on n\"2 told of no")));
}

}  // namespace
}  // namespace isthmus::cli
