// Checkpoints as the whole coordinator serves them: stored, chosen, listed, read, removed.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

class CheckpointsTest : public ServiceTest {
 protected:
  static std::string Tensor(const std::string& name) {
    return WriteSafetensors({{name, "F32", {1}, "1234"}}, {}).value();
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

}  // namespace
}  // namespace isthmus::coordinator
