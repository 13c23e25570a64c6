// A trace over the wire: clocks of two daemons, steps that both tell of, and what there is to say
// where something is missing.
#include "coordinator/service/traces.h"

#include <cstdlib>
#include <thread>

#include "gmock/gmock.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using testing::HasSubstr;

class TracesTest : public ServiceTest {
 protected:
  absl::StatusOr<TraceJobReply> Trace(int steps, const std::string& job = "bible") {
    TraceJobRequest request;
    request.set_job(job);
    request.set_steps(steps);
    return Call<TraceJobRequest, TraceJobReply>(&Jobs::Stub::Trace, request);
  }
};

TEST_F(TracesTest, StepsOfAllRanksOnOneClock) {
  constexpr int64_t kAhead = int64_t{3600} * 1'000'000'000;
  const auto a = Daemon("a", [](auto* o) { o->first_step = 5; });
  const auto b = Daemon("b", [](auto* o) {
    o->first_step = 6;
    o->clock_ahead_ns = kAhead;
  });
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const auto reply = Trace(2);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->traces_size(), 4);
  EXPECT_EQ(reply->traces(0).step(), 6) << "the first one that both told of";
  EXPECT_EQ(reply->traces(3).step(), 7);
  EXPECT_EQ(reply->plan().generation(), plan.generation());
  ASSERT_EQ(reply->clocks_size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const RankClock& clock = reply->clocks(rank);
    const int64_t truth = plan.ranks(rank).node_name() == "b" ? -kAhead : 0;
    EXPECT_TRUE(clock.known());
    EXPECT_LE(std::llabs(clock.offset_ns() - truth), clock.error_ns());
    EXPECT_LT(clock.error_ns(), int64_t{5} * 1'000'000'000);
  }
}

TEST_F(TracesTest, RefusesWhatCanNotBeTraced) {
  EXPECT_EQ(Trace(1, "nobody").status().code(), absl::StatusCode::kNotFound);
  const auto a = Daemon("a");
  const auto b = Daemon("b");
  StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_EQ(Trace(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Trace(kMaxTraceSteps + 1).status().code(), absl::StatusCode::kInvalidArgument);
}

// An older daemon: the trace of the others is of use.
TEST_F(TracesTest, ADaemonThatDoesNotAnswerIsMissing) {
  traces_.clocks = absl::Milliseconds(100);
  traces_.quiet = absl::Milliseconds(300);
  traces_.quiet_steps = 0;
  Close();
  Open();
  const auto a = Daemon("a");
  const auto b = Daemon("b", [](auto* o) { o->traces = false; });
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const auto reply = Trace(3);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->traces_size(), 3);
  for (const StepTrace& trace : reply->traces())
    EXPECT_EQ(plan.ranks(trace.rank()).node_name(), "a");
}

TEST_F(TracesTest, NobodyAnswers) {
  traces_.clocks = absl::Milliseconds(100);
  traces_.quiet = absl::Milliseconds(300);
  traces_.quiet_steps = 0;
  Close();
  Open();
  const auto a = Daemon("a", [](auto* o) { o->traces = false; });
  const auto b = Daemon("b", [](auto* o) { o->traces = false; });
  StartTwo(a.get(), b.get(), TwoStages());
  const auto reply = Trace(1);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("no daemon of job bible-1"));
}

TEST_F(TracesTest, TheJobEndsMeanwhileAndASecondTraceIsRefused) {
  const auto a = Daemon("a", [](auto* o) { o->traces = false; });
  const auto b = Daemon("b", [](auto* o) { o->traces = false; });
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  absl::StatusOr<TraceJobReply> first;
  std::thread waiting([&] { first = Trace(1); });
  ASSERT_TRUE(Eventually([&] { return a->clocks() > 0; })) << "it is under way";
  EXPECT_THAT(std::string(Trace(1).status().message()),
              HasSubstr("is being traced for somebody else"));
  for (FakeDaemon* d : {a.get(), b.get()}) d->Event(plan, SessionEvent::FINISHED, 10);
  waiting.join();
  EXPECT_EQ(first.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(first.status().message()),
              HasSubstr("ended before a step of it was traced"));
  const auto later = Trace(1);
  EXPECT_THAT(std::string(later.status().message()),
              HasSubstr("only the steps of a running job can be traced"));
}

}  // namespace
}  // namespace isthmus::coordinator
