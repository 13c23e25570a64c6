#include "proto/job/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/job/job_defaults.h"
#include "proto/job/job_limits.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Asked {
  int64_t steps;
  int layers = 0, heads = 0;  // 0: as the model
};

JobSpec Phased(const std::vector<Asked>& phases, bool fill = true) {
  JobSpec job;
  job.set_name("cycle");
  ModelSpec* m = job.mutable_model();
  m->set_layers(12);
  m->set_hidden(96);
  m->set_heads(12);
  m->set_context(32);
  job.mutable_data()->set_path("text.txt");
  RecipeSpec* r = job.mutable_recipe();
  r->set_global_batch(8);
  r->set_micro_batch(2);
  r->set_learning_rate(1e-3);
  for (const Asked& asked : phases) {
    PhaseSpec* p = job.add_phases();
    p->set_steps(asked.steps);
    if (asked.layers > 0) p->set_layers(asked.layers);
    if (asked.heads > 0) p->set_heads(asked.heads);
  }
  if (fill) FillDefaults(&job);
  return job;
}

JobSpec ThreeLevels() { return Phased({{10}, {20, 6, 6}, {40, 3, 3}, {30, 6, 6}, {50}}); }

std::string Refusal(JobSpec job) {
  FillDefaults(&job);
  return absl::StrJoin(JobErrors(job), "\n", [](std::string* out, const absl::Status& s) {
    absl::StrAppend(out, s.message());
  });
}

std::string RefusalOf(const std::vector<Asked>& phases,
                      const std::function<void(JobSpec*)>& change = {}) {
  JobSpec job = Phased(phases, /*fill=*/false);
  if (change) change(&job);
  return Refusal(std::move(job));
}

TEST(Phases, StepsBelongToPhases) {
  const JobSpec job = ThreeLevels();
  EXPECT_EQ(job.recipe().steps(), 150);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  struct Row {
    int64_t step;
    int after, of_checkpoint;
    bool begins;
  };
  for (const Row& row : std::vector<Row>{{0, 0, 0, false},
                                         {9, 0, 0, false},
                                         {10, 1, 0, true},
                                         {11, 1, 1, false},
                                         {30, 2, 1, true},
                                         {70, 3, 2, true},
                                         {100, 4, 3, true},
                                         {101, 4, 4, false},
                                         {150, 4, 4, false}}) {
    EXPECT_EQ(PhaseAfter(job, row.step), row.after) << row.step;
    EXPECT_EQ(PhaseOfCheckpoint(job, row.step), row.of_checkpoint) << row.step;
    EXPECT_EQ(BeginsPhase(job, row.step), row.begins) << row.step;
  }
  EXPECT_EQ(PhaseStart(job, 2), 30);
  EXPECT_EQ(PhaseEnd(job, 2), 70);
}

TEST(Phases, AJobWithoutThemIsOnePhase) {
  JobSpec job = Phased({}, false);
  job.mutable_recipe()->set_steps(7);
  FillDefaults(&job);
  EXPECT_EQ(PhaseEnd(job, 0), 7);
  EXPECT_EQ(PhaseAfter(job, 7), 0);
  EXPECT_FALSE(BeginsPhase(job, 0));
  EXPECT_EQ(PhaseJob(job, 0).SerializeAsString(), job.SerializeAsString());
  EXPECT_TRUE(PhaseEndsNeeded(job, 5, 5).empty());
  EXPECT_EQ(job.recipe().warmup_steps(), 0);
}

TEST(Phases, TransitionsOfThreeLevels) {
  const JobSpec job = ThreeLevels();
  struct Row {
    int phase;
    PhaseTransition::Kind kind;
    double alpha;
    int mixed;
  };
  for (const Row& row : std::vector<Row>{{1, PhaseTransition::kCoalesce, 1, -1},
                                         {2, PhaseTransition::kCoalesce, 1, -1},
                                         {3, PhaseTransition::kDecoalesce, 0.25, 1},
                                         {4, PhaseTransition::kDecoalesce, 0.25, 0}}) {
    const PhaseTransition t = TransitionInto(job, row.phase);
    EXPECT_EQ(t.kind, row.kind) << row.phase;
    EXPECT_EQ(t.alpha, row.alpha) << row.phase;
    EXPECT_EQ(t.mixed, row.mixed) << row.phase;
  }
}

TEST(Phases, GrowthAloneMixesWithNothing) {
  const JobSpec job = Phased({{10, 3, 3}, {10}});
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  EXPECT_EQ(job.phases(1).alpha(), 1);
  EXPECT_EQ(TransitionInto(job, 1).mixed, -1);
}

TEST(Phases, WhatATransitionNeedsIsKept) {
  const JobSpec job = ThreeLevels();
  const std::vector<std::pair<int64_t, std::vector<int64_t>>> rows = {
      {5, {}},    {10, {10}},       {11, {10}}, {30, {10, 30}}, {31, {10, 30}}, {70, {10, 30, 70}},
      {71, {10}}, {100, {10, 100}}, {101, {}}};
  for (const auto& [newest, kept] : rows)
    EXPECT_EQ(PhaseEndsNeeded(job, newest, newest), kept) << newest;
  // Older checkpoints are kept too, and a run may go on from one of them.
  EXPECT_EQ(PhaseEndsNeeded(job, 90, 110), (std::vector<int64_t>{10, 100}));
  EXPECT_EQ(PhaseEndsNeeded(job, 100, 110), (std::vector<int64_t>{10, 100}));
  EXPECT_EQ(PhaseEndsNeeded(job, 60, 90), (std::vector<int64_t>{10, 30, 70}));
}

TEST(Phases, EachHasAModelAndARecipeOfItsOwn) {
  JobSpec job = Phased({{10}, {20, 6, 4}, {50}}, false);
  job.mutable_phases(1)->set_learning_rate(4e-3);
  job.mutable_phases(1)->set_schedule("linear");
  job.mutable_strategy()->set_stages(8);
  job.mutable_model()->set_init_from("/models/gpt");
  FillDefaults(&job);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  const JobSpec first = PhaseJob(job, 0), small = PhaseJob(job, 1), last = PhaseJob(job, 2);
  EXPECT_EQ(first.model().hidden(), 96);
  EXPECT_EQ(first.model().init_from(), "/models/gpt");
  EXPECT_EQ(first.recipe().steps(), 10);
  EXPECT_EQ(first.strategy().stages(), 8);
  EXPECT_EQ(small.model().hidden(), 32);
  EXPECT_EQ(small.model().heads(), 4);
  EXPECT_EQ(small.model().layers(), 6);
  EXPECT_EQ(small.model().init_from(), "/models/gpt") << "its tokenizer goes into exports";
  EXPECT_EQ(small.recipe().steps(), 30);
  EXPECT_EQ(small.recipe().learning_rate(), 4e-3);
  EXPECT_DOUBLE_EQ(small.recipe().min_learning_rate(), 4e-4);
  EXPECT_EQ(small.recipe().warmup_steps(), 1);
  EXPECT_EQ(small.recipe().schedule(), "linear");
  EXPECT_EQ(small.strategy().stages(), 0) << "as many as pay";
  EXPECT_TRUE(small.phases().empty());
  EXPECT_EQ(last.strategy().stages(), 8);
  EXPECT_EQ(last.recipe().steps(), 80);
  EXPECT_EQ(last.recipe().schedule(), "cosine");
}

TEST(Phases, FewerStagesAreOnTheFirstDaemonsOfEachReplica) {
  JobSpec job = Phased({{10}, {20, 1, 6}, {50}}, false);
  for (const char* node : {"a", "b", "c", "d"}) job.mutable_strategy()->add_nodes(node);
  job.mutable_strategy()->set_replicas(2);
  FillDefaults(&job);
  const JobSpec small = PhaseJob(job, 1);
  EXPECT_EQ(absl::StrJoin(small.strategy().nodes(), " "), "a c");
  EXPECT_EQ(absl::StrJoin(PhaseJob(job, 2).strategy().nodes(), " "), "a b c d");
}

TEST(Phases, WhatGrowsBackIsUndoneAsItWasMade) {
  JobSpec job = Phased({{10}, {20, 6, 6}, {50}}, false);
  job.mutable_phases(1)->set_width_groups("adjacent");
  job.mutable_phases(1)->set_depth_groups("strided");
  FillDefaults(&job);
  EXPECT_EQ(job.phases(2).width_groups(), "adjacent");
  EXPECT_EQ(job.phases(2).depth_groups(), "strided");
  EXPECT_FALSE(job.phases(0).has_width_groups());
  EXPECT_FALSE(job.phases(1).has_alpha());
  const JobSpec usual = Phased({{10}, {20, 6, 6}, {50}});
  EXPECT_EQ(usual.phases(2).width_groups(), "strided");
  EXPECT_EQ(usual.phases(2).depth_groups(), "adjacent");
}

TEST(Phases, DefaultsFilledTwiceAreTheSame) {
  JobSpec job = ThreeLevels();
  const std::string once = job.SerializeAsString();
  FillDefaults(&job);
  EXPECT_EQ(job.SerializeAsString(), once);
}

TEST(Phases, Refusals) {
  const std::vector<Asked> good = {{10}, {20, 6, 6}, {50}};
  EXPECT_EQ(RefusalOf(good), "");
  EXPECT_EQ(RefusalOf({{10}, {20, 5, 6}, {50}}),
            "phases[1].layers: '5' is not allowed; it must be a divisor of 12, as the phase before "
            "has\nphases[2].layers: '12' is not allowed; it must be a multiple of 5, as the phase "
            "before has");
  EXPECT_EQ(RefusalOf({{10, 4, 4}, {20, 6, 12}}),
            "phases[1].layers: '6' is not allowed; it must be a multiple of 4, as the phase before "
            "has");
  EXPECT_EQ(RefusalOf({{10}, {20, 6, 5}}),
            "phases[1].heads: '5' is not allowed; it must be a divisor of 12, as the phase before "
            "has");
  EXPECT_EQ(RefusalOf({{10, 6, 6}, {20, 12, 3}}),
            "phases[1]: it is deeper and narrower, or wider and flatter, than the phase before (12 "
            "layers x 24 after 6 layers x 48): a phase is smaller or larger in both");
  EXPECT_EQ(RefusalOf({{10}, {20}}),
            "phases[1]: it has the shape of the phase before (12 layers x 96): make one phase of "
            "both");
  EXPECT_EQ(RefusalOf({{10}, {0, 6, 6}, {50}}),
            "phases[1].steps: '0' is not allowed; it must be from 1 to 1000000000");
  const auto with = [&](const std::function<void(JobSpec*)>& change) {
    return RefusalOf(good, change);
  };
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_phases(2)->set_alpha(1.5); }),
            "phases[2].alpha: '1.5' is not allowed; it must be from 0 to 1");
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_phases(1)->set_alpha(0.5); }),
            "phases[1].alpha: the phase before is no smaller one, so nothing is mixed; leave it "
            "out");
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_phases(0)->set_alpha(0.5); }),
            "phases[0].alpha: no phase goes before the first one, so nothing is made of it; leave "
            "it out");
  EXPECT_EQ(RefusalOf({{10, 6, 6}, {50}}, [](JobSpec* j) { j->mutable_phases(1)->set_alpha(0.5); }),
            "phases[1].alpha: '0.5' is not allowed; it must be 1: no phase before has this shape, "
            "so there is nothing to mix with");
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_phases(1)->set_depth_groups("odd"); }),
            "phases[1].depth_groups: 'odd' is not allowed; it must be 'strided', 'adjacent'\n"
            "phases[2].depth_groups: 'odd' is not allowed; it must be 'strided', 'adjacent'");
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_recipe()->set_steps(90); }),
            "recipe.steps: 90, and the steps of the phases sum to 80: leave it out");
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_recipe()->set_warmup_steps(2); }),
            "recipe.warmup_steps: with phases each has its own schedule: give warmup_steps in "
            "phases");
  EXPECT_EQ(with([](JobSpec* j) { j->mutable_model()->set_tied(false); }),
            "model.tied: false does not go with phases: only a model whose head shares the token "
            "embedding's weights is made smaller and larger");
  EXPECT_EQ(with([](JobSpec* j) {
              for (int n : {6, 6}) j->mutable_strategy()->add_layers_per_stage(n);
            }),
            "strategy.layers_per_stage: is a cut of 12 layers, and phases[1] has 6: leave it out, "
            "or give strategy.stages");
  EXPECT_EQ(with([](JobSpec* j) {
              j->mutable_compression()->set_forward("autoencoder(64)");
              j->mutable_compression()->set_evaluation("bf16");
            }),
            "phases[1]: compression.forward: 'autoencoder(64)' is not allowed; it must be an "
            "autoencoder of at most model.hidden (48) channels");
  JobSpec many = Phased(std::vector<Asked>(kMaxPhases + 1, Asked{1}), false);
  EXPECT_EQ(Refusal(many), "phases: 65 of them; at most 64 are allowed");
}

TEST(Phases, NumbersThatNoIntHoldsAreRefused) {
  EXPECT_THAT(RefusalOf({{INT64_MAX}, {INT64_MAX, 6, 6}}),
              HasSubstr("phases[0].steps: '922337203685477580"));
  EXPECT_THAT(RefusalOf({{10}, {20, 6, 6}},
                        [](JobSpec* j) {
                          j->mutable_model()->set_hidden(INT32_MAX);
                          j->mutable_model()->set_heads(1);
                          j->mutable_phases(1)->set_heads(kMaxHeads);
                        }),
              HasSubstr("model.hidden: '2147483647' is not allowed"));
  JobSpec wide = Phased({{10, 3, 3}, {10}}, false);
  wide.mutable_model()->set_heads(1);
  wide.mutable_model()->set_hidden(INT32_MAX);
  wide.mutable_phases(1)->set_heads(INT32_MAX);
  wide.mutable_phases(1)->set_steps(INT64_MAX);
  FillDefaults(&wide);
  EXPECT_EQ(PhaseJob(wide, 1).model().hidden(), kMaxHidden + 1) << "too wide, whatever it is";
  EXPECT_EQ(PhaseShapeWords(wide, 1), "12 layers x 4611686014132420609");
}

// A phase has layers and heads of model.*, and rates of recipe.*: each said "missing", too.
TEST(Phases, WhatTheJobLeavesOutIsSaidOnceAndThere) {
  JobSpec job = Phased({{10}, {20, 6, 6}, {30}}, /*fill=*/false);
  job.mutable_model()->clear_layers();
  job.mutable_model()->clear_heads();
  job.mutable_recipe()->clear_learning_rate();
  job.mutable_recipe()->set_schedule("cosin");
  const std::string errors = Refusal(job);
  EXPECT_THAT(errors, HasSubstr("model.layers: '0'"));
  EXPECT_THAT(errors, HasSubstr("model.heads: '0'"));
  EXPECT_THAT(errors, HasSubstr("recipe.learning_rate: '0'"));
  EXPECT_THAT(errors, HasSubstr("recipe.schedule: 'cosin'"));
  EXPECT_THAT(errors, Not(HasSubstr("phases["))) << errors;
  job.mutable_phases(1)->set_layers(-6);
  job.mutable_phases(1)->set_learning_rate(-0.003);
  const std::string own = Refusal(job);
  EXPECT_THAT(own, HasSubstr("phases[1].layers: '-6'"));
  EXPECT_THAT(own, HasSubstr("phases[1].learning_rate: '-0.003'"));
  EXPECT_THAT(own, Not(HasSubstr("min_learning_rate"))) << "a tenth of it, from 0 to less than 0";
}

TEST(Phases, StepsBeyondAllBoundsAreNamedAsWritten) {
  const auto steps = [](int64_t first, int64_t second) {
    return RefusalOf({{first}, {second, 6, 6}});
  };
  EXPECT_EQ(steps(10, std::numeric_limits<int64_t>::max())
                .find("phases[1].steps: '9223372036854775807' is not allowed; it must be from 1 to "
                      "1000000000"),
            0u);
  EXPECT_EQ(steps(kMaxSteps, 1),
            "phases: their steps sum to 1000000001; at most 1000000000 are allowed");
  EXPECT_EQ(steps(kMaxSteps - 1, 1), "");
}

}  // namespace
}  // namespace isthmus
