// Jobs that go on by themselves and daemons that are drained, over loopback with fake daemons.
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

class ServiceRecoveryTest : public ServiceTest {
 protected:
  JobSpec Recovers(int64_t steps = 10) {
    JobSpec job = TwoStages(steps);
    job.mutable_recovery()->set_automatic(true);
    return job;
  }
  absl::StatusOr<DrainReply> Drain(const std::string& node, bool undo = false) {
    DrainRequest request;
    request.set_node(node);
    request.set_undo(undo);
    return Call<DrainRequest, DrainReply>(&Jobs::Stub::Drain, request);
  }
  void Steps(const Plan& plan, int steps, FakeDaemon* a, FakeDaemon* b) {
    for (int step = 0; step < steps; ++step) {
      for (FakeDaemon* d : {a, b}) d->Step(plan, step, 5);
    }
    EXPECT_TRUE(Eventually([&] { return Status().step() == steps; }));
  }
};

TEST_F(ServiceRecoveryTest, GoesOnOnWhoeverIsThereOnceItsDaemonsHaveEnded) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), Recovers());
  Steps(plan, 2, a.get(), b.get());
  b->Vanish();
  a->Event(plan, SessionEvent::FAILED, 2, "link b0: the other end is gone");
  EXPECT_TRUE(Eventually([&] {
    return Status().state() == JOB_PENDING &&
           absl::StrContains(Status().reason(), "its daemons end their sessions");
  }));
  EXPECT_THAT(Status().reason(), HasSubstr("or starts at step 0 by itself; waiting: "));
  a->SetGeneration(0);
  EXPECT_TRUE(
      Eventually([&] { return absl::StrContains(Status().reason(), "; waiting for daemons: "); }));
  auto c = Daemon("c");
  const Plan next = a->NextStart().value();
  EXPECT_GT(next.generation(), plan.generation());
  EXPECT_EQ(c->NextStart()->generation(), next.generation());
  EXPECT_EQ(Status().recoveries(), 1);
}

// It goes on from what lies on the disks, though a spare could begin at once from less.
TEST_F(ServiceRecoveryTest, AKilledDaemonThatComesBackCostsTheStepsSinceItsLocalCheckpoint) {
  auto a = Daemon("a"), b = Daemon("b");
  JobSpec job = Recovers();
  job.mutable_checkpoint()->set_local(1);
  const Plan plan = StartTwo(a.get(), b.get(), job);
  auto spare = Daemon("c");
  Steps(plan, 5, a.get(), b.get());
  const auto kept = [&](int stage, int64_t first) {
    KeptParts all;
    for (int64_t step = first; step < first + 2; ++step) {
      KeptPart& part = *all.add_parts();
      part.set_job_id(plan.job_id());
      part.set_step(step);
      part.set_generation(plan.generation());
      part.set_stage(stage);
      part.set_stages(2);
    }
    return all;
  };
  DaemonMessage beat;
  beat.mutable_heartbeat()->set_generation(plan.generation());
  *beat.mutable_heartbeat()->mutable_kept() = kept(0, 4);
  a->Send(beat);
  ListCheckpointsRequest list;
  list.set_job("bible");
  EXPECT_EQ((Call<ListCheckpointsRequest, ListCheckpointsReply>(&Jobs::Stub::Checkpoints, list))
                ->checkpoints_size(),
            0);
  b->Vanish();
  a->Event(plan, SessionEvent::FAILED, 5, "link b0: the other end is gone");
  a->SetGeneration(0);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Status().reason(), "; waiting: what the disks of b hold is not known");
  })) << Status().reason();
  b = Daemon("b", [&](FakeDaemon::Options* o) {
    o->instance = "again";
    o->kept = kept(1, 3);
  });
  for (FakeDaemon* d : {a.get(), b.get()}) EXPECT_EQ(d->NextPutKept()->step(), 4);
  EXPECT_TRUE(PutAll(plan, 4));
  const Plan next = a->NextStart().value();
  EXPECT_EQ(next.start_step(), 4);
  EXPECT_EQ(b->NextStart()->generation(), next.generation());
}

TEST_F(ServiceRecoveryTest, ACoordinatorThatRestartsMeanwhileGoesOn) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), Recovers());
  Steps(plan, 2, a.get(), b.get());
  b->Vanish();
  a->Event(plan, SessionEvent::FAILED, 2, "link b0: the other end is gone");
  EXPECT_TRUE(Becomes(JOB_PENDING));
  Close();
  a.reset();
  b.reset();
  Open();
  EXPECT_EQ(Status().state(), JOB_PENDING);
  a = Daemon("a", [](FakeDaemon::Options* o) { o->instance = "again"; });
  b = Daemon("b", [](FakeDaemon::Options* o) { o->instance = "again"; });
  EXPECT_GT(a->NextStart()->generation(), plan.generation());
}

TEST_F(ServiceRecoveryTest, ADrainedDaemonLeavesItsJobAndGetsNoOther) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), Recovers());
  Steps(plan, 2, a.get(), b.get());
  const DrainReply reply = Drain("b").value();
  EXPECT_EQ(reply.node(), "b");
  EXPECT_EQ(reply.job_id(), plan.job_id());
  for (FakeDaemon* d : {a.get(), b.get()}) {
    EXPECT_TRUE(d->NextStop()->graceful());
    d->Event(plan, SessionEvent::FINISHED, 3);
    d->SetGeneration(0);
  }
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Status().reason(), "b is drained (isthmus drain b --undo)");
  })) << Status().reason();
  Close();  // it is known after a restart, too
  a.reset();
  b.reset();
  Open();
  a = Daemon("a");
  b = Daemon("b");
  EXPECT_TRUE(Eventually([&] {
    const ListNodesReply nodes = Nodes();
    int drained = 0;
    for (const NodeStatus& node : nodes.nodes()) drained += node.alive() && node.drained();
    return nodes.nodes_size() == 2 && drained == 1;
  }));
  EXPECT_EQ(Status().state(), JOB_PENDING);
  EXPECT_TRUE(Drain("b", true).ok());
  EXPECT_GT(b->NextStart()->generation(), plan.generation());
  EXPECT_EQ(Drain("nobody").status().code(), absl::StatusCode::kNotFound);
}

class ServiceQueueTest : public ServiceRecoveryTest {
 protected:
  void SetUp() override {
    try_pending_ = absl::Hours(1);  // the submit itself has to look
    ServiceRecoveryTest::SetUp();
  }
};

// Daemons that had just become free went to whoever submitted in the moment before the next look.
TEST_F(ServiceQueueTest, ASubmitDoesNotPassAJobThatWaits) {
  auto a = Daemon("a"), b = Daemon("b");
  EXPECT_TRUE(Eventually([&] {
    int alive = 0;
    const ListNodesReply nodes = Nodes();
    for (const NodeStatus& node : nodes.nodes()) alive += node.alive();
    return alive == 2;
  }));
  EXPECT_EQ(Drain("b")->usable(), 1);
  ASSERT_TRUE(Submit(TwoStages(), /*resume=*/false, /*wait=*/true).ok());
  EXPECT_EQ(Status().state(), JOB_PENDING);
  EXPECT_EQ(Status().waits_for(), Status().reason());
  EXPECT_EQ(Drain("b", true)->usable(), 2);
  JobSpec second = TwoStages();
  second.set_name("second");
  EXPECT_FALSE(Submit(second).ok());
  EXPECT_EQ(Status().state(), JOB_STARTING);
}

}  // namespace
}  // namespace isthmus::coordinator
