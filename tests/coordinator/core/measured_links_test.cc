#include "coordinator/core/measured_links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class MeasuredLinksTest : public ::testing::Test {
 protected:
  absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  void Join(const std::string& id, double s = 0, bool moved = true, std::string host = "") {
    Register r;
    r.mutable_node()->set_id(id);
    r.mutable_node()->set_name(id);
    r.mutable_node()->set_address((host.empty() ? id : host) + ":" + id);
    r.set_instance(id);
    ASSERT_EQ(members_.Register(r, ++stream_, At(s), At(s)).kind, RegisterDecision::kAccepted);
    ASSERT_TRUE(members_.OnHeartbeat(id, stream_, Heartbeat(), At(s)).ok());
    table_.OnJoin(id, moved, At(s));
  }
  std::optional<ProbeTask> Next(double s, const std::set<std::string>& working = {}) {
    return table_.Next(members_, working, At(s));
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
  MeasuredLinks table_;
  uint64_t stream_ = 0;
};

TEST_F(MeasuredLinksTest, EveryPairOnceAndAHostInOneAtATime) {
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
  EXPECT_FALSE(Next(7 + 1800).has_value()) << "three would take more than their bytes of a day";
  EXPECT_TRUE(Next(7 + 3600).has_value()) << "old figures are measured again";
}

TEST_F(MeasuredLinksTest, PairsWithoutACommonHostAreMeasuredAtOnce) {
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

TEST_F(MeasuredLinksTest, DaemonsOfOneHostShareItsLine) {
  for (const char* id : {"a", "b", "c"}) Join(id, 0, true, "10.0.0.1");
  Join("d");
  ASSERT_TRUE(Next(0).has_value());
  EXPECT_FALSE(Next(0).has_value());
}

TEST_F(MeasuredLinksTest, HostsThatWorkAreLeftAloneAndOthersAreMeasured) {
  for (const char* id : {"a", "b", "c", "d"}) Join(id);
  Join("e", 0, true, "a");  // beside a
  std::set<std::string> measured;
  while (const auto task = Next(0, {"a", "b"})) {
    Answer(*task, 0);
    measured.insert({task->from_id, task->to_id});
  }
  EXPECT_EQ(measured, (std::set<std::string>{"c", "d"}));
  EXPECT_TRUE(Next(1).has_value());
}

TEST_F(MeasuredLinksTest, WhereOneCannotDialTheOtherMeasuresBothWays) {
  Join("a");
  Join("b");
  auto refuse = [&](const ProbeTask& task, double s) {
    ProbeResult result;
    LinkMeasurement* l = result.add_links();
    l->set_from_id(task.from_id);
    l->set_to_id(task.to_id);
    l->set_error("no connection");
    ASSERT_TRUE(table_.OnResult(task.from_id, result, At(s)).ok());
  };
  const auto first = Next(0);
  ASSERT_EQ(first->from_id, "a");
  refuse(*first, 1);
  auto second = Next(1);
  ASSERT_TRUE(second->from_id == "b" && second->both_ways) << "it is known already that a can't";
  ProbeResult both;
  *both.add_links() = Link("b", "a", 2e6);
  *both.add_links() = Link("a", "b", 1e6);
  ASSERT_TRUE(table_.OnResult("b", both, At(2)).ok());
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 0);
  const LinkMeasurement dialled = table_.Among({"a", "b"})[0];
  EXPECT_EQ(dialled.from_id(), "a");
  EXPECT_EQ(dialled.error(), "no connection") << "says that a can't dial ...";
  EXPECT_EQ(dialled.rate_bits_per_s(), 1e6) << "... though data flows";
  EXPECT_FALSE(Next(3).has_value());
  const auto again = Next(4000);
  ASSERT_TRUE(again.has_value());
  refuse({"a", "b"}, 4001);
  EXPECT_EQ(table_.Among({"a", "b"})[0].rate_bits_per_s(), 1e6);
}

TEST_F(MeasuredLinksTest, AfterTheOtherWayWasMeasuredFirstItIsAskedAgain) {
  Join("a");
  Join("b");
  table_
      .OnResult(
          "b",
          [&] {
            ProbeResult r;
            *r.add_links() = Link("b", "a", 2e6);
            return r;
          }(),
          At(0))
      .IgnoreError();
  const auto first = Next(0);
  ASSERT_EQ(first->from_id, "a");
  ProbeResult failed;
  failed.add_links()->set_from_id("a");
  failed.mutable_links(0)->set_to_id("b");
  failed.mutable_links(0)->set_error("no connection");
  ASSERT_TRUE(table_.OnResult("a", failed, At(1)).ok());
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 1) << "a submit waits for what b finds";
  const auto second = Next(1);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(second->from_id == "b" && second->both_ways);
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 1) << "it waits while b measures, too";
  Answer(*second, 2);  // an older daemon: one way only
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 0);
  EXPECT_FALSE(Next(3).has_value());
}

TEST_F(MeasuredLinksTest, ADoubtedLinkIsMeasuredBeforeTheNextPlan) {
  Join("a");
  Join("b");
  for (int i = 0; i < 2; ++i) Answer(*Next(i), i);
  table_.Doubt("b", "a");
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 2);
  for (int i = 2; i < 4; ++i) Answer(*Next(i), i);
  EXPECT_EQ(table_.Unmeasured({"a", "b"}), 0);
  EXPECT_FALSE(Next(4).has_value());
}

// Fifty idle daemons, each measurement of 16 MiB: by the second day each keeps to its bytes.
TEST_F(MeasuredLinksTest, MeasurementsAreBoundedInBytesADay) {
  constexpr int kDaemons = 50;
  constexpr int64_t kEach = 16 << 20;
  for (int i = 0; i < kDaemons; ++i) Join("d" + std::to_string(i));
  std::map<std::string, int64_t> day[3];
  for (int minute = 0; minute < 3 * 24 * 60; minute += 5) {
    for (auto task = Next(60 * minute); task.has_value(); task = Next(60 * minute)) {
      ProbeResult result;
      *result.add_links() = Link(task->from_id, task->to_id, 1e8);
      result.set_bytes(task->max_bytes > 0 ? std::min(kEach, 2 * task->max_bytes) : kEach);
      for (const std::string& id : {task->from_id, task->to_id})
        day[minute / (24 * 60)][id] += result.bytes();
      ASSERT_TRUE(table_.OnResult(task->from_id, result, At(60 * minute)).ok());
    }
  }
  const MeasuredLinksOptions options;
  for (int d = 0; d < 3; ++d) {
    for (const auto& [id, bytes] : day[d])
      EXPECT_LE(bytes, options.day_bytes + 2 * kDaemons * 2 * options.lean_bytes) << d << id;
  }
  EXPECT_EQ(day[0].size(), kDaemons) << "all were measured";
  std::vector<std::string> ids;
  for (const auto& [id, bytes] : day[0]) ids.push_back(id);
  EXPECT_EQ(table_.Unmeasured(ids), 0);
  EXPECT_GT(day[2].size(), 0u) << "and are measured again";
}

TEST_F(MeasuredLinksTest, ADaemonThatComesBackSoonIsNotMeasuredAgain) {
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

TEST_F(MeasuredLinksTest, NoAnswerIsAnAnswerAndIsRetriedLater) {
  Join("a");
  Join("b");
  const auto first = Next(0);
  EXPECT_FALSE(Next(17.9).has_value());
  const auto second = Next(18);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(second->from_id, first->from_id);
  EXPECT_THAT(table_.Among({"a", "b"})[0].error(),
              HasSubstr("no answer of the measuring daemon within 18 s"));
  Answer(*second, 19);
  EXPECT_FALSE(Next(77).has_value());
  EXPECT_TRUE(Next(78.1).has_value());
}

TEST_F(MeasuredLinksTest, ADaemonThatGoesReturnsTheToken) {
  for (const char* id : {"a", "b", "c"}) Join(id);
  const auto task = Next(0);
  members_.OnStreamGone(task->from_id, 1, At(1));
  table_.OnGone(task->from_id, At(1));
  const auto next = Next(1);
  ASSERT_TRUE(next.has_value());
  EXPECT_NE(next->from_id, task->from_id);
  EXPECT_NE(next->to_id, task->from_id);
}

TEST_F(MeasuredLinksTest, AResultMayHoldBothDirectionsButNothingForeign) {
  Join("a");
  Join("b");
  Next(0);
  ProbeResult both;
  *both.add_links() = Link("a", "b", 1e6);
  *both.add_links() = Link("b", "a", 2e6);
  ASSERT_TRUE(table_.OnResult("a", both, At(1)).ok());
  const auto other = Next(2);
  ASSERT_TRUE(other.has_value()) << "whether b can dial is b's to find out";
  Answer(*other, 2);
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

TEST_F(MeasuredLinksTest, RestoredLinksCountAndForgottenNodesDoNot) {
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

TEST_F(MeasuredLinksTest, ConnectionsAreKeptWithTheRateAndBounded) {
  for (const char* id : {"a", "b"}) Join(id);
  const auto task = Next(0);
  ProbeResult result;
  *result.add_links() = Link(task->from_id, task->to_id, 1e6);
  for (int bad : {-1, 9}) {
    result.mutable_links(0)->set_connections(bad);
    const absl::Status refused = table_.OnResult(task->from_id, result, At(1));
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("connections; at most 8"));
  }
  result.mutable_links(0)->set_connections(4);
  ASSERT_TRUE(table_.OnResult(task->from_id, result, At(1)).ok());
  EXPECT_EQ(table_.Among({"a", "b"}).at(0).connections(), 4);
}

}  // namespace
}  // namespace isthmus::coordinator
