#include "coordinator/core/run_changes.h"

#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/data/data_position.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

// 100 steps of a cosine from 3e-3 down to 3e-4, of which `step` are done.
CheckpointState StateAt(int64_t step) {
  CheckpointState state;
  state.step = step;
  state.job = MakeJob();
  RecipeSpec* r = state.job->mutable_recipe();
  r->set_steps(100);
  r->set_learning_rate(3e-3);
  r->set_min_learning_rate(3e-4);
  r->set_warmup_steps(5);
  state.position = Advance(DataPosition(), 1000, r->global_batch(), step);
  state.corpus_contents = 0xaa;
  return state;
}

std::map<std::string, FieldChange> Changes(const CheckpointState& state, const JobSpec& job,
                                           const DataNow& now = {1000, 0xaa}) {
  const auto resume = CompareRuns(state, JobSpec(), job, now);
  EXPECT_TRUE(resume.ok()) << resume.status();
  std::map<std::string, FieldChange> by_field;
  for (const FieldChange& change : resume->changes) {
    EXPECT_TRUE(by_field.emplace(change.field(), change).second) << change.field();
  }
  return by_field;
}

TEST(RunChanges, TheSameJobChangesNothing) {
  CheckpointState state = StateAt(60);
  JobSpec job = *state.job;
  job.mutable_compression()->set_buffer_memory_bytes(1);  // the planner's
  job.mutable_compression()->set_gradients("auto");
  state.job->mutable_compression()->set_gradients("quant(4, token, symmetric)");
  state.job->mutable_strategy()->clear_look_ahead();  // of a version that did not know it
  const auto resume = CompareRuns(state, JobSpec(), job, {1000, 0xaa});
  EXPECT_TRUE(resume->changes.empty());
  EXPECT_EQ(resume->data->samples(), 60 * 32);
  EXPECT_TRUE(CheckAccepted(resume->changes, 60).ok());
}

// A cosine of 100 steps that ended at 3e-4 would go on at 2.98e-3.
TEST(RunChanges, MoreStepsOfACosineAreAnotherTraining) {
  const CheckpointState state = StateAt(100);
  JobSpec job = *state.job;
  job.mutable_recipe()->set_steps(1000);
  job.mutable_recipe()->set_warmup_steps(50);
  auto changes = Changes(state, job);
  EXPECT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes["recipe.steps"].before(), "100");
  EXPECT_EQ(changes["recipe.steps"].after(), "1000");
  EXPECT_TRUE(changes["recipe.steps"].alters_run());
  EXPECT_THAT(changes["recipe.warmup_steps"].consequence(), HasSubstr("warmup_steps: 5 keeps it"));
  const FieldChange& rate = changes["learning rate at step 101"];
  EXPECT_EQ(rate.before(), "0.0003");
  EXPECT_EQ(rate.after(), "0.002982");
  EXPECT_TRUE(rate.alters_run());
  EXPECT_EQ(rate.consequence(), "9.94 times what the run had come to at its end");
}

TEST(RunChanges, MoreStepsAtAConstantRateAreTheSameTraining) {
  CheckpointState state = StateAt(100);
  state.job->mutable_recipe()->set_schedule("constant");
  JobSpec job = *state.job;
  job.mutable_recipe()->set_steps(1000);
  job.mutable_recipe()->set_warmup_steps(50);  // over by then
  auto changes = Changes(state, job);
  EXPECT_EQ(changes.size(), 2u);
  EXPECT_FALSE(changes["recipe.steps"].alters_run());
  EXPECT_FALSE(changes["recipe.warmup_steps"].alters_run());
  job.mutable_recipe()->set_warmup_steps(200);  // not over
  EXPECT_TRUE(Changes(state, job)["recipe.warmup_steps"].alters_run());
}

// The rate at the next step is the same, those after it are not.
TEST(RunChanges, ARateThatDiffersOnlyLaterAltersTheRun) {
  const CheckpointState state = StateAt(2);  // in the warm-up
  JobSpec job = *state.job;
  job.mutable_recipe()->set_schedule("linear");
  auto changes = Changes(state, job);
  EXPECT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes["recipe.schedule"].alters_run());
  job.mutable_recipe()->set_schedule("cosine");
  job.mutable_recipe()->set_min_learning_rate(0);
  EXPECT_TRUE(Changes(state, job)["recipe.min_learning_rate"].alters_run());
}

TEST(RunChanges, EachFieldOfTheTrainingAltersIt) {
  const CheckpointState state = StateAt(60);
  JobSpec job = *state.job;
  RecipeSpec* r = job.mutable_recipe();
  r->set_global_batch(64);
  r->set_beta1(0.8);
  r->set_beta2(0.99);
  r->set_epsilon(1e-9);
  r->set_weight_decay(0);
  r->set_clip_norm(0);
  r->set_learning_rate(3e-2);
  job.set_seed(9);
  job.mutable_data()->set_validation_share(0.1);
  auto changes = Changes(state, job);
  EXPECT_EQ(changes.size(), 10u);
  for (const auto& [field, change] : changes) EXPECT_TRUE(change.alters_run()) << field;
  const absl::Status refused = CheckAccepted({changes["seed"], changes["recipe.beta1"]}, 60);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("seed: 1 -> 9 ("));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("recipe.beta1: 0.9 -> 0.8"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--accept-changes"));
}

TEST(RunChanges, HowItIsCutSentAndKeptDoesNot) {
  const CheckpointState state = StateAt(60);
  JobSpec job = *state.job;
  job.mutable_recipe()->set_micro_batch(2);
  job.mutable_recipe()->set_eval_every(10);
  job.mutable_recipe()->set_eval_samples(8);
  job.mutable_strategy()->set_stages(2);
  job.mutable_strategy()->add_layers_per_stage(2);
  job.mutable_strategy()->add_layers_per_stage(4);
  job.mutable_compression()->set_forward("delta(quant(3))");
  job.mutable_compression()->add_boundaries()->set_backward("quant(6)");
  job.mutable_checkpoint()->set_every(7);
  auto changes = Changes(state, job);
  EXPECT_EQ(changes.size(), 8u);
  for (const auto& [field, change] : changes) EXPECT_FALSE(change.alters_run()) << field;
  EXPECT_EQ(changes["strategy.layers_per_stage"].before(), "[]");
  EXPECT_EQ(changes["strategy.layers_per_stage"].after(), "[2, 4]");
}

// Each field of `after` that differs, by whether it alters the run.
std::map<std::string, bool> Altered(const StrategySpec& before, const StrategySpec& after) {
  CheckpointState state = StateAt(60);
  state.job->mutable_strategy()->MergeFrom(before);
  JobSpec job = *StateAt(60).job;
  job.mutable_strategy()->MergeFrom(after);
  std::map<std::string, bool> out;
  for (const auto& [field, change] : Changes(state, job)) out[field] = change.alters_run();
  return out;
}

TEST(RunChanges, AStrategyThatTrainsOtherwiseAltersTheRun) {
  StrategySpec local;
  local.set_replicas(2);
  local.set_local_steps(10);
  StrategySpec other = local;
  other.set_local_steps(20);
  other.set_outer_learning_rate(0.6);
  other.set_outer_momentum(0.8);
  other.set_fragments(2);
  other.set_fragment_delay(3);
  other.set_fragment_mix(0.4);
  other.set_subnetworks("units");
  other.set_whole_layers(1);
  other.set_replicas(3);
  const auto altered = Altered(local, other);
  EXPECT_EQ(altered.size(), 9u);
  for (const auto& [field, alters] : altered) EXPECT_TRUE(alters) << field;
}

TEST(RunChanges, MomentsThatWereDealtAreMissed) {
  CheckpointState state = StateAt(60);
  state.job->mutable_strategy()->set_subnetworks("units");
  state.job->mutable_recipe()->set_beta2(0.999);
  JobSpec job = *state.job;
  job.mutable_strategy()->set_subnetworks("none");
  EXPECT_THAT(Changes(state, job)["strategy.subnetworks"].consequence(),
              HasSubstr("with recipe.beta2 0.999 the first steps are up to 6.6 times too large"));
  job.mutable_recipe()->set_beta2(0.95);
  EXPECT_EQ(Changes(state, job)["strategy.subnetworks"].consequence(), "");
  std::swap(*state.job, job);  // no moments are missed the other way round
  job.mutable_recipe()->set_beta2(0.999);
  EXPECT_EQ(Changes(state, job)["strategy.subnetworks"].consequence(), "");
}

// Fields that come later ask, too, unless they are named as free.
TEST(RunChanges, EveryFieldOfTheStrategyIsListed) {
  StrategySpec overlap;
  overlap.set_schedule("overlap");
  StrategySpec later = overlap;
  later.set_look_ahead(false);
  EXPECT_TRUE(Altered(overlap, later).at("strategy.look_ahead"));
  StrategySpec gpipe;
  gpipe.set_schedule("gpipe");
  EXPECT_TRUE(Altered(overlap, gpipe).at("strategy.schedule"));
  EXPECT_FALSE(Altered(StrategySpec(), gpipe).at("strategy.schedule"));
  StrategySpec free;
  free.set_in_flight(9);
  free.set_queue_limit(9);
  free.set_replicas(2);  // gradients are averaged at every step
  free.add_nodes("lab");
  free.set_look_ahead(false);    // of overlap alone
  free.set_outer_momentum(0.5);  // of local steps alone
  const auto altered = Altered(StrategySpec(), free);
  EXPECT_EQ(altered.size(), 6u);
  for (const auto& [field, alters] : altered) EXPECT_FALSE(alters) << field;
}

TEST(RunChanges, HowItComputesAndRecoversDoesNot) {
  const CheckpointState state = StateAt(60);
  JobSpec job = *state.job;
  job.mutable_recipe()->set_recompute(true);
  job.mutable_recovery()->set_attempts(2);
  EXPECT_EQ(Changes(state, job).size(), 2u);
  for (const auto& [field, change] : Changes(state, job))
    EXPECT_FALSE(change.alters_run()) << field;
}

TEST(RunChanges, NumbersThatDifferInTheLastDigitAreTold) {
  const CheckpointState state = StateAt(60);
  JobSpec job = *state.job;
  job.mutable_recipe()->set_weight_decay(0.1000000001);
  auto changes = Changes(state, job);
  EXPECT_EQ(changes["recipe.weight_decay"].after(), "0.1000000001");
}

TEST(RunChanges, AnotherBatchGoesOnWhereTheDataStand) {
  const CheckpointState state = StateAt(10);
  JobSpec job = *state.job;
  job.mutable_recipe()->set_global_batch(64);
  const auto resume = CompareRuns(state, JobSpec(), job, {1000, 0xaa});
  EXPECT_EQ(resume->data->SerializeAsString(), state.position->SerializeAsString());
}

TEST(RunChanges, OtherSamplesBeginANewPass) {
  const CheckpointState state = StateAt(10);
  const auto position = [&](const JobSpec& job, const DataNow& now) {
    return *CompareRuns(state, JobSpec(), job, now)->data;
  };
  EXPECT_EQ(position(*state.job, {1000, 0xaa}).epoch(), 0);
  EXPECT_EQ(position(*state.job, {}).epoch(), 0);
  const DataPosition other = position(*state.job, {900, 0xbb});  // overwritten
  EXPECT_EQ(other.epoch(), 1);
  EXPECT_EQ(other.offset(), 0);
  EXPECT_EQ(other.samples(), 320);
  auto changes = Changes(state, *state.job, {900, 0xbb});
  EXPECT_EQ(changes["data"].before(), "text.txt (fingerprint 00000000000000aa)");
  EXPECT_EQ(changes["data"].after(), "text.txt (fingerprint 00000000000000bb)");
  EXPECT_TRUE(changes["data"].alters_run());

  JobSpec moved = *state.job;
  moved.mutable_data()->set_path("sub/text.txt");
  EXPECT_EQ(position(moved, {1000, 0xaa}).epoch(), 0);
  changes = Changes(state, moved);
  EXPECT_EQ(changes.size(), 1u);
  EXPECT_FALSE(changes["data.path"].alters_run());
  EXPECT_EQ(position(moved, {1000, 0}).epoch(), 1) << "not known to be the same";
  EXPECT_TRUE(Changes(state, moved, {1000, 0})["data"].alters_run());

  JobSpec seeded = *state.job;
  seeded.set_seed(2);
  EXPECT_EQ(position(seeded, {1000, 0xaa}).epoch(), 1);
}

// state.json of an older version has neither job nor position.
TEST(RunChanges, OlderCheckpointsAreCountedInStepsOfTheirBatch) {
  const JobSpec ran = *StateAt(40).job;
  CheckpointState state;
  state.step = 40;
  JobSpec job = ran;
  EXPECT_FALSE(CompareRuns(state, ran, job, {})->data.has_value());
  EXPECT_EQ(CompareRuns(state, ran, job, {1000, 0})->data->SerializeAsString(),
            StateAt(40).position->SerializeAsString());
  job.mutable_recipe()->set_global_batch(16);
  EXPECT_EQ(CompareRuns(state, ran, job, {1000, 0})->data->samples(), 40 * 32);
  EXPECT_EQ(CompareRuns(state, ran, job, {1000, 0})->changes.size(), 1u);
  const absl::Status unknown = CompareRuns(state, ran, job, {}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("go on with recipe.global_batch 32"));
}

TEST(SameModel, EveryFieldButWhereItCameFrom) {
  const ModelSpec model = MakeJob().model();
  ModelSpec other = model;
  other.set_init_from("elsewhere");
  EXPECT_TRUE(SameModel(model, other).ok());
  other.clear_norm_epsilon();  // of a version that had one alone
  EXPECT_TRUE(SameModel(model, other).ok());
  other.set_norm_epsilon(1e-3);
  EXPECT_THAT(std::string(SameModel(model, other).message()),
              HasSubstr("model.norm_epsilon is 0.001 and the checkpoint's is 1e-05"));
  other = model;
  other.set_layers(7);
  EXPECT_EQ(SameModel(model, other).code(), absl::StatusCode::kFailedPrecondition);
  other = model;
  other.set_vocabulary(300);
  EXPECT_FALSE(SameModel(model, other).ok());
  other = model;
  other.clear_tied();  // of a version that tied every head
  EXPECT_TRUE(SameModel(other, model).ok());
  other.set_tied(false);
  EXPECT_THAT(std::string(SameModel(model, other).message()), HasSubstr("model.tied is false"));
}

}  // namespace
}  // namespace isthmus::coordinator
