// Weights that a phase starts with and that change after they were looked at: who asks himself has
// them looked at again.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "coordinator/service/phase_weights.h"
#include "gtest/gtest.h"
#include "proto/job/job_defaults.h"
#include "tests/coordinator/planner/topology.h"
#include "tests/coordinator/store/checkpoint_store_fixture.h"

namespace isthmus::coordinator {
namespace {

class PhaseWeightsAgainTest : public CheckpointStoreTest {
 protected:
  PhaseWeightsAgainTest() : store_(Open()), cores_({}, {}, {}, {}) {
    EXPECT_TRUE(PutAll(store_.get(), 5, 1));
    JobSpec job = MakeJob();
    RecipeSpec* r = job.mutable_recipe();
    r->clear_steps();
    r->clear_warmup_steps();
    r->clear_min_learning_rate();
    for (int i = 0; i < 2; ++i) job.add_phases()->set_steps(5);
    job.mutable_phases(1)->set_layers(3);
    FillDefaults(&job);
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
    start_.spec = job;
    start_.job_id = "job-1";
    start_.start_step = 5;
    start_.from_checkpoint = true;
    weights_ = std::make_unique<PhaseWeights>(
        &cores_, store_.get(), [this](const MultilevelCall& call, const Cancelled&) {
          std::filesystem::create_directory(call.words[2]);
          std::ofstream(call.words[2] + "/model.safetensors", std::ios::binary)
              << Tensor("w", static_cast<float>(++made_));
          return absl::OkStatus();
        });
    weights_->Start();
  }
  ~PhaseWeightsAgainTest() override { weights_->Stop(); }

  bool Ready(StartRequest::Kind kind) {
    start_.kind = kind;
    return weights_->Ready(start_);
  }
  // As a job that waits asks.
  ::testing::AssertionResult BecomesReady() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!Ready(StartRequest::kPending)) {
      if (std::chrono::steady_clock::now() > until) return ::testing::AssertionFailure();
      MutexLock lock(&cores_.mutex);
      cores_.changed.WaitUntil(&cores_.mutex,
                               std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    }
    return ::testing::AssertionSuccess();
  }
  void Damage() {
    std::ofstream(JobDir() + "/step-00000005/start/weights.safetensors", std::ios::app) << "x";
  }

  const std::unique_ptr<CheckpointStore> store_;
  Cores cores_;
  std::atomic<int> made_{0};
  StartRequest start_;
  std::unique_ptr<PhaseWeights> weights_;
};

TEST_F(PhaseWeightsAgainTest, AUsersSubmitLooksAgain) {
  EXPECT_FALSE(Ready(StartRequest::kResume)) << "nothing is there yet";
  ASSERT_TRUE(BecomesReady());
  EXPECT_EQ(made_, 1);
  Damage();
  EXPECT_TRUE(Ready(StartRequest::kPending)) << "a job that waits asks often";
  EXPECT_FALSE(Ready(StartRequest::kResume)) << "it may be another one since";
  ASSERT_TRUE(BecomesReady());
  EXPECT_EQ(made_, 2);
  EXPECT_EQ(Value(store_.get(), 5, "w", "start").value(), 2);
  EXPECT_FALSE(Ready(StartRequest::kResume));
  ASSERT_TRUE(BecomesReady());
  EXPECT_EQ(made_, 2) << "it was sound";
}

}  // namespace
}  // namespace isthmus::coordinator
