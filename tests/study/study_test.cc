// Whole studies with the fake stage, whose arithmetic fp16 holds exactly.
#include "worker/study/study.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/job_defaults.h"
#include "tests/temp_directory.h"
#include "tests/worker/fake_stage.h"
#include "worker/study/cell.h"
#include "worker/study/stage_line.h"
#include "worker/study/subset_corpus.h"

namespace isthmus::study {
namespace {

using testing::HasSubstr;

JobSpec FakeJob() {
  JobSpec job;
  job.set_name("fake");
  ModelSpec* m = job.mutable_model();
  m->set_layers(6);
  m->set_hidden(4);
  m->set_heads(1);
  m->set_context(3);
  m->set_vocabulary(11);
  job.mutable_data()->set_path("text");
  job.mutable_data()->set_format("tokens");
  RecipeSpec* r = job.mutable_recipe();
  r->set_steps(6);
  r->set_global_batch(5);
  r->set_micro_batch(2);
  r->set_learning_rate(1e-3);
  r->set_eval_samples(3);
  job.mutable_strategy()->set_stages(3);
  FillDefaults(&job);
  return job;
}

class StudyTest : public testing::Test {
 protected:
  StudyTest() {
    options_.out = out_.path();
    options_.job = FakeJob();
    options_.grid.settings = {*ParseSetting("fp16 / fp16")};
    options_.grid.boundaries = {Where::kLate, Where::kAll};
    options_.grid.seeds = {1, 2};
    options_.passes = 2;
    options_.rank_samples = 0;
    SetStages(nullptr);
  }

  void SetStages(worker::StageHook hook) {
    options_.make_stage = [this, make = worker::FakeStages(std::move(hook))](const Plan& plan,
                                                                             int stage) {
      ++made_;
      return make(plan, stage);
    };
  }
  absl::StatusOr<StudyResult> Run() {
    made_ = 0;
    return RunStudy(options_, corpus_, [this](const Progress& p) { last_ = p; });
  }
  std::string Read(const std::string& name) {
    std::ifstream in(options_.out + "/" + name);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  const worker::FakeCorpus corpus_{40, 9, 3, 11};
  const TempDirectory out_;
  StudyOptions options_;
  std::atomic<int> made_{0};
  Progress last_;
};

TEST_F(StudyTest, AnExactCodecTrainsAsNoneDoesWithHalfTheBytes) {
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->rows.size(), 3u);
  const Row &none = result->rows[0], &late = result->rows[1], &all = result->rows[2];
  EXPECT_EQ(none.setting, "none");
  EXPECT_EQ(late.where, "late");
  for (const Row& row : result->rows) {
    EXPECT_EQ(row.seeds, 2);
    EXPECT_EQ(row.difference, 0) << row.setting;
    EXPECT_EQ(row.validation, none.validation);
    // Two boundaries, both ways, 5 samples x 3 x 4 elements of 4 bytes.
    EXPECT_EQ(row.raw_bytes, 4 * 5 * 3 * 4 * 4);
    EXPECT_GT(row.step_s[0], row.step_s[2]);
  }
  EXPECT_GT(none.wire_bytes - late.wire_bytes, 0.9 * 480 / 2);
  EXPECT_GT(late.wire_bytes - all.wire_bytes, 0.9 * 480 / 2);
  EXPECT_EQ(last_.done, 6u);
  EXPECT_EQ(last_.cells, 6u);
  EXPECT_THAT(Read("study.csv"), HasSubstr("\"fp16 / fp16\",late,2,"));
  EXPECT_THAT(Read("study.svg"), HasSubstr("</svg>"));
}

TEST_F(StudyTest, ASecondRunTrainsNothingAndMoreSeedsOnlyTheirCells) {
  ASSERT_TRUE(Run().ok());
  const std::string csv = Read("study.csv");
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(made_, 0);
  EXPECT_EQ(Read("study.csv"), csv);
  options_.grid.seeds.push_back(3);
  const auto result = Run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(made_, 2 * 3 * 3);  // three cells of three stages, to train and to validate
  EXPECT_EQ(result->rows[2].seeds, 3);
  options_.job.mutable_recipe()->set_learning_rate(2e-3);  // another job: nothing fits
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(last_.ran, 9u);
}

TEST_F(StudyTest, GoesOnWhereItStopped) {
  // The third cell dies of something that ends the program.
  int cells = 0;
  SetStages(
      [&](int stage, int64_t step, const std::string& op) -> absl::StatusOr<worker::StageFault> {
        if (stage == 2 && step == 0 && op == "apply" && ++cells == 3)
          return absl::ResourceExhaustedError("out of memory");
        return worker::StageFault();
      });
  const auto stopped = Run();
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kResourceExhausted) << stopped.status();
  SetStages(nullptr);
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(last_.ran, 4u);
  EXPECT_EQ(result->rows.size(), 3u);
}

TEST_F(StudyTest, ACellThatFailsIsNamedAndTriedAgain) {
  int cells = 0;
  SetStages(
      [&](int stage, int64_t step, const std::string& op) -> absl::StatusOr<worker::StageFault> {
        if (stage == 0 && step == 0 && op == "apply" && ++cells == 2)
          return absl::InternalError("the machine hiccups");
        return worker::StageFault();
      });
  auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->failed, 1u);
  EXPECT_THAT(RenderTable(result->rows, {}), HasSubstr("failed: "));
  EXPECT_THAT(RenderTable(result->rows, {}), HasSubstr("the machine hiccups"));
  SetStages(nullptr);
  result = Run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(last_.ran, 1u);
  EXPECT_EQ(result->failed, 0u);
}

TEST_F(StudyTest, WhatCanNotRunIsRefusedBeforeAnythingRuns) {
  const auto error = [&] { return std::string(Run().status().message()); };
  options_.passes = 0.1;
  EXPECT_THAT(error(), HasSubstr("40 training samples"));
  options_.passes = 2;
  options_.job.mutable_strategy()->set_stages(1);
  EXPECT_THAT(error(), HasSubstr("2 stages or more"));
  options_.job.mutable_strategy()->set_stages(9);
  EXPECT_THAT(error(), HasSubstr("strategy.stages: '9'"));
  options_.job.mutable_strategy()->set_stages(3);
  options_.job.mutable_model()->set_init_from("gpt2");
  EXPECT_THAT(error(), HasSubstr("model.init_from"));
  options_.job = FakeJob();
  options_.job.add_phases()->set_steps(10);
  EXPECT_THAT(error(), HasSubstr("phases: a study compares codecs on one model"));
  options_.job = FakeJob();
  options_.grid.settings = {*ParseSetting("none / delta(quant(4))")};
  EXPECT_THAT(error(), HasSubstr("compression.backward: 'delta(quant(4))' is not allowed"));
  options_.grid.settings = {*ParseSetting("predict(fp16)")};
  options_.grid.boundaries = {Where::kLate};
  EXPECT_THAT(error(), HasSubstr("no setting can run: predict(fp16) / none at late: "));
  EXPECT_EQ(made_, 0);
}

TEST_F(StudyTest, ACombinationThatCanNotRunHasARowThatSaysWhy) {
  options_.grid.settings = {*ParseSetting("predict(fp16)")};
  options_.grid.boundaries = {Where::kAll, Where::kLate};
  options_.grid.seeds = {1};
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->rows.size(), 3u);
  EXPECT_THAT(result->rows[2].note, HasSubstr("token ids"));
  EXPECT_EQ(result->failed, 0u);
}

TEST_F(StudyTest, TheExplicitCutOfTheJobIsKept) {
  for (int n : {1, 4, 1}) options_.job.mutable_strategy()->add_layers_per_stage(n);
  const auto plan = MakeCellPlan(options_.job, Cell(), 10);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ranks(1).first_layer(), 1);
  EXPECT_EQ(plan->ranks(1).end_layer(), 5);
  EXPECT_EQ(plan->links_size(), 3);
}

TEST_F(StudyTest, ComputeOfEachStageIsMeasured) {
  const Plan plan = *MakeCellPlan(options_.job, Cell(), 10);
  auto line = StageLine::Make(plan, options_.make_stage, corpus_);
  ASSERT_TRUE(line.ok()) << line.status();
  const auto cost = line->MeasureCompute(2);
  ASSERT_TRUE(cost.ok()) << cost.status();
  ASSERT_EQ(cost->forward_s.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_GT(cost->forward_s[i] * cost->backward_s[i], 0);
}

TEST(SubsetCorpus, KeepsTheFirstSamplesAndAllOfValidation) {
  const worker::FakeCorpus all(40, 9, 3, 11);
  const SubsetCorpus some(all, 15);
  EXPECT_EQ(some.train_samples(), 15);
  EXPECT_EQ(some.validation_samples(), 9);
  uint32_t a[3], b[3], targets[3];
  for (const auto& [id, of_all] : {std::pair(14, 14), {15, 40}, {23, 48}}) {
    ASSERT_TRUE(some.Read(id, a, targets).ok());
    ASSERT_TRUE(all.Read(of_all, b, targets).ok());
    EXPECT_THAT(a, testing::ElementsAreArray(b)) << id;
  }
  EXPECT_EQ(SubsetCorpus(all, 99).train_samples(), 40);
}

TEST(Progress, FitsTheTerminalAndTellsWhatIsLeft) {
  Progress p;
  p.done = 5;
  p.cells = 10;
  p.to_run = 9;
  p.ran = 4;
  p.cell = "quant(4) / none, all, seed 1";
  p.step = 10;
  p.steps = 40;
  EXPECT_THAT(ProgressLine(p, 85, 200), HasSubstr("5/10 cells  ETA 1:35"));
  EXPECT_THAT(ProgressLine(p, 85, 200), HasSubstr("[##########.."));
  EXPECT_EQ(ProgressLine(p, 85, 30).size(), 30u);
  EXPECT_THAT(ProgressLine(Progress(), 0, 200), HasSubstr("ETA -"));
}

}  // namespace
}  // namespace isthmus::study
