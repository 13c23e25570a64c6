#include "coordinator/core/kept_table.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

KeptPart Part(int64_t step, int stage, uint64_t generation = 7, int stages = 2) {
  KeptPart part;
  part.set_job_id("bible-1");
  part.set_step(step);
  part.set_generation(generation);
  part.set_stage(stage);
  part.set_stages(stages);
  return part;
}

KeptParts Parts(const std::vector<KeptPart>& parts) {
  KeptParts all;
  for (const KeptPart& part : parts) *all.add_parts() = part;
  return all;
}

class KeptTableTest : public ::testing::Test {
 protected:
  KeptTableTest() {
    plan_.set_job_id("bible-1");
    plan_.set_generation(7);
    plan_.add_ranks()->set_node_id("a");
    plan_.add_ranks()->set_node_id("b");
    plan_.mutable_ranks(1)->set_stage(1);
  }
  Plan plan_;
  KeptTable kept_;
};

// Of several replicas the first keeps the parts; what the others do is of no concern.
TEST_F(KeptTableTest, OneReplicaKeepsTheParts) {
  for (int s : {0, 1}) {
    RankPlan* rank = plan_.add_ranks();
    rank->set_stage(s);
    rank->set_replica(1);
    rank->set_node_id(s == 0 ? "c" : "d");
    plan_.add_replicas()->set_samples(4);
  }
  kept_.Told("a", Parts({Part(10, 0)}));
  EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty());
  kept_.Told("b", Parts({Part(10, 1)}));
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10));
  // With local steps each has moments of its own.
  plan_.mutable_job()->mutable_strategy()->set_local_steps(5);
  EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty());
  KeptPart c = Part(10, 0), d = Part(10, 1);
  c.set_replica(1);
  d.set_replica(1);
  kept_.Told("c", Parts({c}));
  kept_.Told("d", Parts({d}));
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10));
}

TEST_F(KeptTableTest, WholeIsWhatEachDaemonOfThePlanKeepsOfItsStage) {
  EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty());
  kept_.Told("a", Parts({Part(10, 0), Part(20, 0)}));
  EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty());
  kept_.Told("b", Parts({Part(10, 1)}));
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10));
  EXPECT_THAT(kept_.Whole(plan_, 10), IsEmpty()) << "the coordinator has that";
  kept_.Told("b", Parts({Part(10, 1), Part(20, 1)}));
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10, 20));
  EXPECT_THAT(kept_.Whole(plan_, 10), ElementsAre(20));
  EXPECT_TRUE(kept_.KeepsLater(plan_, 0, 10));
  EXPECT_FALSE(kept_.KeepsLater(plan_, 0, 20));
  kept_.Told("a", Parts({}));
  EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty()) << "what was told before counts no longer";
}

TEST_F(KeptTableTest, PartsOfAnotherCutOrRunAreNone) {
  kept_.Told("a", Parts({Part(10, 0)}));
  for (const KeptPart& other : {Part(10, 0), Part(10, 1, 6), Part(10, 1, 7, 3), Part(11, 1)}) {
    kept_.Told("b", Parts({other, other}));
    EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty()) << other.ShortDebugString();
  }
}

TEST_F(KeptTableTest, ABuddysCopyCountsAsThePart) {
  kept_.Told("a", Parts({Part(10, 0), Part(10, 1)}));
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10));
  EXPECT_THAT(kept_.Holders(plan_, 1, 10), ElementsAre("a"));
  EXPECT_FALSE(kept_.KeepsLater(plan_, 1, 0)) << "b itself has told of none";
  kept_.Told("b", Parts({Part(10, 1), Part(11, 1)}));
  kept_.Told("c", Parts({Part(11, 0)}));
  EXPECT_THAT(kept_.Holders(plan_, 1, 10), ElementsAre("b", "a")) << "its own daemon first";
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10, 11));
  Membership members;  // that were listed, and are away
  for (const char* id : {"b", "c"}) {
    NodeInfo node;
    node.set_id(id);
    node.set_name(id);
    node.set_address(absl::StrCat(id, ":1"));
    members.Restore(node, false, absl::UnixEpoch());
  }
  isthmus::Register r;
  r.mutable_node()->set_id("a");
  r.mutable_node()->set_name("a");
  r.mutable_node()->set_address("a:1");
  r.set_instance("1");
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(1);
  ASSERT_EQ(members.Register(r, 1, now, now).kind, RegisterDecision::kAccepted);
  ASSERT_TRUE(members.OnHeartbeat("a", 1, Heartbeat(), now).ok());
  kept_.Forget(members);
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10, 11));
  EXPECT_THAT(kept_.Whole(plan_, 0, /*reachable=*/true), ElementsAre(10));
  EXPECT_THAT(kept_.Holders(plan_, 1, 10), ElementsAre("a", "b")) << "who can be asked first";
  kept_.Told("b", Parts({Part(10, 1), Part(11, 1)}));  // it is back
  EXPECT_THAT(kept_.Holders(plan_, 1, 10), ElementsAre("b", "a"));
}

TEST_F(KeptTableTest, UselessPartsAreNamedOnceForEachTimeTheyAreTold) {
  KeptPart other = Part(10, 0);
  other.set_job_id("other-2");
  kept_.Told("a", Parts({Part(10, 0), Part(20, 0), other}));
  kept_.Told("b", Parts({Part(10, 1)}));
  EXPECT_THAT(kept_.TakeUseless({"elsewhere-3"}), IsEmpty());
  EXPECT_THAT(kept_.TakeUseless({"bible-1"}),
              UnorderedElementsAre(std::pair("a", "bible-1"), std::pair("b", "bible-1")));
  EXPECT_THAT(kept_.TakeUseless({"bible-1"}), IsEmpty());
  kept_.Told("b", Parts({Part(10, 1)}));
  EXPECT_THAT(kept_.TakeUseless({"bible-1"}), UnorderedElementsAre(std::pair("b", "bible-1")));
  EXPECT_THAT(kept_.TakeUseless({"other-2"}), UnorderedElementsAre(std::pair("a", "other-2")));
}

TEST_F(KeptTableTest, DaemonsThatAreNoLongerListedAreForgotten) {
  kept_.Told("a", Parts({Part(10, 0)}));
  kept_.Told("b", Parts({Part(10, 1)}));
  Membership members;
  for (const char* id : {"a", "b"}) {
    NodeInfo node;
    node.set_id(id);
    node.set_name(id);
    node.set_address(absl::StrCat(id, ":1"));
    members.Restore(node, false, absl::UnixEpoch());
  }
  kept_.Forget(members);
  EXPECT_THAT(kept_.Whole(plan_, 0), ElementsAre(10)) << "they are away, and may come back";
  kept_.Forget(Membership());
  EXPECT_THAT(kept_.Whole(plan_, 0), IsEmpty());
}

TEST_F(KeptTableTest, ADaemonThatNamesManyIsHeardInPart) {
  KeptParts all;
  for (int64_t step = 1; step <= KeptTable::kMaxParts + 1; ++step) *all.add_parts() = Part(step, 0);
  kept_.Told("a", all);
  plan_.mutable_ranks()->RemoveLast();
  for (KeptPart& part : *all.mutable_parts()) part.set_stages(1);
  kept_.Told("a", all);
  EXPECT_THAT(kept_.Whole(plan_, 0), SizeIs(KeptTable::kMaxParts));
}

}  // namespace
}  // namespace isthmus::coordinator
