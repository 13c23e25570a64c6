#include "coordinator/planner/compute_table.h"

#include <limits>

#include "coordinator/planner/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Optional;

class ComputeTableTest : public ::testing::Test {
 protected:
  absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  void Join(const std::string& name, double s, double gflops, const std::string& host = "h",
            bool restarted = true) {
    NodeInfo node = MakeNode(name, gflops);
    node.set_address(host + ":" + name);
    Register r;
    *r.mutable_node() = node;
    r.set_instance(name);
    ASSERT_EQ(members_.Register(r, ++stream_, At(s), At(s)).kind, RegisterDecision::kAccepted);
    ASSERT_TRUE(members_.OnHeartbeat(node.id(), stream_, Heartbeat(), At(s)).ok());
    table_.OnJoin(node, restarted, At(s));
  }
  std::optional<std::string> Next(double s, const std::set<std::string>& busy = {}) {
    return table_.Next(members_, busy, At(s));
  }
  void Answer(const std::string& name, double s, double gflops) {
    ASSERT_TRUE(table_.OnResult("id-" + name, Times(gflops), At(s)).ok());
  }
  static ComputeTimes Times(double gflops) {
    ComputeTimes t;
    t.set_block_flops(1e9);
    t.set_block_forward_s(1 / gflops);
    t.set_block_backward_s(2 / gflops);
    return t;
  }
  double Gflops(const std::string& name) {
    return 1 / table_.Figure("id-" + name)->block_forward_s();
  }
  double CorrectedGflops(const std::string& name, const std::string& host = "h") {
    NodeInfo node = MakeNode(name, Gflops(name));
    node.set_address(host + ":" + name);
    return 1 / table_.Corrected(node).block_forward_s();
  }
  // A plan with one stage on this daemon; steps of it take `times` of what its figure says.
  Plan PlanOn(const std::string& name) {
    Plan plan;
    plan.set_generation(7);
    *plan.mutable_job() = MakeJob();
    RankPlan* stage = plan.add_ranks();
    stage->set_node_id("id-" + name);
    stage->set_end_layer(6);
    return plan;
  }
  void Steps(const std::string& name, double times, int count, int first = 1) {
    const Plan plan = PlanOn(name);
    const NodeInfo node = MakeNode(name, Gflops(name));
    for (int i = first; i < first + count; ++i) {
      StepRecord r;
      r.set_generation(7);
      r.set_step(i);
      r.set_committed(true);
      r.set_compute_s(times * PredictedComputeSeconds(plan, plan.ranks(0), node) +
                      kOptimizerSecondsPerParameter * 4.84e6);
      table_.OnStep(node, plan, r);
    }
  }

  Membership members_;
  ComputeTable table_;
  uint64_t stream_ = 0;
};

// Three daemons that started together measured 4.5 to 6.6 GFLOP/s, one alone 51.
TEST_F(ComputeTableTest, DaemonsThatStartTogetherAreMeasuredAgainOneAtATime) {
  Join("a", 0, 4.5);
  Join("b", 0.1, 5);
  Join("c", 0.2, 6.6);
  EXPECT_EQ(Gflops("a"), 4.5) << "better than nothing";
  EXPECT_FALSE(Next(0.3).has_value()) << "the host has not settled";
  EXPECT_TRUE(table_.HoldsLinks(members_, {}, At(0.3)));
  double s = 1;
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_THAT(Next(s), Optional(std::string("id-") + name));
    EXPECT_FALSE(Next(s + 0.1).has_value()) << "one at a time";
    Answer(name, s += 0.5, 51);
  }
  EXPECT_FALSE(Next(s).has_value());
  EXPECT_FALSE(table_.HoldsLinks(members_, {}, At(s)));
  for (const char* name : {"a", "b", "c"}) EXPECT_NEAR(Gflops(name), 51, 1e-9);
}

TEST_F(ComputeTableTest, OfTheLastMeasurementsTheFastestCounts) {
  Join("a", 0, 100);
  Answer(Next(1)->substr(3), 2, 40);
  EXPECT_NEAR(Gflops("a"), 40, 1e-9) << "measured while idle, it counts before that of the start";
  EXPECT_FALSE(Next(30).has_value());
  Answer(Next(70)->substr(3), 71, 50);
  Answer(Next(140)->substr(3), 141, 30);
  EXPECT_NEAR(Gflops("a"), 50, 1e-9) << "other work only slows";
  EXPECT_FALSE(Next(141 + 29 * 60).has_value());
  for (double s : {3000.0, 6000.0, 9000.0}) Answer(Next(s)->substr(3), s + 1, 30);
  EXPECT_NEAR(Gflops("a"), 30, 1e-9) << "the host has become slower";
}

TEST_F(ComputeTableTest, ARestartBesideOthersDoesNotLoseTheFigure) {
  Join("a", 0, 50);
  Answer(Next(1)->substr(3), 2, 50);
  Join("a", 10, 4);
  EXPECT_NEAR(Gflops("a"), 50, 1e-9);
  EXPECT_THAT(Next(11), Optional(std::string("id-a"))) << "measured again all the same";
  NodeInfo other = MakeNode("a", 4);
  other.set_threads(8);
  table_.OnJoin(other, true, At(20));
  EXPECT_NEAR(Gflops("a"), 4, 1e-9) << "other threads, another machine";
}

TEST_F(ComputeTableTest, NotWhileTheHostHasWork) {
  Join("a", 0, 10);
  Join("b", 0, 10);
  Join("far", 0, 10, "other");
  EXPECT_THAT(Next(5, {"id-b"}), Optional(std::string("id-far"))) << "a shares b's host";
  Answer("far", 6, 10);
  EXPECT_FALSE(Next(7, {"id-b"}).has_value());
  EXPECT_FALSE(Next(7.1).has_value()) << "it ended just now";
  EXPECT_THAT(Next(8), Optional(std::string("id-a")));
  EXPECT_TRUE(table_.OnResult("id-a", ComputeTimes(), At(8)).ok()) << "a session has begun there";
  EXPECT_FALSE(Next(8.1).has_value());
  EXPECT_TRUE(Next(9).has_value()) << "asked again";
  EXPECT_EQ(Gflops("a"), 10);
}

TEST_F(ComputeTableTest, ADaemonThatDoesNotAnswerHoldsNobodyUp) {
  Join("a", 0, 10);
  Join("b", 0, 10);
  EXPECT_THAT(Next(1), Optional(std::string("id-a")));
  EXPECT_FALSE(Next(10).has_value());
  EXPECT_FALSE(table_.HoldsLinks(members_, {}, At(10.5))) << "not for ever";
  EXPECT_THAT(Next(11.5), Optional(std::string("id-b")));
  table_.OnGone("id-b");
  EXPECT_THAT(Next(12), Optional(std::string("id-b")));
  EXPECT_TRUE(table_.OnResult("id-a", Times(50), At(12)).ok());
  EXPECT_EQ(Gflops("a"), 10) << "a late answer may have shared the host";
}

TEST_F(ComputeTableTest, FiguresThatAreNoneAreRefused) {
  Join("a", 0, 10);
  for (double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ASSERT_TRUE(Next(1).has_value());
    ComputeTimes times = Times(10);
    times.set_block_backward_s(bad);
    EXPECT_EQ(table_.OnResult("id-a", times, At(1)).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Gflops("a"), 10);
    table_.OnJoin(MakeNode("a", 10), true, At(0));
  }
}

TEST_F(ComputeTableTest, StepsCorrectTheFigure) {
  Join("a", 0, 40);
  EXPECT_NEAR(CorrectedGflops("a"), 40, 1e-9);
  Steps("a", 2, 1, 0);
  EXPECT_NEAR(CorrectedGflops("a"), 40, 1e-9) << "the first step of a plan says nothing";
  Steps("a", 2, kStepsForComputeFactor - 1);
  EXPECT_NEAR(CorrectedGflops("a"), 40, 1e-9) << "nor do two";
  Steps("a", 2, 1);
  EXPECT_NEAR(CorrectedGflops("a"), 20, 0.1);
  EXPECT_EQ(Gflops("a"), 40) << "what is shown as measured stays";
  Steps("a", 1, 100);
  EXPECT_NEAR(CorrectedGflops("a"), 40, 0.5) << "what was long ago is forgotten";
  Steps("a", 1e6, 500);
  EXPECT_NEAR(CorrectedGflops("a"), 40 / kMostComputeFactor, 1e-6);
  Steps("a", 1e-6, 500);
  EXPECT_NEAR(CorrectedGflops("a"), 40 / kLeastComputeFactor, 1e-6);
}

// The planner halves the speed of a card for two ranks: what steps say must not halve it again.
TEST_F(ComputeTableTest, RanksOfOneCardAreHeldAgainstTheirPartOfIt) {
  Plan plan = PlanOn("a");
  *plan.add_ranks() = plan.ranks(0);
  plan.mutable_ranks(1)->set_node_id("id-b");
  NodeInfo node = MakeNode("a", 40), other = MakeNode("b", 40);
  for (NodeInfo* each : {&node, &other}) {
    each->set_device("cuda:0 GPU-1");
    table_.OnJoin(*each, true, At(0));
  }
  StepRecord r;
  r.set_generation(7);
  r.set_committed(true);
  r.set_compute_s(2 * PredictedComputeSeconds(plan, plan.ranks(0), node) +
                  kOptimizerSecondsPerParameter * 4.84e6);
  for (int step = 1; step <= kStepsForComputeFactor; ++step) {
    r.set_step(step);
    table_.OnStep(node, plan, r);
  }
  EXPECT_NEAR(table_.Factor(node), 1, 0.01);
  other.set_device("cuda:1 GPU-2");
  table_.OnJoin(other, true, At(1));
  for (int step = 1; step <= 50; ++step) table_.OnStep(node, plan, r);
  EXPECT_NEAR(table_.Factor(node), 2, 0.05) << "with a card of its own it is slow";
}

TEST_F(ComputeTableTest, ANewMeasurementDoesNotMoveWhatStepsSay) {
  Join("a", 0, 10);
  Steps("a", 1.5, 20);
  const double real = CorrectedGflops("a");
  ASSERT_TRUE(Next(1).has_value());
  Answer("a", 2, 25);
  EXPECT_NEAR(CorrectedGflops("a"), real, 1e-9);
  ASSERT_TRUE(Next(100).has_value());
  Answer("a", 101, 1000);
  EXPECT_NEAR(CorrectedGflops("a"), 1000 / kMostComputeFactor, 1e-6) << "within bounds";
}

// A daemon that never ran a job must not look faster for it.
TEST_F(ComputeTableTest, DaemonsWithoutStepsHaveTheFactorOfOthers) {
  Join("a", 0, 40);
  Join("b", 0, 40);
  Join("far", 0, 40, "other");
  Join("there", 0, 40, "other");
  Steps("a", 2, 20);
  EXPECT_NEAR(CorrectedGflops("b"), 20, 0.1) << "of its host";
  EXPECT_NEAR(CorrectedGflops("far", "other"), 20, 0.1) << "of all";
  Steps("far", 1.25, 20);
  EXPECT_NEAR(CorrectedGflops("there", "other"), 32, 0.1);
}

TEST_F(ComputeTableTest, RestoredFiguresCountAndForgottenDaemonsDoNot) {
  NodeInfo node = MakeNode("a", 50);
  node.set_address("h:1");
  table_.Restore(node);
  Join("a", 0, 5);
  EXPECT_NEAR(Gflops("a"), 50, 1e-9);
  table_.Restore(MakeNode("gone", 50));
  EXPECT_TRUE(table_.Figure("id-gone").has_value());
  table_.Forget(members_);
  EXPECT_FALSE(table_.Figure("id-gone").has_value());
  EXPECT_TRUE(table_.Figure("id-a").has_value());
}

}  // namespace
}  // namespace isthmus::coordinator
