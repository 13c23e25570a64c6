// What `isthmus trace` is told by sessions: every pass, wait and frame of the steps it asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::map<TraceSpan::Kind, int> Counts(const StepTrace& trace) {
  std::map<TraceSpan::Kind, int> counts;
  for (const TraceSpan& span : trace.spans()) ++counts[span.kind()];
  return counts;
}

using Frame = std::tuple<int, int, int, int>;  // link, kind, micro, group
std::multiset<Frame> Frames(const StepTrace& trace, TraceSpan::Kind kind) {
  std::multiset<Frame> frames;
  for (const TraceSpan& s : trace.spans()) {
    if (s.kind() == kind) frames.insert({s.link(), s.frame(), s.micro(), s.group()});
  }
  return frames;
}

void RunTraced(World* world, int steps) {
  for (int rank = 0; rank < world->plan().ranks_size(); ++rank)
    world->session(rank).RequestTrace(steps);
  for (const absl::Status& status : world->Run()) ASSERT_TRUE(status.ok()) << status;
}

TEST(SessionTrace, TellsEveryPassAndFrame) {
  WorldShape shape;  // 7 samples in micro-batches of 2: 4 of them
  shape.forward = shape.backward = "bf16";
  shape.eval_every = 2;
  shape.checkpoint_every = 3;
  World world(MakePlan(shape));
  RunTraced(&world, 2);
  for (const int rank : {0, 1}) {
    const std::vector<StepTrace> traces = world.observer(rank).traces();
    ASSERT_THAT(traces, SizeIs(2));
    EXPECT_EQ(traces[0].step(), 1);
    EXPECT_EQ(traces[1].step(), 2);
    const auto with_eval = Counts(traces[0]), with_checkpoint = Counts(traces[1]);
    EXPECT_EQ(with_eval.at(TraceSpan::FORWARD), 4 + 3) << "5 validation samples";
    EXPECT_EQ(with_eval.at(TraceSpan::EVALUATE), 1);
    EXPECT_EQ(with_checkpoint.count(TraceSpan::EVALUATE), 0);
    EXPECT_EQ(with_checkpoint.at(TraceSpan::CHECKPOINT), 1);
    EXPECT_EQ(with_checkpoint.at(TraceSpan::FORWARD), 4);
    EXPECT_EQ(with_checkpoint.at(TraceSpan::BACKWARD), 4);
    EXPECT_EQ(with_checkpoint.at(TraceSpan::OPTIMISER), 1);
    EXPECT_GE(with_checkpoint.at(TraceSpan::WAIT), 4) << "for the other stage's frames";
    EXPECT_EQ(with_checkpoint.at(TraceSpan::ENCODE), 4);
    EXPECT_EQ(with_checkpoint.at(TraceSpan::DECODE), 4 + 1) << "and the tied embedding's part";
  }
  const StepTrace lower = world.observer(0).traces()[1], upper = world.observer(1).traces()[1];
  EXPECT_THAT(Frames(lower, TraceSpan::SEND), SizeIs(testing::Ge(5))) << "and votes";
  EXPECT_EQ(Frames(lower, TraceSpan::SEND), Frames(upper, TraceSpan::RECEIVE));
  EXPECT_EQ(Frames(upper, TraceSpan::SEND), Frames(lower, TraceSpan::RECEIVE));
  for (const TraceSpan& s : lower.spans()) {
    if (s.kind() == TraceSpan::SEND) {
      EXPECT_GT(s.bytes(), 0);
    }
  }
}

TEST(SessionTrace, NothingIsToldUnasked) {
  World world(MakePlan(WorldShape()));
  for (const absl::Status& status : world.Run()) ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(world.observer(0).traces(), IsEmpty());
}

TEST(SessionTrace, ReductionsOfReplicas) {
  WorldShape shape;
  shape.stages = 1;
  shape.replicas = {4, 3};
  World world(MakePlan(shape));
  RunTraced(&world, 1);
  for (const int rank : {0, 1}) {
    const StepTrace trace = world.observer(rank).traces().at(0);
    const auto counts = Counts(trace);
    EXPECT_GE(counts.at(TraceSpan::REDUCE), 3) << "offer, reduce, collect";
    std::set<int> groups;
    for (const TraceSpan& s : trace.spans()) {
      if (s.kind() == TraceSpan::SEND && s.frame() == FrameHeader::CONTRIBUTION)
        groups.insert(s.group());
    }
    EXPECT_THAT(groups, testing::ElementsAre(0));
  }
}

// The compute thread does one thing at a time; what lies in another span lies in it whole.
TEST(SessionTrace, SpansOfTheComputeThreadNest) {
  WorldShape shape;
  shape.stages = 3;
  shape.eval_every = 1;
  World world(MakePlan(shape));
  RunTraced(&world, 3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const StepTrace& trace : world.observer(rank).traces()) {
      std::vector<std::pair<int64_t, int64_t>> spans;
      for (const TraceSpan& s : trace.spans()) {
        const bool io = s.kind() >= TraceSpan::ENCODE && s.kind() <= TraceSpan::DECODE;
        const auto begin = static_cast<int64_t>(s.begin_ns());
        if (!io) spans.emplace_back(begin, begin + s.duration_ns());
      }
      for (const auto& [a, b] : spans) {
        for (const auto& [c, d] : spans)
          EXPECT_FALSE(a < c && c < b && b < d) << a << ".." << b << " and " << c << ".." << d;
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::worker
