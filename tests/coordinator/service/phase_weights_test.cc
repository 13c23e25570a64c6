// A job of three phases through the whole coordinator, with a stand-in for the program that makes
// the weights of the next phase.
#include "coordinator/service/phase_weights.h"

#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PhaseWeightsTest : public ServiceTest {
 protected:
  PhaseWeightsTest() {
    run_multilevel_ = [this](const MultilevelCall& call, const Cancelled& cancelled) {
      return hang_ ? RunOperator(HangingProgram(), call, patience_, cancelled)
                   : Run(call.words, cancelled);
    };
  }
  // Writes its process id and does no more.
  std::string HangingProgram() {
    const std::string path = hanging_.path() + "/hangs";
    std::ofstream(path) << "#!/bin/sh\necho $$ > " << hanging_.path() << "/new && mv "
                        << hanging_.path() << "/new " << hanging_.path()
                        << "/pid\nexec sleep 600\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  // Of the program that hangs; 0: it has not begun.
  int HangingPid() {
    int pid = 0;
    std::ifstream(hanging_.path() + "/pid") >> pid;
    return pid;
  }
  void TearDown() override { Close(); }

  // Writes a model whose only tensor tells how often it was called.
  absl::Status Run(const std::vector<std::string>& words, const Cancelled& cancelled) {
    while (hold_) {
      held_ = true;
      if (cancelled()) return absl::CancelledError("ended");
      Pause();
    }
    const bool mix = words[0] == "interpolate";
    for (const std::string& in :
         mix ? std::vector<std::string>{words[1], words[2]} : std::vector<std::string>{words[1]}) {
      if (!std::filesystem::exists(in + "/config.json") ||
          !std::filesystem::exists(in + "/model.safetensors"))
        return absl::NotFoundError(in + " is no model");
    }
    if (fail_) return absl::InternalError("isthmus-multilevel: the test says so");
    const std::string out = words[mix ? 3 : 2];
    std::filesystem::create_directory(out);
    std::ofstream(out + "/config.json") << "{}";
    const auto value = static_cast<float>(++calls_);
    std::ofstream(out + "/model.safetensors", std::ios::binary)
        << WriteSafetensors({{"w", "F32", {1}, {reinterpret_cast<const char*>(&value), 4}}}, {})
               .value();
    std::string said = words[0];
    for (size_t i = mix ? 4 : 3; i < words.size(); ++i) said += " " + words[i];
    MutexLock lock(&mutex_);
    said_.push_back(said);
    return absl::OkStatus();
  }
  std::vector<std::string> said() {
    MutexLock lock(&mutex_);
    return said_;
  }

  JobSpec Cycle() {
    JobSpec job = TwoStages();
    RecipeSpec* r = job.mutable_recipe();
    r->clear_steps();
    r->clear_warmup_steps();
    r->clear_min_learning_rate();
    for (int i = 0; i < 3; ++i) job.add_phases()->set_steps(5);
    job.mutable_phases(1)->set_layers(3);
    job.mutable_phases(1)->set_heads(2);
    job.mutable_checkpoint()->set_keep(1);
    for (const char* name : {"a", "b"}) job.mutable_strategy()->add_nodes(name);
    return job;
  }
  // Both end, the last checkpoint of the phase is stored.
  void EndPhase(const Plan& plan, FakeDaemon* a, FakeDaemon* b) {
    const int64_t end = plan.job().recipe().steps();
    for (int64_t s = plan.start_step(); s < end; ++s) {
      for (FakeDaemon* d : {a, b}) d->Step(plan, s, 5);
    }
    for (int64_t at : {end - 1, end}) EXPECT_TRUE(PutAll(plan, at));
    for (FakeDaemon* d : {a, b}) {
      d->Event(plan, SessionEvent::FINISHED, end);
      d->SetGeneration(0);
    }
  }
  Plan NextPlan(FakeDaemon* a, FakeDaemon* b) {
    const auto plan = a->NextStart();
    EXPECT_TRUE(plan.ok()) << plan.status() << " " << Status().ShortDebugString();
    if (!plan.ok()) return Plan();
    EXPECT_EQ(b->NextStart()->generation(), plan->generation());
    for (FakeDaemon* d : {a, b}) {
      d->SetGeneration(plan->generation());
      d->Event(*plan, SessionEvent::PREPARED);
    }
    EXPECT_TRUE(Becomes(JOB_RUNNING));
    return *plan;
  }
  Fetched FetchStart(const Plan& plan) {
    FetchCheckpointRequest request = Export(plan.job_id());
    request.set_step(plan.start_step());
    request.set_what("start");
    return FetchAll(request);
  }
  float Value(const Plan& plan) {
    const Fetched start = FetchStart(plan);
    EXPECT_TRUE(start.status.ok() && start.sound) << start.status;
    return start.status.ok() ? ToFloats(ParseSafetensors(start.bytes)->at("w")).value()[0] : -1;
  }
  std::vector<int64_t> Checkpoints(bool ends_only = false) {
    ListCheckpointsRequest request;
    request.set_job("bible");
    std::vector<int64_t> steps;
    const auto list =
        Call<ListCheckpointsRequest, ListCheckpointsReply>(&Jobs::Stub::Checkpoints, request);
    for (const CheckpointInfo& info : list->checkpoints()) {
      if (!ends_only || info.phase_end()) steps.push_back(info.step());
    }
    return steps;
  }
  absl::StatusOr<SubmitReply> Resume(const JobSpec& job, bool accept = false) {
    SubmitRequest request;
    *request.mutable_job() = job;
    request.set_resume(true);
    request.set_accept_changes(accept);
    return Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  }

  const TempDirectory hanging_;
  std::atomic<bool> hold_{false}, held_{false}, fail_{false}, hang_{false};
  absl::Duration patience_ = absl::Hours(1);
  std::atomic<int> calls_{0};
  Mutex mutex_;
  std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(PhaseWeightsTest, ThreePhasesOneAfterTheOther) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan first = StartTwo(a.get(), b.get(), Cycle());
  EXPECT_EQ(first.phase(), 0);
  EXPECT_EQ(first.job().recipe().steps(), 5);
  EXPECT_EQ(Status().steps(), 15);
  EXPECT_EQ(Status().phases(), 3);
  EndPhase(first, a.get(), b.get());

  const Plan second = NextPlan(a.get(), b.get());
  EXPECT_EQ(second.phase(), 1);
  EXPECT_EQ(second.start_step(), 5);
  EXPECT_EQ(second.phase_start(), 5);
  EXPECT_TRUE(second.from_checkpoint());
  EXPECT_EQ(second.job().model().layers(), 3);
  EXPECT_EQ(second.job().model().hidden(), 128);
  EXPECT_EQ(second.data().samples(), 5 * 32) << "the order of samples goes on";
  EXPECT_EQ(Value(second), 1);
  EXPECT_EQ(Status().phase(), 1);
  EXPECT_EQ(Status().step(), 5);
  EndPhase(second, a.get(), b.get());

  const Plan third = NextPlan(a.get(), b.get());
  EXPECT_EQ(third.phase(), 2);
  EXPECT_EQ(third.start_step(), 10);
  EXPECT_EQ(third.job().model().layers(), 6);
  EXPECT_EQ(Value(third), 3);
  EXPECT_THAT(said(), ElementsAre("coalesce --layers 3 --hidden 128 --heads 2 --width-groups "
                                  "strided --depth-groups adjacent",
                                  "decoalesce --layers 6 --hidden 256 --heads 4 --width-groups "
                                  "strided --depth-groups adjacent",
                                  "interpolate --alpha 0.25"));
  EXPECT_THAT(Checkpoints(), ElementsAre(10, 5)) << "one is kept, and the end of the first phase";
  EXPECT_THAT(Checkpoints(true), ElementsAre(10, 5));
  EndPhase(third, a.get(), b.get());
  EXPECT_TRUE(Becomes(JOB_FINISHED));
  EXPECT_THAT(Checkpoints(), ElementsAre(15)) << "no phase needs the others any more";
}

TEST_F(PhaseWeightsTest, AnEarlierPhaseThatIsDamagedCanBeLeftOut) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan first = StartTwo(a.get(), b.get(), Cycle());
  EndPhase(first, a.get(), b.get());
  const Plan second = NextPlan(a.get(), b.get());
  const std::string dir =
      absl::StrCat(scratch_.path(), "/state/checkpoints/", first.job_id(), "/step-00000005");
  std::filesystem::resize_file(dir + "/stage-000/weights.safetensors", 8);
  EndPhase(second, a.get(), b.get());
  ASSERT_TRUE(Becomes(JOB_PAUSED));
  EXPECT_THAT(
      Status().reason(),
      AllOf(StartsWith("phase 3 of 3 could not begin: it is mixed with the checkpoint of step 5, "
                       "which phase 1 ended with, and that can't be used: "),
            HasSubstr("stage-000/weights.safetensors"), HasSubstr("(in " + dir + ")"),
            HasSubstr("with phases[2].alpha: 1"), Not(HasSubstr("--step"))));
  JobSpec without = Cycle();
  without.mutable_phases(2)->set_alpha(1);
  const auto resumed = Resume(without, true);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(NextPlan(a.get(), b.get()).phase(), 2);
}

TEST_F(PhaseWeightsTest, WhatTheProgramSaysIsTheReason) {
  fail_ = true;
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  ASSERT_TRUE(Becomes(JOB_PAUSED));
  EXPECT_EQ(Status().reason(),
            "phase 2 of 3 could not begin: isthmus-multilevel: the test says so; its last "
            "checkpoint is of step 5: submit --resume goes on from there");
  fail_ = false;
  const auto resumed = Resume(Cycle());
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_THAT(resumed->warnings(0),
              AllOf(StartsWith("the job waits: the weights of phase 2 of 3 are being made of "
                               "checkpoint 5. It starts by itself once they are there"),
                    HasSubstr("as with --wait")));
  EXPECT_EQ(NextPlan(a.get(), b.get()).phase(), 1);
}

TEST_F(PhaseWeightsTest, AJobThatIsStoppedEndsItsOperator) {
  hang_ = true;
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  ASSERT_TRUE(Eventually([&] { return HangingPid() != 0; }));
  EXPECT_EQ(kill(HangingPid(), 0), 0);
  StopJobRequest stop;
  stop.set_job("bible");
  ASSERT_TRUE((Call<StopJobRequest, StopJobReply>(&Jobs::Stub::Stop, stop)).ok());
  EXPECT_TRUE(Eventually([&] { return kill(HangingPid(), 0) != 0; }));
  EXPECT_EQ(Status().state(), JOB_STOPPED);
}

// It was waited for without end, and so was every job behind it.
TEST_F(PhaseWeightsTest, AnOperatorThatHangsIsEndedByItsDeadline) {
  hang_ = true;
  patience_ = absl::ZeroDuration();
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  ASSERT_TRUE(Becomes(JOB_PAUSED));
  EXPECT_THAT(Status().reason(),
              AllOf(StartsWith("phase 2 of 3 could not begin: isthmus-multilevel coalesce did not "
                               "end within 0 s, its deadline for "),
                    HasSubstr(" MiB of models: look at the load and the disk of the coordinator's "
                              "host; its last checkpoint is of step 5")));
  hang_ = false;
  ASSERT_TRUE(Resume(Cycle()).ok());
  EXPECT_EQ(NextPlan(a.get(), b.get()).phase(), 1);
}

TEST(MultilevelPatience, GoesBySize) {
  EXPECT_EQ(MultilevelPatience(0), absl::Minutes(2));
  EXPECT_EQ(MultilevelPatience(int64_t{2'000'000'000}), absl::Minutes(2) + absl::Seconds(1000));
}

TEST_F(PhaseWeightsTest, ADamagedStartIsMadeAgain) {
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  const Plan second = NextPlan(a.get(), b.get());
  EXPECT_EQ(Value(second), 1);
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(second, SessionEvent::FAILED, 5, "the test says so");
    d->SetGeneration(0);
  }
  ASSERT_TRUE(Becomes(JOB_PAUSED));
  Close();
  const std::string weights = absl::StrCat(scratch_.path(), "/state/checkpoints/", second.job_id(),
                                           "/step-00000005/start/weights.safetensors");
  {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.seekp(-1, std::ios::end).put('!').good()) << weights;
  }
  Open();
  a = Daemon("a");
  b = Daemon("b");
  ASSERT_TRUE(Resume(Cycle()).ok());
  const Plan again = NextPlan(a.get(), b.get());
  EXPECT_EQ(again.phase(), 1);
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(Value(again), 2);
}

// A later phase that no daemon of today has room for: said by `plan`, and not by `submit`.
TEST_F(PhaseWeightsTest, ASubmitWarnsOfALaterPhaseThatCantBePlanned) {
  auto a = Daemon("a"), b = Daemon("b");
  ASSERT_TRUE(Eventually([&] { return Nodes().links_size() == 2; }));
  JobSpec job = Cycle();
  job.mutable_strategy()->clear_nodes();
  job.mutable_strategy()->set_stages(0);
  job.mutable_phases(1)->set_layers(6);
  job.mutable_phases(1)->set_heads(256);
  PlanRequest plan;
  *plan.mutable_job() = job;
  const absl::Status refused = Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, plan).status();
  EXPECT_THAT(std::string(refused.message()), StartsWith("phase 2 of 3: memory: "));
  SubmitRequest submit;
  *submit.mutable_job() = job;
  const auto reply = Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, submit);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->warnings(),
              Contains(absl::StrCat(refused.message(), ". The job will wait there for daemons")));
}

TEST_F(PhaseWeightsTest, ACoordinatorThatDiesMeanwhileMakesThemAtItsNextStart) {
  hold_ = true;
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  ASSERT_TRUE(Eventually([&] { return held_.load(); }));
  EXPECT_EQ(Status().state(), JOB_PENDING);
  EXPECT_THAT(Status().reason(), HasSubstr("the weights of phase 2 of 3 are being made"));
  Close();
  hold_ = false;
  Open();
  a = Daemon("a");
  b = Daemon("b");
  const Plan second = NextPlan(a.get(), b.get());
  EXPECT_EQ(second.phase(), 1);
  EXPECT_EQ(Value(second), 1);
}

TEST_F(PhaseWeightsTest, AStopBetweenTwoPhasesAndAResumeWithAnotherAlpha) {
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  const Plan second = NextPlan(a.get(), b.get());
  hold_ = true;
  EndPhase(second, a.get(), b.get());
  ASSERT_TRUE(Becomes(JOB_PENDING));
  StopJobRequest stop;
  stop.set_job("bible");
  ASSERT_TRUE((Call<StopJobRequest, StopJobReply>(&Jobs::Stub::Stop, stop)).ok());
  EXPECT_EQ(Status().state(), JOB_STOPPED);
  EXPECT_THAT(Status().reason(), StartsWith("stopped by the user between two phases"));
  hold_ = false;
  JobSpec job = Cycle();
  job.mutable_phases(2)->set_alpha(0.5);
  const auto refused = Resume(job);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("phases[2].alpha: 0.25 -> 0.5"));
  const auto accepted = Resume(job, true);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(NextPlan(a.get(), b.get()).phase(), 2);
  EXPECT_EQ(said().back(), "interpolate --alpha 0.5");
}

TEST_F(PhaseWeightsTest, AResumeInsideAPhaseGoesOnInIt) {
  auto a = Daemon("a"), b = Daemon("b");
  EndPhase(StartTwo(a.get(), b.get(), Cycle()), a.get(), b.get());
  const Plan second = NextPlan(a.get(), b.get());
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(second, 5, 5);
  EXPECT_TRUE(PutAll(second, 6));
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(second, SessionEvent::FAILED, 6, "the test says so");
    d->SetGeneration(0);
  }
  ASSERT_TRUE(Becomes(JOB_PAUSED));
  ASSERT_TRUE(Resume(Cycle()).ok());
  const Plan again = NextPlan(a.get(), b.get());
  EXPECT_EQ(again.phase(), 1);
  EXPECT_EQ(again.start_step(), 6);
  EXPECT_EQ(again.phase_start(), 5);
  EXPECT_EQ(calls_, 1);
}

// It would train to the end of its phase for nothing.
TEST_F(PhaseWeightsTest, AResumeIsRefusedWhereALaterPhaseCantBeMade) {
  auto a = Daemon("a"), b = Daemon("b");
  JobSpec job = Cycle();
  job.mutable_phases(2)->set_alpha(1);  // the end of the first phase is not kept for it
  EndPhase(StartTwo(a.get(), b.get(), job), a.get(), b.get());
  const Plan second = NextPlan(a.get(), b.get());
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(second, 5, 5);
  EXPECT_TRUE(PutAll(second, 6));
  EXPECT_THAT(Checkpoints(), ElementsAre(6));
  for (FakeDaemon* d : {a.get(), b.get()}) {
    d->Event(second, SessionEvent::FAILED, 6, "the test says so");
    d->SetGeneration(0);
  }
  ASSERT_TRUE(Becomes(JOB_PAUSED));
  JobSpec mixed = job;
  mixed.mutable_phases(2)->set_alpha(0.5);
  EXPECT_THAT(std::string(Resume(mixed, true).status().message()),
              HasSubstr("is made of checkpoint 5, which is no longer there: give it `alpha: 1`"));
  JobSpec other = job;
  other.mutable_model()->set_context(2 * job.model().context());
  EXPECT_THAT(std::string(Resume(other, true).status().message()), HasSubstr("context"));
  other = job;
  other.mutable_model()->set_norm_epsilon(1e-3);
  EXPECT_THAT(std::string(Resume(other, true).status().message()), HasSubstr("norm_epsilon"));
  EXPECT_TRUE(Resume(job).ok());
}

TEST_F(PhaseWeightsTest, APlanTellsOfEveryPhase) {
  auto a = Daemon("a"), b = Daemon("b");
  ASSERT_TRUE(Eventually([&] { return Nodes().links_size() == 2; }));
  PlanRequest request;
  *request.mutable_job() = Cycle();
  const auto reply = Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->plan().phase(), 0);
  EXPECT_THAT(reply->plan().explanation(0), StartsWith("phases: all 15 steps take "));
  EXPECT_THAT(reply->plan().explanation(1),
              StartsWith("phase 1 of 3: steps 1 to 5, 6 layers x 256"));
  EXPECT_THAT(reply->plan().explanation(2),
              StartsWith("phase 2 of 3: steps 6 to 10, 3 layers x 128"));
  EXPECT_THAT(reply->plan().explanation(3), StartsWith("phase 3 of 3: steps 11 to 15, "));
}

TEST(RunMultilevelProgram, ItsWordsAreTheError) {
  const std::string output = testing::TempDir() + "/isthmus_phase_weights_output";
  std::filesystem::remove(output);
  const absl::Status status =
      RunMultilevelProgram({{"coalesce", "/nowhere", "/out"}, output}, [] { return false; });
  // Where the program is not built beside this test, that is what is said.
  EXPECT_THAT(std::string(status.message()),
              ::testing::AnyOf(HasSubstr("/nowhere"), HasSubstr("the program isthmus-multilevel")));
}

}  // namespace
}  // namespace isthmus::coordinator
