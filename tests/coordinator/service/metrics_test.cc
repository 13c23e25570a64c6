// What the coordinator's page says in each state of a job and of a daemon.
#include "base/metrics.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/service/gauges.h"
#include "coordinator/service/queries.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    // The registry is the process's: what coordinators of other tests left.
    for (const char* name :
         {"isthmus_job_loss", "isthmus_job_validation_loss", "isthmus_job_tokens_per_second"})
      GaugeRemove(name, {{"job", "bible-1"}});
    for (const char* state : {"paused", "failed"})
      GaugeRemove("isthmus_job_held", {{"job", "bible-1"}, {"state", state}});
  }
  std::string Page() {
    coordinator_->gauges()->Update();
    return RenderMetrics();
  }
  // Sooner or later: a daemon is up with its first heartbeat.
  ::testing::AssertionResult Shows(const std::string& text) {
    return Eventually([&] { return absl::StrContains(Page(), text); }) << ": " << text;
  }
  std::string Of(const char* name, const std::string& job) {
    return absl::StrCat("isthmus_job_", name, "{job=\"", job, "\"} ");
  }
};

TEST_F(MetricsTest, AJobsGaugesAreThoseOfItsState) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const std::string job = plan.job_id();
  EXPECT_THAT(Page(), Not(HasSubstr(Of("loss", job)))) << "no step, no loss";
  EXPECT_THAT(Page(), HasSubstr(Of("step", job) + "0\n"));
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, 0, 5);
  EXPECT_TRUE(Eventually([&] { return Status().step() == 1; }));
  EXPECT_THAT(Page(), HasSubstr(Of("loss", job) + "5\n"));
  EXPECT_THAT(Page(), HasSubstr(Of("tokens_per_second", job)));
  EXPECT_THAT(Page(), Not(HasSubstr("isthmus_job_held")));
  a->Event(plan, SessionEvent::FAILED, 1, "out of luck");
  EXPECT_TRUE(Becomes(JOB_FAILED));
  EXPECT_THAT(Page(), Not(HasSubstr(Of("loss", job)))) << "it has ended";
  EXPECT_THAT(Page(), Not(HasSubstr(Of("tokens_per_second", job))));
  EXPECT_THAT(Page(), HasSubstr(Of("step", job) + "1\n"));
  EXPECT_THAT(Page(),
              HasSubstr(absl::StrCat("isthmus_job_held{job=\"", job, "\",state=\"failed\"} 1\n")));
}

// The pass after the last step of a phase, or of a job, is the last act of its session: the gauge
// of the daemon went before anybody saw it.
TEST_F(MetricsTest, AValidationIsSeenAfterItsSession) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const std::string job = plan.job_id();
  EXPECT_THAT(Page(), Not(HasSubstr(Of("validation_loss", job))));
  a->Step(plan, 0, 5);
  b->Step(plan, 0, 5, 0, 4.5);
  EXPECT_TRUE(Eventually([&] { return Status().step() == 1; }));
  EXPECT_THAT(Page(), HasSubstr(Of("validation_loss", job) + "4.5\n"));
  a->Event(plan, SessionEvent::FAILED, 1, "out of luck");
  EXPECT_TRUE(Becomes(JOB_FAILED));
  EXPECT_THAT(Page(), HasSubstr(Of("validation_loss", job) + "4.5\n"));
}

TEST_F(MetricsTest, ADeadDaemonStaysOnThePageAndLeavesTheTargets) {
  auto a = Daemon("a"), b = Daemon("b");
  EXPECT_TRUE(Shows("isthmus_node_up{node=\"a\"} 1\n"));
  EXPECT_TRUE(Shows("isthmus_node_up{node=\"b\"} 1\n"));
  EXPECT_THAT(Page(), HasSubstr("isthmus_lease_seconds 4\n"));
  a->Vanish();
  EXPECT_TRUE(Shows("isthmus_node_up{node=\"a\"} 0\n"));
  EXPECT_THAT(Page(), HasSubstr("isthmus_node_up{node=\"b\"} 1\n"));
  EXPECT_THAT(Page(), HasSubstr("isthmus_node_heartbeat_age_seconds{node=\"a\"} "));
  EXPECT_THAT(coordinator_->queries()->ServiceDiscovery("me:1"), Not(HasSubstr("a:7081")));
}

// IsthmusDaemonDown is for those that nobody ended.
TEST_F(MetricsTest, ADaemonThatWasToldToEndIsNotDown) {
  auto a = Daemon("a"), b = Daemon("b");
  for (const char* up : {"isthmus_node_up{node=\"a\"} 1\n", "isthmus_node_up{node=\"b\"} 1\n"})
    EXPECT_TRUE(Shows(up));
  DaemonMessage leaving;
  leaving.mutable_leaving()->set_reason("SIGTERM");
  a->Send(leaving);
  a.reset();
  EXPECT_TRUE(Shows("isthmus_nodes{state=\"left\"} 1\n"));
  EXPECT_THAT(Page(), Not(HasSubstr("isthmus_node_up{node=\"a\"}")));
  EXPECT_THAT(Page(), HasSubstr("isthmus_nodes{state=\"lost\"} 0\n"));
}

TEST_F(MetricsTest, TwoDaemonsOfOneNameAreTwoSeriesAndTwoTargets) {
  auto a = Daemon("a");
  auto twin = Daemon("b", [](FakeDaemon::Options* o) { o->node.set_name("a"); });
  EXPECT_TRUE(Shows("isthmus_node_up{node=\"a/id-a\"} 1\n"));
  EXPECT_TRUE(Shows("isthmus_node_up{node=\"a/id-b\"} 1\n"));
  std::set<std::string> labels;
  for (const auto& target :
       nlohmann::json::parse(coordinator_->queries()->ServiceDiscovery("me:1")))
    labels.insert(target["labels"]["node"].get<std::string>());
  EXPECT_EQ(labels, (std::set<std::string>{"a/id-a", "a/id-b", "coordinator"}));
  twin->Vanish();
  EXPECT_TRUE(Shows("isthmus_node_up{node=\"a\"} 1\n"));
  EXPECT_THAT(Page(), Not(HasSubstr("node=\"a/"))) << "gauges of labels that are gone";
}

}  // namespace
}  // namespace isthmus::coordinator
