#include "daemon/session_runner.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/daemon/fake_session.h"

namespace isthmus::daemon {
namespace {

class Observer : public worker::SessionObserver {
 public:
  void OnStep(const StepRecord& record) override {}
  void OnEvent(const SessionEvent& event) override {
    MutexLock lock(&mutex_);
    events_.push_back(event);
    changed_.SignalAll();
  }
  void OnTrace(const StepTrace& trace) override { ++traces; }
  std::atomic<int> traces{0};
  // Waits for an event of that state and generation; its message, or "(none)".
  std::string WaitFor(SessionEvent::State state, uint64_t generation) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mutex_);
    while (true) {
      for (const SessionEvent& event : events_) {
        if (event.state() == state && event.generation() == generation) return event.message();
      }
      if (!changed_.WaitUntil(&mutex_, deadline)) return "(none)";
    }
  }
  // The stage that such an event names; -2 if none came.
  int StageOf(SessionEvent::State state, uint64_t generation) {
    MutexLock lock(&mutex_);
    for (const SessionEvent& event : events_) {
      if (event.state() == state && event.generation() == generation) return event.rank();
    }
    return -2;
  }
  size_t count() {
    MutexLock lock(&mutex_);
    return events_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<SessionEvent> events_ ABSL_GUARDED_BY(mutex_);
};

class SessionRunnerTest : public testing::Test {
 protected:
  SessionRunnerTest() {
    char name[] = "/tmp/isthmus-runner-XXXXXX";
    path_ = mkdtemp(name);
    SessionRunnerOptions options;
    options.node_id = "me";
    options.data_dir = path_;
    options.state_dir = path_;
    options.checkpoints.coordinator = "127.0.0.1:1";
    options.checkpoints.watchdog = &watchdog_;
    options.board = &board_;
    options.watchdog = &watchdog_;
    options.health = &health_;
    options.observer = &observer_;
    options.make_session =
        [this](worker::SessionOptions session) -> absl::StatusOr<std::unique_ptr<worker::Session>> {
      if (session.plan.job().name() == "throws") throw std::runtime_error("out of paper");
      if (session.plan.job().name() == "unmakeable")
        return absl::InvalidArgumentError("no such model");
      with_buddy_ = session.buddy != nullptr;
      return MakeFakeSession(std::move(session));
    };
    options.open_corpus = OpenFakeCorpus;
    options.release_memory = [this] { ++released_; };
    runner_ = std::make_unique<SessionRunner>(std::move(options));
  }
  ~SessionRunnerTest() override {
    health_.Ending();
    runner_.reset();
    EXPECT_TRUE(health_.ok()) << health_.Report();
    std::filesystem::remove_all(path_);
  }

  static Plan MakePlan(uint64_t generation, const std::string& job = "job") {
    Plan plan;
    plan.set_job_id(job);
    plan.set_generation(generation);
    plan.add_ranks()->set_node_id("me");
    return plan;
  }
  void Stop(bool graceful, uint64_t generation = 0) {
    StopSession stop;
    stop.set_graceful(graceful);
    stop.set_generation(generation);
    stop.set_reason("asked to");
    runner_->Stop(stop);
  }
  void WaitIdle() {
    while (!runner_->running().job_id.empty()) std::this_thread::yield();
  }

  std::string path_;
  std::atomic<bool> with_buddy_{false};  // of the last session
  std::atomic<int> released_{0};         // times
  Watchdog watchdog_;
  Health health_;
  DialBoard board_;
  Observer observer_;
  std::unique_ptr<SessionRunner> runner_;
};

TEST_F(SessionRunnerTest, MemoryOfTheDeviceIsGivenBackAfterEachSession) {
  for (uint64_t generation = 1; generation <= 2; ++generation) {
    runner_->Start(MakePlan(generation));
    observer_.WaitFor(SessionEvent::RUNNING, generation);
    EXPECT_EQ(released_, static_cast<int>(generation) - 1);
    Stop(false);
    while (released_ < static_cast<int>(generation)) std::this_thread::yield();
  }
}

TEST_F(SessionRunnerTest, KeepsCopiesForTheGenerationThatItRunsFromWhomeverHasTheStage) {
  PutCheckpointHeader header;
  header.set_job_id("job");
  header.set_generation(3);
  header.set_step(10);
  header.set_stage(1);
  header.set_stages(2);
  header.set_file("state.json");
  header.set_local(true);
  const MemorySource part("{}");
  const absl::Status idle = runner_->KeepCopy(header, part, "");
  EXPECT_EQ(idle.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(idle.message().find("this daemon does not run it"), std::string::npos) << idle;
  Plan plan = MakePlan(3);
  RankPlan* other = plan.add_ranks();
  other->set_node_id("other");
  other->set_stage(1);
  other->set_buddy(1);
  runner_->Start(plan);
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  EXPECT_TRUE(runner_->KeepCopy(header, part, "").ok());
  EXPECT_TRUE(runner_->KeepCopy(header, part, "other").ok());
  EXPECT_EQ(runner_->KeepCopy(header, part, "third").code(), absl::StatusCode::kPermissionDenied);
  header.set_stage(0);
  const absl::Status own = runner_->KeepCopy(header, part, "");
  EXPECT_NE(own.message().find("this daemon is no buddy of that stage"), std::string::npos) << own;
  header.set_stage(1);
  header.set_generation(2);
  EXPECT_EQ(runner_->KeepCopy(header, part, "").code(), absl::StatusCode::kFailedPrecondition);
  Stop(false);
  WaitIdle();
}

TEST_F(SessionRunnerTest, ASessionWithABuddySendsItCopies) {
  Plan plan = MakePlan(1);
  runner_->Start(plan);
  observer_.WaitFor(SessionEvent::RUNNING, 1);
  EXPECT_FALSE(with_buddy_);
  plan.set_generation(2);
  plan.mutable_job()->mutable_checkpoint()->set_local(1);
  plan.add_ranks()->set_node_id("other");
  plan.mutable_ranks(0)->set_buddy(2);
  plan.mutable_ranks(1)->set_address("127.0.0.1:1");
  runner_->Start(plan);
  observer_.WaitFor(SessionEvent::RUNNING, 2);
  EXPECT_TRUE(with_buddy_);
  Stop(false);
  WaitIdle();
}

TEST_F(SessionRunnerTest, RunsAndStopsGracefully) {
  EXPECT_EQ(runner_->running().job_id, "");
  runner_->Start(MakePlan(3));
  EXPECT_EQ(observer_.WaitFor(SessionEvent::RUNNING, 3), "");
  const auto running = runner_->running();
  EXPECT_EQ(running.job_id, "job");
  EXPECT_EQ(running.generation, 3u);
  EXPECT_EQ(running.stage, 0);
  EXPECT_EQ(running.progress, 10);
  EXPECT_EQ(running.step, 1);
  Stop(true);
  EXPECT_EQ(observer_.WaitFor(SessionEvent::FINISHED, 3), "");
  WaitIdle();
  EXPECT_EQ(runner_->running().progress, 10) << "progress never falls";
}

TEST_F(SessionRunnerTest, ATraceIsOfTheSessionThatRuns) {
  TraceSteps trace;
  trace.set_job_id("job");
  trace.set_generation(3);
  trace.set_steps(2);
  runner_->Trace(trace);  // none runs
  runner_->Start(MakePlan(3));
  EXPECT_EQ(observer_.WaitFor(SessionEvent::RUNNING, 3), "");
  runner_->Trace(trace);
  EXPECT_EQ(observer_.traces, 2);
  trace.set_generation(2);
  runner_->Trace(trace);
  trace.set_generation(3);
  trace.set_job_id("another");
  runner_->Trace(trace);
  EXPECT_EQ(observer_.traces, 2);
  Stop(true);
}

TEST_F(SessionRunnerTest, RemembersTheNewestGenerationOfAllJobs) {
  EXPECT_EQ(runner_->newest_generation(), 0u);
  runner_->Start(MakePlan(9));
  observer_.WaitFor(SessionEvent::RUNNING, 9);
  runner_->Start(MakePlan(4, "other"));
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 4), "(none)");
  EXPECT_EQ(runner_->newest_generation(), 9u);
}

TEST_F(SessionRunnerTest, EndsNow) {
  runner_->Start(MakePlan(3));
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  Stop(false, 4);
  EXPECT_EQ(runner_->running().generation, 3u) << "another generation was meant";
  Stop(false, 3);
  EXPECT_EQ(observer_.WaitFor(SessionEvent::FAILED, 3), "asked to");
}

TEST_F(SessionRunnerTest, AnOldGenerationIsRefusedAndTheSameOneIgnored) {
  runner_->Start(MakePlan(3));
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  runner_->Start(MakePlan(3));
  runner_->Start(MakePlan(2));
  const std::string why = observer_.WaitFor(SessionEvent::FAILED, 2);
  EXPECT_NE(why.find("generation 2"), std::string::npos);
  EXPECT_NE(why.find("generation 3"), std::string::npos);
  EXPECT_EQ(runner_->running().generation, 3u);
  Stop(false);
  observer_.WaitFor(SessionEvent::FAILED, 3);
  WaitIdle();
  const size_t before = observer_.count();
  runner_->Start(MakePlan(3));
  EXPECT_GT(observer_.count(), before) << "an ended generation does not come back";
  EXPECT_EQ(runner_->running().job_id, "");
}

TEST_F(SessionRunnerTest, ANewerGenerationTakesThePlaceOfTheRunningOne) {
  runner_->Start(MakePlan(3));
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  runner_->Start(MakePlan(5));
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 3).find("generation 5"), std::string::npos);
  EXPECT_EQ(observer_.WaitFor(SessionEvent::RUNNING, 5), "");
}

TEST_F(SessionRunnerTest, AnotherJobIsRefusedWhileOneRunsAndWaitsForOneThatEnds) {
  runner_->Start(MakePlan(3));
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  runner_->Start(MakePlan(4, "other"));
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 4).find("job job"), std::string::npos);
  Stop(false);
  runner_->Start(MakePlan(6, "other"));
  EXPECT_EQ(observer_.WaitFor(SessionEvent::RUNNING, 6), "");
}

TEST_F(SessionRunnerTest, APlanThatIsStoppedBeforeItsTurnIsToldSo) {
  runner_->Start(MakePlan(3));
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  Stop(true, 3);
  observer_.WaitFor(SessionEvent::FINISHED, 3);
  runner_->Start(MakePlan(4));
  Stop(false, 4);
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 4).find("asked to"), std::string::npos);
}

// A fault of one session ends that one alone.
TEST_F(SessionRunnerTest, WhatCantRunIsToldAndTheNextOneRuns) {
  Plan missing = MakePlan(1);
  missing.mutable_job()->mutable_data()->set_path("missing");
  runner_->Start(missing);
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 1).find("/missing: no such file"),
            std::string::npos);
  Plan not_mine = MakePlan(2);
  not_mine.mutable_ranks(0)->set_node_id("someone else");
  runner_->Start(not_mine);
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 2).find("no rank for this daemon"),
            std::string::npos);
  Plan unmakeable = MakePlan(3);
  unmakeable.mutable_job()->set_name("unmakeable");
  WaitIdle();
  runner_->Start(unmakeable);
  EXPECT_EQ(observer_.WaitFor(SessionEvent::FAILED, 3), "no such model");
  EXPECT_EQ(observer_.StageOf(SessionEvent::FAILED, 3), 0) << "else the coordinator drops it";
  Plan throws = MakePlan(4);
  throws.mutable_job()->set_name("throws");
  WaitIdle();
  runner_->Start(throws);
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 4).find("out of paper"), std::string::npos);
  EXPECT_EQ(observer_.StageOf(SessionEvent::FAILED, 4), 0);
  WaitIdle();
  runner_->Start(MakePlan(5));
  EXPECT_EQ(observer_.WaitFor(SessionEvent::RUNNING, 5), "");
}

TEST_F(SessionRunnerTest, ShutdownEndsTheSessionAndRefusesMore) {
  runner_->Start(MakePlan(3));
  observer_.WaitFor(SessionEvent::RUNNING, 3);
  health_.Ending();
  EXPECT_TRUE(runner_->Shutdown(absl::CancelledError("daemon is ending"), absl::Seconds(30)));
  EXPECT_EQ(observer_.WaitFor(SessionEvent::FAILED, 3), "daemon is ending");
  runner_->Start(MakePlan(9));
  EXPECT_NE(observer_.WaitFor(SessionEvent::FAILED, 9).find("ending"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::daemon
