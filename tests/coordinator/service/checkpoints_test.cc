// Checkpoints as the whole coordinator serves them: stored, chosen, listed, read, removed.
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class CheckpointsTest : public ServiceTest {
 protected:
  static std::string Tensor(const std::string& name) {
    return WriteSafetensors({{name, "F32", {1}, "1234"}}, {}).value();
  }
  // The header of a file alone.
  absl::Status Announce(const Plan& plan, int64_t step, int64_t bytes) {
    grpc::ClientContext context;
    PutCheckpointReply reply;
    const auto writer = bulk_->PutCheckpoint(&context, &reply);
    PutCheckpointChunk chunk;
    *chunk.mutable_header() = Header(plan, step, 0, "weights.safetensors", "");
    chunk.mutable_header()->set_file_bytes(bytes);
    writer->Write(chunk);
    writer->WritesDone();
    return rpc::FromGrpc(writer->Finish());
  }
};

TEST_F(CheckpointsTest, AResumeMayGoOnFromAnOlderCheckpoint) {
  auto a = Daemon("a"), b = Daemon("b");
  const JobSpec job = TwoStages();
  const Plan plan = StartTwo(a.get(), b.get(), job);
  for (int step = 0; step < 6; ++step) {
    for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, step, 5);
  }
  EXPECT_TRUE(PutAll(plan, 2));
  EXPECT_TRUE(PutAll(plan, 4));
  EXPECT_TRUE(PutAll(plan, 6));
  const auto fail = [&](const Plan& of) {
    for (FakeDaemon* d : {a.get(), b.get()}) {
      d->Event(of, SessionEvent::FAILED, 6, "the test says so");
      d->SetGeneration(0);
    }
    EXPECT_TRUE(Becomes(JOB_PAUSED));
  };
  fail(plan);
  const auto resume = [&](std::optional<int64_t> step) {
    SubmitRequest request;
    *request.mutable_job() = job;
    request.set_resume(true);
    if (step.has_value()) request.set_resume_step(*step);
    return Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  };
  EXPECT_EQ(resume(3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(resume(3).status().message()),
              HasSubstr("there are those of steps 2, 4, 6"));
  PlanRequest ask;
  *ask.mutable_job() = job;
  ask.set_resume(true);
  EXPECT_EQ((Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask)->plan().start_step()), 6);
  ask.set_resume_step(4);
  EXPECT_EQ((Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask)->plan().start_step()), 4);
  ask.set_resume(false);
  EXPECT_EQ((Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask).status().code()),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(resume(4).ok());
  const Plan again = a->NextStart().value();
  EXPECT_EQ(b->NextStart()->start_step(), 4);
  EXPECT_EQ(Status().checkpoint_step(), 4);
  EXPECT_EQ(Status().step(), 4);
  EXPECT_TRUE(PutAll(again, 5));
  EXPECT_EQ(Status().checkpoint_step(), 5) << "of the newer run, though 6 is more";
  fail(again);
  EXPECT_EQ(resume(std::nullopt)->plan().start_step(), 5);
}

TEST_F(CheckpointsTest, ADamagedOneIsRefusedBeforeAnythingStarts) {
  auto a = Daemon("a"), b = Daemon("b");
  const JobSpec job = TwoStages();
  const Plan plan = StartTwo(a.get(), b.get(), job);
  EXPECT_TRUE(PutAll(plan, 2));
  EXPECT_TRUE(PutAll(plan, 4));
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(plan, SessionEvent::FAILED, 4, "the test says so");
    d->SetGeneration(0);
  }
  EXPECT_TRUE(Becomes(JOB_PAUSED));
  std::filesystem::resize_file(absl::StrCat(scratch_.path(), "/state/checkpoints/", plan.job_id(),
                                            "/step-00000004/stage-001/optimizer.safetensors"),
                               5);
  const absl::Status refused = Submit(job, true).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("Sound are those of steps 2: go on from"));
  EXPECT_EQ(Status().state(), JOB_PAUSED);
  EXPECT_EQ(Status().generation(), plan.generation());
}

// A full disk was a line in the log: sixty steps and three lost checkpoints long nobody was told.
TEST_F(CheckpointsTest, AFullDiskIsAWarningAndAMetricUntilOneIsStored) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, 0, 5);
  const auto gauge = [&] {
    coordinator_->gauges()->Update();
    const std::string text = RenderMetrics();
    const std::string name =
        absl::StrCat("isthmus_job_failed_checkpoints{job=\"", plan.job_id(), "\"} ");
    const size_t at = text.find(name);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + name.size()));
  };
  EXPECT_EQ(gauge(), 0);
  EXPECT_EQ(Announce(plan, 1, int64_t{1} << 60).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Status().failed_checkpoints(), 1);
  ASSERT_THAT(Status().warnings(), SizeIs(1));
  EXPECT_THAT(Status().warnings(0), HasSubstr("that of step 1 could not be"));
  EXPECT_THAT(
      Status().warnings(0),
      HasSubstr("weights.safetensors of stage 0 (1024 PiB): the coordinator's --state-dir has "
                "less room than that (of what is free there, 64.0 MiB stay for the "
                "database): free"))
      << "the same words at each try, whatever is free then";
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  EXPECT_EQ(gauge(), 1);
  EXPECT_EQ(Put(plan, 2, 0, "weights.safetensors", Tensor("x"), 77).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Status().failed_checkpoints(), 1) << "a transfer that arrived damaged comes again";
  EXPECT_TRUE(PutAll(plan, 2));
  EXPECT_THAT(Status().warnings(), IsEmpty());
  EXPECT_EQ(gauge(), 0);
}

TEST_F(CheckpointsTest, AFailedOneIsCountedOnceOverARestart) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, 0, 5);
  const auto fails = [&](int64_t step) {
    EXPECT_EQ(Announce(plan, step, int64_t{1} << 60).code(), absl::StatusCode::kResourceExhausted);
    return Status().failed_checkpoints();
  };
  EXPECT_EQ(fails(1), 1);
  EXPECT_EQ(fails(2), 2);
  a.reset();
  b.reset();
  Close();
  Open();
  const auto back = [&](FakeDaemon::Options* o) {
    o->running_generation = plan.generation();
    o->running_job_id = plan.job_id();
  };
  a = Daemon("a", back);
  b = Daemon("b", back);
  EXPECT_EQ(fails(2), 2) << "tried again";
  EXPECT_EQ(fails(3), 3);
}

TEST_F(CheckpointsTest, ListedVerifiedAndRemovedWithTheirJob) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_TRUE(PutAll(plan, 2));
  EXPECT_TRUE(PutAll(plan, 4));
  const std::string dir = absl::StrCat(scratch_.path(), "/state/checkpoints/", plan.job_id());
  const auto list = [&](const std::string& job, bool verify) {
    ListCheckpointsRequest request;
    request.set_job(job);
    request.set_verify(verify);
    return Call<ListCheckpointsRequest, ListCheckpointsReply>(&Jobs::Stub::Checkpoints, request);
  };
  const auto remove = [&](const std::string& job, bool keep) {
    RemoveJobRequest request;
    request.set_job(job);
    request.set_keep_checkpoints(keep);
    return Call<RemoveJobRequest, RemoveJobReply>(&Jobs::Stub::Remove, request);
  };
  ASSERT_THAT(list("bible", false)->checkpoints(), SizeIs(2));
  EXPECT_EQ(list("bible", false)->checkpoints(0).step(), 4);
  const std::string other(State(plan, 2).size(), ' ');
  ASSERT_TRUE(WriteFileDurably(dir + "/step-00000002/stage-000/state.json", other).ok());
  EXPECT_EQ(list("bible", false)->checkpoints(1).damage(), "") << "of the same size";
  EXPECT_THAT(list("bible", true)->checkpoints(1).damage(), HasSubstr("state.json is damaged"));
  EXPECT_EQ(list("nobody", true).status().code(), absl::StatusCode::kNotFound);

  EXPECT_EQ(remove("bible", false).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(remove("bible", false).status().message()), HasSubstr("isthmus stop"));
  EXPECT_EQ(remove("nobody", false).status().code(), absl::StatusCode::kNotFound);
  StopJobRequest stop;
  stop.set_job("bible");
  stop.set_now(true);
  ASSERT_TRUE((Call<StopJobRequest, StopJobReply>(&Jobs::Stub::Stop, stop).ok()));
  EXPECT_EQ(remove("bible", true)->freed_bytes(), 0);
  EXPECT_EQ(remove("bible", true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(std::filesystem::exists(dir + "/step-00000004"));
  EXPECT_THAT(list(plan.job_id(), false)->checkpoints(), SizeIs(2)) << "by the id, still";
  Close();
  Open();
  EXPECT_EQ(remove("bible", false).status().code(), absl::StatusCode::kNotFound) << "on disk, too";
  EXPECT_GT(remove(plan.job_id(), false)->freed_bytes(), 100);
  EXPECT_FALSE(std::filesystem::exists(dir));
}

TEST_F(CheckpointsTest, PartsOfAKilledRunGoWithoutARestart) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_EQ(Put(plan, 2, 0, "weights.safetensors", Tensor("x")).value(), false);
  const std::string dir = absl::StrCat(scratch_.path(), "/state/checkpoints/", plan.job_id());
  EXPECT_FALSE(std::filesystem::is_empty(dir));
  for (FakeDaemon* d : {a.get(), b.get()}) d->Event(plan, SessionEvent::FAILED, 2, "killed");
  EXPECT_TRUE(Eventually([&] { return std::filesystem::is_empty(dir); }));
}

TEST_F(CheckpointsTest, AnUploadForAJobThatDoesNotStartGoes) {
  Plan upload;
  upload.set_job_id("bible-9");
  EXPECT_TRUE(Put(upload, 0, 0, "weights.safetensors", Tensor("x")).value());
  EXPECT_FALSE(Submit(TwoStages(), false, false, "bible-9").ok()) << "there are no daemons";
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/state/checkpoints/bible-9"));
}

// Whole models of many readers that do not read: once each had a copy in the coordinator's memory.
// The ones beyond kMaxExports are told how many are before them; a stage is not held up.
TEST_F(CheckpointsTest, ExportsBeyondTheBoundWaitAndAreTold) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const std::string big(24 << 20, 'x');  // more than gRPC keeps under way
  const std::string weights =
      WriteSafetensors({{"w", "U8", {static_cast<int64_t>(big.size())}, big}}, {}).value();
  for (int s = 0; s < 2; ++s) {
    ASSERT_TRUE(Put(plan, 4, s, "weights.safetensors", s == 0 ? weights : Tensor("v")).ok());
    ASSERT_TRUE(Put(plan, 4, s, "optimizer.safetensors", Tensor("m")).ok());
    ASSERT_TRUE(Put(plan, 4, s, "state.json", "{}").ok());
  }
  struct Reader {
    std::shared_ptr<grpc::Channel> channel;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<FetchCheckpointChunk>> stream;
  };
  std::vector<std::unique_ptr<Reader>> slow;
  FetchCheckpointChunk chunk;
  for (int i = 0; i < kMaxExports; ++i) {
    auto& reader = slow.emplace_back(std::make_unique<Reader>());
    reader->stream = bulk_->FetchCheckpoint(&reader->context, Export("bible"));
    ASSERT_TRUE(reader->stream->Read(&chunk)) << "it has its turn";
  }
  FetchCheckpointRequest state = Export("bible");
  state.set_what("state");
  const Fetched stage = FetchAll(state);
  EXPECT_TRUE(stage.status.ok() && stage.sound) << stage.status;
  EXPECT_EQ(stage.waited_behind, 0);
  Reader last;
  last.stream = bulk_->FetchCheckpoint(&last.context, Export("bible"));
  last.stream->WaitForInitialMetadata();
  const auto told = last.context.GetServerInitialMetadata().find(kWaitsBehind);
  ASSERT_NE(told, last.context.GetServerInitialMetadata().end());
  EXPECT_EQ(std::string(told->second.data(), told->second.size()), "1");
  slow[2]->context.TryCancel();
  int64_t bytes = 0;
  while (last.stream->Read(&chunk)) bytes += static_cast<int64_t>(chunk.data().size());
  EXPECT_TRUE(last.stream->Finish().ok());
  EXPECT_GT(bytes, 24 << 20);
  for (auto& reader : slow) {
    reader->context.TryCancel();
    while (reader->stream->Read(&chunk)) {
    }
    reader->stream->Finish();
  }
}

// A daemon that has the same part on its own disk is told so instead of being sent it.
TEST_F(CheckpointsTest, APartThatTheAskerHasIsNotSent) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_TRUE(PutAll(plan, 2));
  LocalPart part;
  part.set_generation(plan.generation());
  part.set_stage(1);
  part.set_stages(2);
  part.set_file("state.json");
  const std::string state = State(plan, 2);
  part.set_bytes(static_cast<int64_t>(state.size()));
  part.set_checksum(Hash64(state));
  const auto fetch = [&](const LocalPart& have, const char* what = "state") {
    grpc::ClientContext context;
    FetchCheckpointRequest request;
    request.set_job_id(plan.job_id());
    request.set_step(2);
    request.set_what(what);
    *request.add_have() = have;
    const auto reader = bulk_->FetchCheckpoint(&context, request);
    FetchCheckpointChunk chunk;
    EXPECT_TRUE(reader->Read(&chunk));
    context.TryCancel();
    reader->Finish();
    return chunk;
  };
  EXPECT_TRUE(fetch(part).use_local());
  EXPECT_EQ(fetch(part).data(), "");
  EXPECT_FALSE(fetch(part, "weights").use_local()) << "another file";
  const std::function<void(LocalPart*)> changes[] = {
      [](LocalPart* p) { p->set_generation(99); },
      [](LocalPart* p) { p->set_stage(2); },
      [](LocalPart* p) { p->set_stages(3); },
      [](LocalPart* p) { p->set_bytes(3); },
      [](LocalPart* p) { p->set_checksum(1); },
      [](LocalPart* p) { p->set_file("weights.safetensors"); },
  };
  for (const auto& change : changes) {
    LocalPart other = part;
    change(&other);
    EXPECT_FALSE(fetch(other).use_local()) << other.ShortDebugString();
  }
}

TEST_F(CheckpointsTest, AnswersMeasurementsOfThePath) {
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
  ProbeRequest request;
  request.set_padding(std::string(1000, 'x'));
  ProbeReply reply;
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    ASSERT_TRUE(bulk_->Echo(&context, request, &reply).ok());
    EXPECT_EQ(reply.received_bytes(), 1000);
  }
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    const auto writer = bulk_->Upload(&context, &reply);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(writer->Write(request));
    writer->WritesDone();
    ASSERT_TRUE(writer->Finish().ok());
    EXPECT_GE(reply.received_bytes(), 20000);
    EXPECT_GT(reply.tail_bytes(), 0);
  }
  for (const int64_t bytes : {int64_t{0}, int64_t{100000}, int64_t{1} << 40}) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    request.set_reply_bytes(bytes);
    const auto reader = bulk_->Download(&context, request);
    int64_t got = 0;
    while (reader->Read(&reply)) got += static_cast<int64_t>(reply.padding().size());
    const absl::Status ended = rpc::FromGrpc(reader->Finish());
    EXPECT_EQ(ended.ok(), bytes < int64_t{1} << 30) << ended;
    if (!ended.ok()) continue;
    EXPECT_GE(got, bytes);
  }
}

// Daemons put all their parts again where one was missing: it was said once for each of them.
TEST_F(CheckpointsTest, ACheckpointBecomesWholeOnce) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  testing::internal::CaptureStderr();
  for (int again = 0; again < 3; ++again) EXPECT_TRUE(PutAll(plan, 2));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string words = "checkpoint of step 2 is whole";
  const size_t first = log.find(words);
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(words, first + 1), std::string::npos) << log;
}

// It started as a new cluster, and said no more than that they belong to no job.
TEST_F(CheckpointsTest, ALostDatabaseBesideCheckpointsIsAWarning) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_TRUE(PutAll(plan, 2));
  const auto log_of_a_start = [this] {
    testing::internal::CaptureStderr();
    Open();
    return testing::internal::GetCapturedStderr();
  };
  Close();
  EXPECT_THAT(log_of_a_start(), Not(HasSubstr("which coordinator.db has not")));
  Close();
  for (const char* file : {"/state/coordinator.db", "/state/coordinator.db-wal"})
    std::ofstream(scratch_.path() + file, std::ios::trunc).close();
  const std::string log = log_of_a_start();
  EXPECT_THAT(log, HasSubstr(absl::StrCat("checkpoints/ holds those of ", plan.job_id(),
                                          ", which coordinator.db has not: it is new")));
  EXPECT_THAT(log, HasSubstr("restore coordinator.db from a backup"));
}

// A daemon that was told to end looked like one that was lost.
TEST_F(CheckpointsTest, ADaemonThatLeftIsListedAsSuch) {
  auto a = Daemon("a"), b = Daemon("b");
  DaemonMessage leaving;
  leaving.mutable_leaving()->set_reason("SIGTERM");
  a->Send(leaving);
  a.reset();
  b.reset();
  EXPECT_TRUE(Eventually([&] {
    const ListNodesReply nodes = Nodes();
    return !nodes.nodes(0).alive() && !nodes.nodes(1).alive();
  }));
  Close();  // it is remembered over a restart
  Open();
  int left = 0;
  const ListNodesReply nodes = Nodes();
  for (const NodeStatus& node : nodes.nodes()) {
    EXPECT_EQ(node.left(), node.node().name() == "a");
    for (const std::string& words : node.warnings()) {
      if (words.find("left in good order") == std::string::npos) continue;
      EXPECT_EQ(node.node().name(), "a");
      EXPECT_THAT(words, HasSubstr("it was told to end (SIGTERM)"));
      ++left;
    }
  }
  EXPECT_EQ(left, 1);
}

// Its path is shown and planned with; a daemon that is ending gets no job.
TEST_F(CheckpointsTest, TheCoordinatorLearnsThePathAndWhoLeaves) {
  auto a = Daemon("a"), b = Daemon("b");
  DaemonMessage beat;
  beat.mutable_heartbeat()->mutable_path()->set_up_bits_per_s(4e5);
  beat.mutable_heartbeat()->mutable_path()->set_down_bits_per_s(5e5);
  a->Send(beat);
  b->Send(beat);
  EXPECT_TRUE(Eventually([&] {
    const ListNodesReply nodes = Nodes();
    return nodes.nodes_size() == 2 && nodes.nodes(0).path().up_bits_per_s() == 4e5 &&
           nodes.nodes(1).path().down_bits_per_s() == 5e5;
  }));
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_GT(plan.deadlines().drain_ms(), 100'000);
  EXPECT_TRUE(PutAll(plan, 1));
  DaemonMessage leaving;
  leaving.mutable_leaving()->set_grace_ms(5000);
  leaving.mutable_leaving()->set_reason("SIGTERM");
  b->Send(leaving);
  EXPECT_TRUE(a->NextStop()->graceful());
  EXPECT_TRUE(b->NextStop()->graceful());
  EXPECT_TRUE(Becomes(JOB_STOPPING));
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(plan, SessionEvent::FINISHED, 1);
    d->SetGeneration(0);
  }
  EXPECT_TRUE(Becomes(JOB_PAUSED));
  EXPECT_THAT(Status().reason(), HasSubstr("daemon b left (SIGTERM)"));
  EXPECT_THAT(std::string(Submit(TwoStages(), true).status().message()), HasSubstr("b is ending"));
}

}  // namespace
}  // namespace isthmus::coordinator
