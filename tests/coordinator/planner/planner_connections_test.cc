// What a link takes: several TCP connections as measured, within memory, and said in words; a
// window; and a queue that holds what its groups send.
#include <string>
#include <vector>

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan/link_bounds.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPlenty = int64_t{8} << 30;

PlannedJob PlanOf(int connections_up, int connections_down, int64_t memory_of_b = kPlenty) {
  PlannerInput in;
  in.job_id = "job";
  in.generation = 1;
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(2);
  *in.topology.add_nodes() = MakeNode("a", 10, kPlenty);
  *in.topology.add_nodes() = MakeNode("b", 10, memory_of_b);
  JoinAll(&in.topology, 300, 100);
  in.topology.mutable_links(0)->set_connections(connections_up);
  in.topology.mutable_links(1)->set_connections(connections_down);
  auto planned = MakePlan(in);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return *std::move(planned);
}

std::vector<std::string> Words(const Plan& plan) {
  return {plan.explanation().begin(), plan.explanation().end()};
}

// More parts than a boundary's queue has room for.
TEST(PlannerConnections, TheQueueOfATiedLinkHoldsAllParts) {
  PlannerInput in;
  in.job_id = "job";
  in.generation = 1;
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(2);
  in.job.mutable_model()->set_vocabulary(50257);
  in.job.mutable_model()->set_hidden(768);
  in.job.mutable_compression()->set_tied("none");
  for (const char* name : {"a", "b"}) *in.topology.add_nodes() = MakeNode(name, 10000);
  JoinAll(&in.topology, 10000, 0.2);
  const auto planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->plan.groups_size(), 14);
  ASSERT_EQ(planned->plan.links_size(), 2);
  EXPECT_GT(planned->plan.links(1).queue_limit(), 14);
  EXPECT_EQ(planned->plan.links(0).queue_limit(), in.job.strategy().queue_limit());
  EXPECT_EQ(planned->plan.links(0).window_bytes(), 5000000) << "of 2 ms, though 0.2 were measured";
}

TEST(PlannerConnections, TheDirectionThatTakesMoreDecides) {
  const Plan one = PlanOf(0, 1).plan;
  EXPECT_EQ(one.links(0).connections(), 0);
  EXPECT_THAT(Words(one), Not(Contains(HasSubstr("TCP connections"))));
  for (const Plan& plan : {PlanOf(4, 0).plan, PlanOf(2, 4).plan}) {
    for (const LinkPlan& link : plan.links()) EXPECT_EQ(link.connections(), 4);
    EXPECT_THAT(Words(plan),
                Contains(HasSubstr("link b0: 4 TCP connections side by side were "
                                   "measured to carry more than fewer; it is counted on for ")));
  }
}

TEST(PlannerConnections, MemoryCountsTheirWindows) {
  const Plan one = PlanOf(0, 0).plan;
  const Plan four = PlanOf(4, 4).plan;
  int64_t more[2] = {0, 0};
  for (const LinkPlan& link : four.links()) {
    LinkPlan alone = link;
    alone.clear_connections();
    more[0] += MostBytesHeld(link, true) - MostBytesHeld(alone, true);
    more[1] += MostBytesHeld(link, false) - MostBytesHeld(alone, false);
  }
  EXPECT_GT(more[1], 3 * kServingWindowBytes);
  for (int rank : {0, 1})
    EXPECT_EQ(four.ranks(rank).memory_bytes() - one.ranks(rank).memory_bytes(), more[rank]);
}

TEST(PlannerConnections, FewerWhereAnEndHasNoMemoryAndWhich) {
  const int64_t needed = PlanOf(0, 0).plan.ranks(1).memory_bytes();
  const Plan plan = PlanOf(8, 8, needed + (int64_t{110} << 20)).plan;
  EXPECT_EQ(plan.links(0).connections(), 4);
  EXPECT_EQ(plan.links(1).connections(), 0);
  EXPECT_THAT(Words(plan), Contains(HasSubstr("It has 4: the memory of b has no room for more")));
}

}  // namespace
}  // namespace isthmus::coordinator
