#include "coordinator/planner/what_if.h"

#include <algorithm>

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using testing::Contains;
using testing::Field;
using testing::IsEmpty;

PlannerInput Input(double mbit, double gflops, int stages) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(stages);
  in.job.mutable_compression()->set_forward("none");
  in.job.mutable_compression()->set_backward("none");
  for (const char* name : {"lab", "home"}) *in.topology.add_nodes() = MakeNode(name, gflops);
  JoinAll(&in.topology, mbit, 20);
  return in;
}

double StepOf(const PlannerInput& in) { return MakePlan(in).value().plan.predicted_step_s(); }

TEST(WhatIf, ASlowLinkIsCritical) {
  const PlannerInput in = Input(5, 100, 2);
  const std::vector<WhatIf> found = WhatIfs(in, MakePlan(in).value().plan);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].change, "home - lab at 10.0 Mbit/s");
  EXPECT_DOUBLE_EQ(found[0].step_s, StepOf(Input(10, 100, 2)));
  EXPECT_LT(found[0].step_s, 0.6 * StepOf(in));
}

TEST(WhatIf, SlowComputeIsCritical) {
  const PlannerInput in = Input(1000, 1, 2);
  const std::vector<WhatIf> found = WhatIfs(in, MakePlan(in).value().plan);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found, Contains(Field(&WhatIf::change, "home twice as fast")));
  EXPECT_THAT(found, Contains(Field(&WhatIf::change, "lab twice as fast")));
  const auto link = std::find_if(found.begin(), found.end(), [](const WhatIf& what) {
    return what.change == "home - lab at 2.00 Gbit/s";
  });
  ASSERT_NE(link, found.end());
  EXPECT_GT(link->step_s, found[0].step_s);
}

TEST(WhatIf, TheLargestGainIsFirst) {
  PlannerInput in = Input(50, 20, 3);
  *in.topology.add_nodes() = MakeNode("cloud", 60);
  Join(&in.topology, "cloud", "lab", 20, 40);
  Join(&in.topology, "cloud", "home", 20, 40);
  const std::vector<WhatIf> found = WhatIfs(in, MakePlan(in).value().plan);
  ASSERT_GE(found.size(), 6u);
  EXPECT_TRUE(std::is_sorted(found.begin(), found.end(),
                             [](const WhatIf& a, const WhatIf& b) { return a.step_s < b.step_s; }));
}

TEST(WhatIf, OneDaemonMoreIsJoinedLikeTheFastest) {
  PlannerInput in = Input(1000, 1, 0);
  const std::vector<WhatIf> found = WhatIfs(in, MakePlan(in).value().plan);
  for (const WhatIf& what : found) {
    if (what.change != "one daemon more like lab" && what.change != "one daemon more like home")
      continue;
    // With free links and slow compute a third daemon takes its third of the six layers.
    EXPECT_LT(what.step_s, 0.8 * StepOf(in)) << what.change;
    return;
  }
  FAIL() << "no daemon more was planned";
}

TEST(WhatIf, OneDaemonMoreHasACardOfItsOwn) {
  PlannerInput in = Input(1000, 1, 0);
  in.topology.mutable_nodes(0)->set_device("cuda:0 GPU-1");
  in.topology.mutable_nodes(0)->set_device_memory_bytes(int64_t{80} << 30);
  const std::vector<WhatIf> found = WhatIfs(in, MakePlan(in).value().plan);
  EXPECT_THAT(found,
              Contains(testing::AllOf(Field(&WhatIf::change, "one daemon more like lab"),
                                      Field(&WhatIf::step_s, testing::Lt(0.8 * StepOf(in))))));
}

TEST(WhatIf, WhatCanNotBePlannedIsLeftOut) {
  PlannerInput in = Input(50, 20, 2);
  const Plan plan = MakePlan(in).value().plan;
  in.job.mutable_data()->set_path("other.txt");  // nobody has it
  EXPECT_THAT(WhatIfs(in, plan), IsEmpty());
}

}  // namespace
}  // namespace isthmus::coordinator
