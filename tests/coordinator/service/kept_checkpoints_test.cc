// Checkpoints that daemons keep and the coordinator has not got whole, over loopback.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class KeptCheckpointsTest : public ServiceTest {
 protected:
  static KeptParts Kept(const Plan& plan, int64_t step, int stage) {
    KeptParts all;
    KeptPart& part = *all.add_parts();
    part.set_job_id(plan.job_id());
    part.set_generation(plan.generation());
    part.set_step(step);
    part.set_stage(stage);
    part.set_stages(plan.ranks_size());
    return all;
  }
  // A job with checkpoint 2, whose daemon b is killed after step 5; a keeps its part of 4.
  Plan LoseB() {
    a_ = Daemon("a");
    b_ = Daemon("b");
    const Plan plan = StartTwo(a_.get(), b_.get(), TwoStages());
    EXPECT_TRUE(PutAll(plan, 2));
    for (int step = 0; step < 5; ++step) {
      for (FakeDaemon* d : {a_.get(), b_.get()}) d->Step(plan, step, 5);
    }
    EXPECT_TRUE(Eventually([&] { return Status().step() == 5; }));
    DaemonMessage beat;
    beat.mutable_heartbeat()->set_generation(plan.generation());
    *beat.mutable_heartbeat()->mutable_kept() = Kept(plan, 4, 0);
    a_->Send(beat);
    b_->Vanish();
    a_->Event(plan, SessionEvent::FAILED, 5, "link b0: the other end is gone");
    a_->SetGeneration(0);
    EXPECT_TRUE(Becomes(JOB_PAUSED));
    return plan;
  }
  // It keeps its part, and both are asked.
  void BringBackB(const Plan& plan) {
    b_ = Daemon("b", [&](FakeDaemon::Options* o) {
      o->instance = "again";
      o->kept = Kept(plan, 4, 1);
    });
    for (FakeDaemon* d : {a_.get(), b_.get()}) EXPECT_EQ(d->NextPutKept()->step(), 4);
  }
  absl::StatusOr<SubmitReply> Queue(std::optional<int64_t> step) { return Resume(step, true); }
  absl::StatusOr<SubmitReply> Resume(std::optional<int64_t> step, bool wait = false) {
    SubmitRequest request;
    *request.mutable_job() = TwoStages();
    request.set_resume(true);
    request.set_wait_for_nodes(wait);
    if (step.has_value()) request.set_resume_step(*step);
    return Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  }
  absl::Status Remove(const std::string& job) {
    RemoveJobRequest request;
    request.set_job(job);
    return Call<RemoveJobRequest, RemoveJobReply>(&Jobs::Stub::Remove, request).status();
  }
  std::unique_ptr<FakeDaemon> a_, b_;
};

// kill -9 between keeping a part and putting it: the steps after the last stored checkpoint were
// lost, though every part lay on a disk.
TEST_F(KeptCheckpointsTest, ADaemonThatComesBackWithItsPartMakesTheCheckpointWhole) {
  Close();
  wait_for_daemons_ = absl::ZeroDuration();
  Open();
  const Plan plan = LoseB();
  EXPECT_TRUE(Eventually([&] {
    return Status().reason().find("a newer one may lie on the disk of b, which has not told yet") !=
           std::string::npos;
  })) << Status().reason();
  BringBackB(plan);
  const absl::Status early = Submit(TwoStages(), true).status();
  EXPECT_EQ(early.code(), absl::StatusCode::kUnavailable) << "it ends by itself";
  EXPECT_THAT(std::string(early.message()), HasSubstr("the parts of checkpoint 4 lie on the disks "
                                                      "of a, b and are on their way here"));
  EXPECT_THAT(std::string(early.message()), HasSubstr("--step 2"));
  EXPECT_TRUE(PutAll(plan, 4));
  EXPECT_EQ(Status().checkpoint_step(), 4);
  EXPECT_THAT(Status().reason(), HasSubstr("of step 4 (the 1 step after it is lost)"));
  const auto resumed = Submit(TwoStages(), true);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(a_->NextStart()->start_step(), 4);
}

// A daemon that is away, or still ends its session, is no reason to throw its part away.
TEST_F(KeptCheckpointsTest, ItIsNotGivenUpUnaskedWhileADaemonIsAway) {
  Close();
  wait_for_daemons_ = absl::ZeroDuration();
  Open();
  const Plan plan = LoseB();
  BringBackB(plan);
  b_.reset();
  const auto refused = [&] { return std::string(Submit(TwoStages(), true).status().message()); };
  EXPECT_TRUE(Eventually([&] {
    return refused().find("but daemon b is not connected") != std::string::npos;
  })) << refused();
  EXPECT_THAT(refused(), HasSubstr("go on from the older one now with --step 2"));
}

TEST_F(KeptCheckpointsTest, GoingOnFromAnOlderOneSaysWhatIsGivenUp) {
  const Plan plan = LoseB();
  BringBackB(plan);
  PlanRequest ask;
  *ask.mutable_job() = TwoStages();
  ask.set_resume(true);
  ask.set_resume_step(2);
  const auto answer = Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->plan().start_step(), 2);
  EXPECT_THAT(answer->warnings(), Contains(HasSubstr("a newer checkpoint is given up: the parts of "
                                                     "checkpoint 4 lie on the disks of a, b")));
}

TEST_F(KeptCheckpointsTest, AResumeWaitsForIt) {
  const Plan plan = LoseB();
  BringBackB(plan);
  absl::StatusOr<SubmitReply> resumed;
  std::thread user([&] { resumed = Submit(TwoStages(), true); });
  EXPECT_TRUE(PutAll(plan, 4));
  user.join();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(a_->NextStart()->start_step(), 4);
}

// `isthmus checkpoints` showed what is stored alone.
TEST_F(KeptCheckpointsTest, TheyAreListedWithWhoKeepsThem) {
  const Plan plan = LoseB();
  const auto list = [&] {
    ListCheckpointsRequest request;
    request.set_job("bible");
    request.set_verify(true);
    return Call<ListCheckpointsRequest, ListCheckpointsReply>(&Jobs::Stub::Checkpoints, request)
        .value();
  };
  EXPECT_EQ(list().checkpoints_size(), 1) << "b may have lost its part";
  BringBackB(plan);
  const ListCheckpointsReply both = list();
  ASSERT_EQ(both.checkpoints_size(), 2);
  EXPECT_EQ(both.checkpoints(0).step(), 4);
  EXPECT_THAT(both.checkpoints(0).kept_by(), ElementsAre("a", "b"));
  EXPECT_EQ(both.checkpoints(1).step(), 2);
  EXPECT_THAT(both.checkpoints(1).kept_by(), IsEmpty());
  std::thread user([&] { EXPECT_EQ(Resume(4)->plan().start_step(), 4); });  // it waits for it
  EXPECT_TRUE(PutAll(plan, 4));
  user.join();
  EXPECT_THAT(list().checkpoints(0).kept_by(), IsEmpty());
}

// Queued before the second daemon was back, it went on from the older one.
TEST_F(KeptCheckpointsTest, AQueuedResumeGoesOnFromTheNewestThatThereIsWhenItStarts) {
  Close();
  wait_for_daemons_ = absl::ZeroDuration();
  Open();
  const Plan plan = LoseB();
  ASSERT_TRUE(Queue(std::nullopt).ok());
  EXPECT_EQ(Status().state(), JOB_PENDING);
  EXPECT_EQ(Status().checkpoint_step(), 2);
  BringBackB(plan);
  EXPECT_TRUE(Eventually([&] {
    return Status().reason().find("the parts of checkpoint 4 lie on the disks of a, b") !=
           std::string::npos;
  })) << Status().reason();
  EXPECT_TRUE(PutAll(plan, 4));
  EXPECT_EQ(a_->NextStart()->start_step(), 4);
}

TEST_F(KeptCheckpointsTest, AQueuedResumeFromAStepThatWasAskedForGoesOnFromThat) {
  const Plan plan = LoseB();
  ASSERT_TRUE(Queue(2).ok());
  Close();
  Open();
  a_ = Daemon("a", [&](FakeDaemon::Options* o) { o->kept = Kept(plan, 4, 0); });
  EXPECT_TRUE(PutAll(plan, 4));
  EXPECT_EQ(Status().checkpoint_step(), 2) << "what was asked for, over a restart";
  b_ = Daemon("b", [&](FakeDaemon::Options* o) {
    o->instance = "again";
    o->kept = Kept(plan, 4, 1);
  });
  EXPECT_EQ(a_->NextStart()->start_step(), 2);
}

// One that only daemons keep is no reason to refuse what may wait.
TEST_F(KeptCheckpointsTest, AResumeThatMayWaitIsQueuedForIt) {
  const Plan plan = LoseB();
  BringBackB(plan);
  const auto queued = Queue(std::nullopt);
  ASSERT_TRUE(queued.ok()) << queued.status();
  EXPECT_THAT(queued->warnings(), Contains(HasSubstr("waits for daemons: the parts of checkpoint "
                                                     "4 lie on the disks of a, b")));
  Close();
  Open();
  a_ = Daemon("a", [&](FakeDaemon::Options* o) { o->kept = Kept(plan, 4, 0); });
  b_ = Daemon("b", [&](FakeDaemon::Options* o) { o->kept = Kept(plan, 4, 1); });
  for (FakeDaemon* d : {a_.get(), b_.get()}) EXPECT_EQ(d->NextPutKept()->step(), 4);
  EXPECT_TRUE(PutAll(plan, 4));
  EXPECT_EQ(a_->NextStart()->start_step(), 4);
}

// Its daemon could not read the part that it had told of, and tells no longer of it.
TEST_F(KeptCheckpointsTest, OneThatIsNoLongerKeptIsNotWaitedFor) {
  const Plan plan = LoseB();
  BringBackB(plan);
  ASSERT_TRUE(Queue(std::nullopt).ok());
  DaemonMessage beat;
  beat.mutable_heartbeat()->mutable_kept();
  b_->Send(beat);
  EXPECT_EQ(a_->NextStart()->start_step(), 2);
}

TEST_F(KeptCheckpointsTest, ADamagedNewestOneHoldsAQueuedResumeInWords) {
  Close();
  wait_for_daemons_ = absl::ZeroDuration();
  Open();
  const Plan plan = LoseB();
  ASSERT_TRUE(Queue(std::nullopt).ok());
  EXPECT_TRUE(PutAll(plan, 4));
  std::filesystem::resize_file(absl::StrCat(scratch_.path(), "/state/checkpoints/", plan.job_id(),
                                            "/step-00000004/stage-001/optimizer.safetensors"),
                               5);
  b_ = Daemon("b", [&](FakeDaemon::Options* o) { o->instance = "again"; });
  EXPECT_TRUE(Eventually([&] {
    return Status().reason().find("optimizer.safetensors is damaged") != std::string::npos;
  })) << Status().reason();
  EXPECT_EQ(Status().state(), JOB_PENDING);
}

TEST_F(KeptCheckpointsTest, GoingOnWithoutADaemonThatMayKeepOneIsSaid) {
  LoseB();
  auto c = Daemon("c");
  absl::StatusOr<SubmitReply> resumed;
  EXPECT_TRUE(Eventually([&] {
    resumed = Submit(TwoStages(), true);
    return resumed.ok();
  })) << resumed.status();
  EXPECT_EQ(resumed->plan().start_step(), 2);
  EXPECT_THAT(resumed->warnings(),
              Contains(HasSubstr("given up if there is one on the disks of b")));
}

// A daemon puts its part again because that of another one was missing: nothing is sent twice.
TEST_F(KeptCheckpointsTest, APartThatIsHereIsTakenWithoutItsBytes) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const std::string weights = WriteSafetensors({{"w", "F32", {1}, "1234"}}, {}).value();
  EXPECT_EQ(Put(plan, 2, 0, "weights.safetensors", weights).value(), false);
  const auto announce = [&](const std::string& bytes) {
    grpc::ClientContext context;
    PutCheckpointReply reply;
    const auto writer = bulk_->PutCheckpoint(&context, &reply);
    PutCheckpointChunk chunk;
    *chunk.mutable_header() = Header(plan, 2, 0, "weights.safetensors", bytes);
    writer->Write(chunk);
    writer->WritesDone();
    return rpc::FromGrpc(writer->Finish());
  };
  EXPECT_TRUE(announce(weights).ok());
  EXPECT_EQ(announce("another one").code(), absl::StatusCode::kDataLoss) << "its bytes are missing";
  EXPECT_TRUE(PutAll(plan, 2));
}

TEST_F(KeptCheckpointsTest, OfARemovedJobTheyGoAndOfAnUnknownOneTheyStay) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(plan, SessionEvent::FAILED, 0, "the test says so");
    d->SetGeneration(0);
  }
  EXPECT_TRUE(Becomes(JOB_FAILED));
  DaemonMessage beat;
  *beat.mutable_heartbeat()->mutable_kept() = Kept(plan, 4, 0);
  a->Send(beat);
  a->Send(DaemonMessage(beat));
  ASSERT_TRUE(Remove("bible").ok());
  EXPECT_EQ(a->NextRemoved().value(), plan.job_id());
  a.reset();
  Close();
  Open();
  Plan unknown = plan;
  unknown.set_job_id("elsewhere-1");
  a = Daemon("a", [&](FakeDaemon::Options* o) {
    o->kept = Kept(unknown, 4, 0);
    o->kept.MergeFrom(Kept(plan, 4, 0));
  });
  EXPECT_EQ(a->NextRemoved().value(), plan.job_id()) << "it is known after a restart";
  EXPECT_FALSE(a->NextRemoved(absl::Milliseconds(200)).ok());
}

}  // namespace
}  // namespace isthmus::coordinator
