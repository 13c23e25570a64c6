// The whole coordinator over loopback, with fake daemons.
#include <chrono>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/service/submission.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(ServiceTest, SubmitWaitsForAFileThatIsJustBeingListed) {
  Close();
  wait_for_data_ = absl::Seconds(60);
  Open();
  auto a = Daemon("a", [](FakeDaemon::Options* o) { o->node.clear_data_files(); });
  ASSERT_TRUE(a->registered().ok());
  JobSpec job = MakeJob();
  job.mutable_strategy()->set_stages(1);
  absl::StatusOr<SubmitReply> reply = absl::UnknownError("not submitted");
  std::thread submits([&] { reply = Submit(job); });
  DaemonMessage listing;
  *listing.mutable_heartbeat()->mutable_data()->mutable_files() = MakeNode("a", 10).data_files();
  listing.mutable_heartbeat()->mutable_data()->set_complete(true);
  a->Send(listing);
  submits.join();
  EXPECT_TRUE(reply.ok()) << reply.status();
  Close();
  wait_for_data_ = absl::ZeroDuration();
  Open();
  auto b = Daemon("b", [](FakeDaemon::Options* o) { o->node.clear_data_files(); });
  ASSERT_TRUE(b->registered().ok());
  job.set_name("other");
  EXPECT_EQ(Submit(job).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ServiceTest, AJobFromSubmissionToItsEnd) {
  auto a = Daemon("a"), b = Daemon("b");
  EXPECT_EQ(a->registered()->node_id(), "id-a");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_EQ(plan.generation(), 1u);
  EXPECT_GE(a->probes() + b->probes(), 2);

  grpc::ClientContext context;
  WatchRequest watch;
  watch.set_job("bible");
  watch.set_follow(true);
  const auto stream = jobs_->Watch(&context, watch);
  for (int step = 0; step < 10; ++step) {
    for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, step, 5.0 - step);
  }
  EXPECT_TRUE(PutAll(plan, 10));
  for (FakeDaemon* d : {a.get(), b.get()}) d->Event(plan, SessionEvent::FINISHED, 10);
  WatchReply reply;
  std::vector<int64_t> steps;
  JobStatus last;
  while (stream->Read(&reply)) {
    for (const JobRecord& r : reply.records()) steps.push_back(r.step());
    last = reply.status();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(last.state(), JOB_FINISHED);
  EXPECT_EQ(last.checkpoint_step(), 10);
  EXPECT_EQ(last.loss(), -4);
  ListJobsReply list =
      Call<ListJobsRequest, ListJobsReply>(&Jobs::Stub::List, ListJobsRequest()).value();
  ASSERT_THAT(list.jobs(), SizeIs(1));
  EXPECT_THAT(coordinator_->queries()->ServiceDiscovery("me:1"), HasSubstr("a:7081"));
  coordinator_->gauges()->Update();

  const Fetched fetched = FetchAll(Export(plan.job_id()));
  EXPECT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_TRUE(fetched.sound);
  EXPECT_EQ(fetched.step, 10);
  EXPECT_THAT(ParseSafetensors(fetched.bytes).value(), SizeIs(2));
}

// A text that is cut in the midst of a character is no UTF-8: the status could not be read again.
TEST_F(ServiceTest, AReasonOfAnyLengthCanBeReadAndOutlivesARestart) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  std::string words = "x";
  for (size_t i = 0; i < kMaxReasonBytes; ++i) words += "\xc3\xbc";
  a->Event(plan, SessionEvent::FAILED, 1, words);
  b->Event(plan, SessionEvent::FAILED, 1, words);
  EXPECT_TRUE(Becomes(JOB_FAILED));
  EXPECT_THAT(Status().reason(), HasSubstr("x\xc3\xbc"));
  a.reset();
  b.reset();
  Close();
  Open();
  EXPECT_EQ(Status().state(), JOB_FAILED);
  EXPECT_THAT(Status().reason(), HasSubstr("x\xc3\xbc"));
}

TEST_F(ServiceTest, ADaemonThatDiesPausesTheJobAndResumeGoesOn) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, 0, 5);
  EXPECT_TRUE(PutAll(plan, 1));
  FakeDaemon *dies = a.get(), *stays = b.get();
  dies->Vanish();
  stays->Event(plan, SessionEvent::FAILED, 1, "link b0: the other end is gone");
  EXPECT_TRUE(Becomes(JOB_PAUSED));
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Status().reason(), "daemon a is lost"); }))
      << Status().reason();
  EXPECT_THAT(Status().reason(), HasSubstr("last checkpoint is of step 1: "));
  stays->SetGeneration(0);
  EXPECT_EQ(Put(plan, 2, 0, "state.json", State(plan, 2)).value(), false)
      << "a late part of the last generation is taken";
  JobSpec one = TwoStages();
  one.mutable_strategy()->set_stages(1);
  const auto resumed = Submit(one, true);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  const Plan again = stays->NextStart().value();
  EXPECT_EQ(again.job_id(), plan.job_id());
  EXPECT_GT(again.generation(), plan.generation());
  EXPECT_EQ(again.start_step(), 1);
  EXPECT_TRUE(again.from_checkpoint());
  EXPECT_EQ(Put(plan, 2, 0, "state.json", State(plan, 2)).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "the fence";
  JobSpec other = one;
  other.mutable_model()->set_layers(3);
  EXPECT_FALSE(Submit(other, true).ok());
  stays->Event(again, SessionEvent::FAILED, 1, "out of memory");
  EXPECT_TRUE(Becomes(JOB_PAUSED));
  stays->SetGeneration(0);
  const auto anew = Submit(one, false);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(anew->warnings(), Contains(HasSubstr("has a checkpoint of step 1")));
}

// Daemons that start together share their host's cores when they measure themselves; the figure of
// an idle host is what `nodes` shows and plans count with, and it outlives the coordinator.
TEST_F(ServiceTest, ComputeIsMeasuredAgainOnAnIdleHostAndByRealSteps) {
  const auto faster = [](FakeDaemon::Options* o) { o->faster_when_idle = 4; };
  auto a = Daemon("a", faster), b = Daemon("b", faster);
  const auto gflops = [&](const std::string& name) {
    const ListNodesReply nodes = Nodes();
    for (const NodeStatus& n : nodes.nodes())
      if (n.node().name() == name) return std::round(1 / n.node().block_forward_s());
    return 0.0;
  };
  EXPECT_TRUE(Eventually([&] { return gflops("a") == 40 && gflops("b") == 40; }));
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_GT(a->measures(), 0);
  const double predicted_s = plan.ranks(0).predicted_step_s();
  EXPECT_GT(predicted_s, 0);
  // Steps that take three times as long: the next plan counts with it.
  for (int step = 0; step < 6; ++step) {
    for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, step, 5, 3 * predicted_s);
  }
  EXPECT_TRUE(PutAll(plan, 6));
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(plan, SessionEvent::FAILED, 6, "told to");
    d->SetGeneration(0);
  }
  EXPECT_TRUE(Becomes(JOB_PAUSED));
  ASSERT_TRUE(Submit(TwoStages(), true).ok());
  const Plan again = a->NextStart().value();
  EXPECT_NEAR(again.ranks(0).predicted_step_s() / predicted_s, 3, 0.5);
  a->Vanish();
  b->Vanish();
  Close();
  Open();
  auto back = Daemon("a");
  EXPECT_EQ(gflops("a"), 40) << "it measured 10 at its start";
}

TEST_F(ServiceTest, StopReachesEveryDaemon) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  StopJobRequest stop;
  stop.set_job("bible");
  EXPECT_EQ((Call<StopJobRequest, StopJobReply>(&Jobs::Stub::Stop, stop)->status().state()),
            JOB_STOPPING);
  EXPECT_EQ(Submit(TwoStages(), true).status().code(), absl::StatusCode::kUnavailable)
      << "a resume may be tried again soon";
  for (FakeDaemon* d : {a.get(), b.get()}) {
    EXPECT_TRUE(d->NextStop()->graceful());
    d->Event(plan, SessionEvent::FINISHED, 3);
  }
  EXPECT_TRUE(Becomes(JOB_STOPPED));
  EXPECT_EQ(Status().step(), 3);
}

TEST_F(ServiceTest, TrainingGoesOnOverARestartOfTheCoordinator) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, 0, 5);
  EXPECT_TRUE(Eventually([&] { return Status().step() == 1; }));
  Close();
  a.reset();
  b.reset();
  Open();
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  auto back = [&](FakeDaemon::Options* o) {
    o->running_generation = plan.generation();
    o->running_job_id = plan.job_id();
  };
  a = Daemon("a", back);
  b = Daemon("b", back);
  EXPECT_EQ(a->registered()->recorded_step(), 1);
  EXPECT_TRUE(Eventually([&] { return Status().reason().empty(); }));
  for (int step = 0; step < 3; ++step) {
    for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, step, 5);
  }
  EXPECT_TRUE(Eventually([&] { return Status().step() == 3; }));
  EXPECT_EQ(Status().generation(), plan.generation());
  WatchRequest watch;
  watch.set_job("bible");
  grpc::ClientContext context;
  const auto stream = jobs_->Watch(&context, watch);
  WatchReply reply;
  std::vector<int64_t> steps;
  while (stream->Read(&reply)) {
    for (const JobRecord& r : reply.records()) steps.push_back(r.step());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2}))
      << "history from the store and the memory, nothing twice";
}

TEST_F(ServiceTest, ALostDatabaseRepeatsNoIdAndNoGeneration) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_TRUE(PutAll(plan, 1));
  a.reset();
  b.reset();
  Close();
  ASSERT_TRUE(std::filesystem::remove(scratch_.path() + "/state/coordinator.db"));
  Open();
  a = Daemon("a", [](FakeDaemon::Options* o) { o->newest_generation = 17; });
  b = Daemon("b");
  EXPECT_NE(Submit(TwoStages()).value().job_id(), plan.job_id()) << "would mix checkpoints";
  EXPECT_GT(a->NextStart().value().generation(), 17u)
      << "else the daemon refuses it as out of date";
}

TEST_F(ServiceTest, OneIdentityOneDaemon) {
  auto a = Daemon("a");
  auto copy = Daemon("a", [](FakeDaemon::Options* o) { o->instance = "copy"; });
  EXPECT_EQ(copy->registered().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(copy->registered().status().message()), HasSubstr("connected and alive"));
  auto redial = Daemon("a");
  EXPECT_TRUE(redial->registered().ok()) << "the same process";
  redial->Vanish();
  for (int i = 0; i < 20; ++i) {
    auto restarted =
        Daemon("a", [&](FakeDaemon::Options* o) { o->instance = absl::StrCat("run", i); });
    EXPECT_TRUE(restarted->registered().ok());
  }
  EXPECT_THAT(Nodes().nodes(), SizeIs(1));
}

TEST_F(ServiceTest, SilentDaemonsExpireAndMayComeBack) {
  auto silent = Daemon("a", [](FakeDaemon::Options* o) { o->heartbeats = false; });
  EXPECT_TRUE(Eventually([&] { return Nodes().nodes_size() == 1 && !Nodes().nodes(0).alive(); }));
  auto again = Daemon("a", [](FakeDaemon::Options* o) { o->instance = "again"; });
  EXPECT_TRUE(again->registered().ok());
  EXPECT_TRUE(Eventually([&] { return Nodes().nodes(0).alive(); }));
}

TEST_F(ServiceTest, AJobMayWaitForDaemons) {
  JobSpec job = TwoStages();
  EXPECT_THAT(std::string(Submit(job).status().message()),
              HasSubstr("2 stages need as many daemons; 0 are free"));
  EXPECT_EQ(
      (Call<ListJobsRequest, ListJobsReply>(&Jobs::Stub::List, ListJobsRequest())->jobs_size()), 0)
      << "refused: nothing started";
  const auto waits = Submit(job, false, true);
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(Status().state(), JOB_PENDING);
  EXPECT_THAT(Status().reason(), HasSubstr("waiting for daemons: 2 stages need as many daemons"));
  EXPECT_EQ(Submit(job).status().code(), absl::StatusCode::kAlreadyExists)
      << "one live job of a name";
  Close();
  Open();  // it still waits
  auto a = Daemon("a"), b = Daemon("b");
  EXPECT_TRUE(a->NextStart().ok());
  EXPECT_EQ(b->NextStart()->job_id(), waits->job_id());
}

TEST_F(ServiceTest, BusyDaemonsAreNotTakenTwice) {
  auto a = Daemon("a"), b = Daemon("b");
  StartTwo(a.get(), b.get(), TwoStages());
  JobSpec other = TwoStages();
  other.set_name("other");
  EXPECT_THAT(std::string(Submit(other).status().message()), HasSubstr("a runs job bible-"));
  PlanRequest plan;
  *plan.mutable_job() = other;
  const auto reply = Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, plan);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->warnings(), ::testing::Contains(HasSubstr("daemons that are busy now")));
  EXPECT_THAT(reply->schedule_grid(), SizeIs(2));
}

TEST_F(ServiceTest, AnUploadedModelIsTheStart) {
  auto a = Daemon("a");
  NewJobIdRequest request;
  request.set_name("bible");
  const std::string id =
      Call<NewJobIdRequest, NewJobIdReply>(&Jobs::Stub::NewJobId, request)->job_id();
  JobSpec job = MakeJob();
  EXPECT_THAT(std::string(Submit(job, false, false, id).status().message()),
              HasSubstr("were not uploaded"));
  Plan upload;
  upload.set_job_id(id);
  EXPECT_TRUE(Put(upload, 0, 0, "weights.safetensors", WriteSafetensors({}, {}).value()).value());
  const auto reply = Submit(job, false, false, id);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->job_id(), id);
  const Plan plan = a->NextStart().value();
  EXPECT_TRUE(plan.from_checkpoint());
  EXPECT_EQ(plan.start_step(), 0);
  EXPECT_FALSE(Put(upload, 0, 0, "weights.safetensors", "x").ok());
  request.set_name("../../etc");
  EXPECT_EQ((Call<NewJobIdRequest, NewJobIdReply>(&Jobs::Stub::NewJobId, request).status().code()),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ServiceTest, BrokenInputIsRefusedPolitely) {
  JobSpec huge = MakeJob();
  huge.mutable_data()->set_path(std::string(1 << 20, 'x'));
  EXPECT_THAT(std::string(Submit(huge).status().message()), HasSubstr("at most 65536"));
  huge.mutable_data()->set_path(std::string(8 << 20, 'x'));
  EXPECT_EQ(Submit(huge).status().code(), absl::StatusCode::kResourceExhausted)
      << "larger than a message may be";
  JobStatusRequest unknown;
  unknown.set_job("nothing");
  EXPECT_EQ((Call<JobStatusRequest, JobStatus>(&Jobs::Stub::Status, unknown).status().code()),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Submit(MakeJob(), true).status().code(), absl::StatusCode::kNotFound);
  {
    grpc::ClientContext context;
    auto control = Control::NewStub(channel_);
    const auto stream = control->Session(&context);
    DaemonMessage beat;
    beat.mutable_heartbeat();
    stream->Write(beat);
    EXPECT_THAT(stream->Finish().error_message(),
                HasSubstr("first message must be a registration"));
  }
  {
    grpc::ClientContext context;
    PutCheckpointReply reply;
    const auto writer = bulk_->PutCheckpoint(&context, &reply);
    PutCheckpointChunk chunk;
    chunk.set_data("no header");
    writer->Write(chunk);
    writer->WritesDone();
    EXPECT_THAT(writer->Finish().error_message(), HasSubstr("header must come first"));
  }
  auto a = Daemon("a");
  DaemonMessage second;
  second.mutable_register_();
  a->Send(second);
  EXPECT_TRUE(Eventually([&] { return !Nodes().nodes(0).alive(); })) << "a stream registers once";
}

TEST_F(ServiceTest, ControlAnswersWithManyStreamsOpen) {
  std::vector<std::unique_ptr<FakeDaemon>> daemons;
  for (int i = 0; i < 64; ++i) {
    daemons.push_back(Daemon(absl::StrCat("n", i)));
    ASSERT_TRUE(daemons.back()->registered().ok()) << i;
  }
  EXPECT_EQ(Nodes().nodes_size(), 64);
  JobSpec job = MakeJob();
  job.mutable_strategy()->set_stages(1);
  EXPECT_TRUE(Submit(job).ok());
  const auto before = std::chrono::steady_clock::now();
  Close();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10))
      << "ends while its clients are there";
}

}  // namespace
}  // namespace isthmus::coordinator
