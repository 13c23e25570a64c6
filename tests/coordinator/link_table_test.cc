#include "coordinator/link_table.h"

#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LinkTableTest : public ::testing::Test {
 protected:
  absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  void Join(const std::string& id, double s = 0, bool moved = true, std::string host = "") {
    Register r;
    r.mutable_node()->set_id(id);
    r.mutable_node()->set_name(id);
    r.mutable_node()->set_address((host.empty() ? id : host) + ":1");
    r.set_instance(id);
    ASSERT_EQ(members_.Register(r, ++stream_, At(s), At(s)).kind, RegisterDecision::kAccepted);
    ASSERT_TRUE(members_.OnHeartbeat(id, stream_, Heartbeat(), At(s)).ok());
    table_.OnJoin(id, moved, At(s));
  }
  std::optional<ProbeTask> Next(double s, bool job_runs = false) {
    return table_.Next(members_, job_runs, At(s));
  }
  void Answer(const ProbeTask& task, double s, double rate = 1e6) {
    ProbeResult result;
    *result.add_links() = Link(task.from_id, task.to_id, rate);
    ASSERT_TRUE(table_.OnResult(task.from_id, result, At(s)).ok());
  }
  LinkMeasurement Link(const std::string& from, const std::string& to, double rate) {
    LinkMeasurement l;
    l.set_from_id(from);
    l.set_to_id(to);
    l.set_rate_bits_per_s(rate);
    return l;
  }

  Membership members_;
  LinkTable table_;
  uint64_t stream_ = 0;
};

TEST_F(LinkTableTest, EveryPairOnceAndAHostInOneAtATime) {
  for (const char* id : {"a", "b", "c"}) Join(id);
  EXPECT_EQ(table_.Unmeasured({"a", "b", "c"}), 6);
  for (int i = 0; i < 6; ++i) {
    const auto task = Next(i);
    ASSERT_TRUE(task.has_value());
    EXPECT_FALSE(Next(i).has_value()) << "each pair has a host of it";
    Answer(*task, i);
  }
  EXPECT_FALSE(Next(7).has_value());
  EXPECT_EQ(table_.Unmeasured({"a", "b", "c"}), 0);
  EXPECT_THAT(table_.Among({"a", "b"}), SizeIs(2));
  EXPECT_THAT(table_.TakeChanged(), SizeIs(6));
  EXPECT_THAT(table_.TakeChanged(), SizeIs(0));
  EXPECT_TRUE(Next(7 + 1800).has_value()) << "old figures are measured again";
}

TEST_F(LinkTableTest, PairsWithoutACommonHostAreMeasuredAtOnce) {
  for (const char* id : {"a", "b", "c", "d"}) Join(id);
  int rounds = 0, pairs = 0;
  for (; rounds < 20; ++rounds) {
    std::vector<ProbeTask> tasks;
    std::set<std::string> hosts;
    while (const auto task = Next(rounds)) {
      EXPECT_TRUE(hosts.insert(task->from_id).second);
      EXPECT_TRUE(hosts.insert(task->to_id).second);
      tasks.push_back(*task);
    }
    if (tasks.empty()) break;
    for (const ProbeTask& task : tasks) Answer(task, rounds);
    pairs += static_cast<int>(tasks.size());
  }
  EXPECT_EQ(pairs, 12);
  EXPECT_LE(rounds, 8) << "12 one after the other";
}

TEST_F(LinkTableTest, DaemonsOfOneHostShareItsLine) {
  for (const char* id : {"a", "b", "c"}) Join(id, 0, true, "10.0.0.1");
  Join("d");
  ASSERT_TRUE(Next(0).has_value());
  EXPECT_FALSE(Next(0).has_value());
}

TEST_F(LinkTableTest, NeverWhileAJobRuns) {
  Join("a");
  Join("b");
  EXPECT_FALSE(Next(0, true).has_value());
  EXPECT_TRUE(Next(1).has_value());
}

TEST_F(LinkTableTest, ADaemonThatComesBackSoonIsNotMeasuredAgain) {
  Join("a");
  Join("b");
  for (int i = 0; i < 2; ++i) Answer(*Next(i), i);
  members_.OnStreamGone("b", 2, At(60));
  Join("b", 61, false);
  EXPECT_FALSE(Next(62).has_value());
  Join("b", 700, false);
  EXPECT_TRUE(Next(701).has_value());
  table_.OnGone("a", At(702));
  Join("b", 703, true);
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 2) << "it moved";
}

TEST_F(LinkTableTest, NoAnswerIsAnAnswerAndIsRetriedLater) {
  Join("a");
  Join("b");
  const auto first = Next(0);
  EXPECT_FALSE(Next(12.9).has_value());
  const auto second = Next(13);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(second->from_id, first->from_id);
  EXPECT_THAT(table_.Among({"a", "b"})[0].error(),
              HasSubstr("no answer of the measuring daemon within 13 s"));
  Answer(*second, 14);
  EXPECT_FALSE(Next(72).has_value());
  EXPECT_TRUE(Next(73.1).has_value());
}

TEST_F(LinkTableTest, ADaemonThatGoesReturnsTheToken) {
  for (const char* id : {"a", "b", "c"}) Join(id);
  const auto task = Next(0);
  members_.OnStreamGone(task->from_id, 1, At(1));
  table_.OnGone(task->from_id, At(1));
  const auto next = Next(1);
  ASSERT_TRUE(next.has_value());
  EXPECT_NE(next->from_id, task->from_id);
  EXPECT_NE(next->to_id, task->from_id);
}

TEST_F(LinkTableTest, AResultMayHoldBothDirectionsButNothingForeign) {
  Join("a");
  Join("b");
  Next(0);
  ProbeResult both;
  *both.add_links() = Link("a", "b", 1e6);
  *both.add_links() = Link("b", "a", 2e6);
  ASSERT_TRUE(table_.OnResult("a", both, At(1)).ok());
  EXPECT_FALSE(Next(2).has_value());
  ProbeResult foreign;
  *foreign.add_links() = Link("x", "y", 1e6);
  EXPECT_FALSE(table_.OnResult("a", foreign, At(3)).ok());
  ProbeResult broken;
  *broken.add_links() = Link("a", "b", std::nan(""));
  EXPECT_FALSE(table_.OnResult("a", broken, At(3)).ok());
  ProbeResult unasked;
  *unasked.add_links() = Link("a", "b", 9e9);
  EXPECT_TRUE(table_.OnResult("a", unasked, At(3)).ok());
  EXPECT_EQ(table_.Among({"a", "b"})[0].rate_bits_per_s(), 1e6);
}

TEST_F(LinkTableTest, RestoredLinksCountAndForgottenNodesDoNot) {
  table_.Restore(Link("a", "b", 5e6), At(0));
  Join("a", 1, false);
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 1) << "usable ...";
  Join("b", 1, false);
  Answer(*Next(2), 2);
  EXPECT_TRUE(Next(3).has_value()) << "... but measured anew";
  table_.Restore(Link("a", "z", 5e6), At(0));
  table_.Forget(members_);
  EXPECT_THAT(table_.Among({"a", "z"}), SizeIs(0));
}

}  // namespace
}  // namespace isthmus::coordinator
