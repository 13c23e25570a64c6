// Resumes of jobs with phases that were edited.
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/run_changes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/data/data_position.h"
#include "proto/job/job_defaults.h"
#include "proto/job/phases.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

using Change = std::function<void(JobSpec*)>;

JobSpec Cycle(const Change& change = {}) {
  JobSpec spec = MakeJob();
  spec.mutable_model()->set_layers(4);
  spec.mutable_model()->set_heads(4);
  spec.mutable_model()->set_hidden(64);
  RecipeSpec* r = spec.mutable_recipe();
  r->clear_steps();
  r->clear_warmup_steps();
  r->clear_min_learning_rate();
  r->set_learning_rate(1e-3);
  for (int64_t steps : {10, 20, 30}) spec.add_phases()->set_steps(steps);
  spec.mutable_phases(1)->set_layers(2);
  spec.mutable_phases(1)->set_heads(2);
  if (change) change(&spec);
  FillDefaults(&spec);
  EXPECT_TRUE(ValidateJob(spec).ok()) << ValidateJob(spec);
  return spec;
}

// As a session of its phase wrote it.
CheckpointState StateAt(int64_t step, const JobSpec& job = Cycle()) {
  CheckpointState state;
  state.step = step;
  state.job = PhaseJob(job, PhaseOfCheckpoint(job, step));
  *state.job->mutable_phases() = job.phases();
  state.position = Advance(DataPosition(), 1000, job.recipe().global_batch(), step);
  state.corpus_contents = 0xaa;
  return state;
}

absl::StatusOr<Resume> Compare(int64_t step, const Change& change) {
  return CompareRuns(StateAt(step), JobSpec(), Cycle(change), {1000, 0xaa});
}

std::string Rows(int64_t step, const Change& change) {
  const auto resume = Compare(step, change);
  if (!resume.ok()) return std::string(resume.status().message());
  std::string rows;
  for (const FieldChange& c : resume->changes)
    absl::StrAppend(&rows, rows.empty() ? "" : "\n", c.alters_run() ? "* " : "", c.field(), ": ",
                    c.before(), " -> ", c.after());
  return rows;
}

TEST(PhaseChanges, TheSameJobChangesNothing) {
  for (int64_t step : {1, 9, 10, 11, 30, 31, 60}) EXPECT_EQ(Rows(step, {}), "") << step;
  EXPECT_EQ(Compare(30, {})->data->samples(), 30 * Cycle().recipe().global_batch());
}

TEST(PhaseChanges, LaterPhasesWantAWord) {
  EXPECT_EQ(Rows(10, [](JobSpec* j) { j->mutable_phases(2)->set_alpha(0.5); }),
            "* phases[2].alpha: 0.25 -> 0.5");
  EXPECT_EQ(Rows(15, [](JobSpec* j) { j->mutable_phases(2)->set_steps(60); }),
            "* phases[2].steps: 30 -> 60\n* phases[2].warmup_steps: 1 -> 3");
  // With one rate all along a longer phase trains as before, but the next one begins elsewhere.
  const auto constant = [](JobSpec* j) {
    for (PhaseSpec& phase : *j->mutable_phases()) {
      phase.set_schedule("constant");
      phase.set_warmup_steps(1);
    }
  };
  const auto longer = [&](int phase) {
    const auto resume = CompareRuns(StateAt(phase == 1 ? 15 : 35, Cycle(constant)), JobSpec(),
                                    Cycle([&](JobSpec* j) {
                                      constant(j);
                                      j->mutable_phases(phase)->set_steps(40);
                                    }),
                                    {1000, 0xaa});
    return CheckAccepted(resume.value().changes, 15);
  };
  EXPECT_THAT(std::string(longer(1).message()),
              HasSubstr("phases[1].steps: 20 -> 40 (phase 3 begins after step 50, not 30)"));
  EXPECT_TRUE(longer(2).ok()) << "no phase depends on the last one";
  EXPECT_EQ(Rows(15, [](JobSpec* j) { j->mutable_phases()->RemoveLast(); }),
            "* phases[2]: 30 steps of 4 layers x 64 -> none");
  const auto resume = Compare(15, [](JobSpec* j) { j->mutable_phases(2)->set_steps(60); });
  EXPECT_THAT(std::string(CheckAccepted(resume->changes, 15).message()),
              HasSubstr("phases[2].steps: 30 -> 60"));
}

TEST(PhaseChanges, TheRateOfThePhaseThatGoesOnIsTold) {
  EXPECT_EQ(Rows(20, [](JobSpec* j) { j->mutable_phases(1)->set_learning_rate(2e-3); }),
            "* phases[1].learning_rate: 0.001 -> 0.002\n"
            "* phases[1].min_learning_rate: 0.0001 -> 0.0002\n"
            "* learning rate at step 21: 0.00055 -> 0.0011");
  // Of a phase that is done it makes no difference.
  EXPECT_EQ(Rows(30, [](JobSpec* j) { j->mutable_phases(1)->set_learning_rate(2e-3); }),
            "phases[1].learning_rate: 0.001 -> 0.002\n"
            "phases[1].min_learning_rate: 0.0001 -> 0.0002");
  EXPECT_EQ(Rows(30, [](JobSpec* j) { j->mutable_phases(0)->set_learning_rate(2e-3); }), "");
}

TEST(PhaseChanges, APhaseMayGoOnForLonger) {
  EXPECT_THAT(Rows(30, [](JobSpec* j) { j->mutable_phases(1)->set_steps(40); }),
              HasSubstr("* phases[1].steps: 20 -> 40"));
}

TEST(PhaseChanges, WhatACheckpointIsMadeOfStays) {
  EXPECT_EQ(
      Rows(15, [](JobSpec* j) { j->mutable_phases(0)->set_steps(12); }),
      "resume: phases[0].steps is 12 and was 10 in the run that wrote checkpoint 15, which was "
      "trained so: put it back, or submit a new job");
  EXPECT_THAT(Rows(15, [](JobSpec* j) { j->mutable_phases(1)->set_layers(1); }),
              HasSubstr("resume: phases[1].layers is 1 and was 2"));
  EXPECT_THAT(Rows(45, [](JobSpec* j) { j->mutable_phases(2)->set_alpha(0.5); }),
              HasSubstr("resume: phases[2].alpha is 0.5 and was 0.25"));
  EXPECT_THAT(Rows(15, [](JobSpec* j) { j->mutable_phases(1)->set_steps(3); }),
              HasSubstr("resume: phases[1].steps is 3 and was 20 in the run that wrote checkpoint "
                        "15, which has made 5 steps of that phase: make it 5 or more, "));
  EXPECT_THAT(Rows(45, [](JobSpec* j) { j->mutable_phases()->RemoveLast(); }),
              HasSubstr("resume: phases: the job has 2 phases now, and checkpoint 45 is of phase 3 "
                        "of 3 of the run that wrote it (30 steps of 4 layers x 64): put that "
                        "phase back, "));
  EXPECT_THAT(Rows(15,
                   [](JobSpec* j) {
                     j->clear_phases();
                     j->mutable_recipe()->set_steps(60);
                   }),
              HasSubstr("had phases, and the job has none now"));
}

}  // namespace
}  // namespace isthmus::coordinator
