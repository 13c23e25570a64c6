#include "proto/job/mlp_job.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/job_defaults.h"
#include "proto/model/family.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobSpec Digits() {
  JobSpec job;
  job.set_name("digits");
  ModelSpec* m = job.mutable_model();
  m->set_family("mlp");
  m->set_layers(2);
  m->set_hidden(64);
  m->set_inputs(64);
  m->set_classes(10);
  job.mutable_data()->set_path("digits.bin");
  RecipeSpec* r = job.mutable_recipe();
  r->set_steps(100);
  r->set_global_batch(32);
  r->set_micro_batch(8);
  r->set_learning_rate(1e-3);
  return job;
}

std::string Refusal(const std::function<void(JobSpec*)>& change) {
  JobSpec job = Digits();
  change(&job);
  FillDefaults(&job);
  return std::string(ValidateJob(job).message());
}

TEST(MlpJob, ARowHasOnePositionAndNothingIsEmbedded) {
  JobSpec job = Digits();
  FillDefaults(&job);
  EXPECT_THAT(JobErrors(job), IsEmpty()) << JobErrors(job).front();
  EXPECT_EQ(job.data().format(), "rows");
  EXPECT_EQ(job.model().context(), 1);
  EXPECT_EQ(job.model().heads(), 1);
  EXPECT_EQ(job.model().vocabulary(), kRowValues);
  EXPECT_FALSE(IsTied(job.model()));
  EXPECT_EQ(InputsOf(job.model()), 64);
  EXPECT_EQ(TargetsBelow(job.model()), 10);
  const JobSpec once = job;
  FillDefaults(&job);
  EXPECT_EQ(job.SerializeAsString(), once.SerializeAsString());
}

TEST(MlpJob, WhatTheFamilyHasNotIsRefused) {
  const auto model = [](const std::function<void(ModelSpec*)>& change) {
    return Refusal([&](JobSpec* job) { change(job->mutable_model()); });
  };
  EXPECT_THAT(model([](ModelSpec* m) { m->clear_inputs(); }),
              HasSubstr("model.inputs: it must be from 1 to 65536"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_classes(257); }),
              HasSubstr("model.classes: it must be from 2 to 256, and it is 257"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_classes(1); }), HasSubstr("model.classes"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_heads(4); }), HasSubstr("model.heads"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_context(16); }), HasSubstr("model.context"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_vocabulary(300); }), HasSubstr("model.vocabulary"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_tied(true); }), HasSubstr("model.tied"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_norm_epsilon(1e-5); }),
              HasSubstr("model.norm_epsilon"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_init_from("gpt2"); }), HasSubstr("model.init_from"));
  EXPECT_THAT(model([](ModelSpec* m) { m->set_family("cnn"); }), HasSubstr("'gpt2', 'mlp'"));
  EXPECT_THAT(Refusal([](JobSpec* job) { job->mutable_data()->set_format("tokens"); }),
              HasSubstr("data.format: it must be rows with model.family mlp"));
  EXPECT_THAT(Refusal([](JobSpec* job) { job->mutable_recipe()->set_recompute(true); }),
              HasSubstr("recipe.recompute: it must be false"));
  EXPECT_THAT(Refusal([](JobSpec* job) {
                job->mutable_compression()->set_forward("predict(quant(4, token))");
              }),
              HasSubstr("compression.forward: it must be a codec without predict"));
  EXPECT_THAT(Refusal([](JobSpec* job) {
                job->mutable_compression()->set_backward("predict(quant(4, token))");
              }),
              HasSubstr("compression.backward"));
  EXPECT_THAT(
      Refusal([](JobSpec* job) {
        job->mutable_compression()->add_boundaries()->set_forward("predict(quant(4, token))");
      }),
      HasSubstr("compression.boundaries[0].forward"));
}

TEST(MlpJob, AGpt2HasNoRows) {
  const auto refusal = [](const std::function<void(JobSpec*)>& change) {
    return Refusal([&](JobSpec* job) {
      job->clear_model();
      ModelSpec* m = job->mutable_model();
      m->set_layers(2);
      m->set_hidden(64);
      m->set_heads(4);
      m->set_context(16);
      m->set_vocabulary(256);
      change(job);
    });
  };
  EXPECT_EQ(refusal([](JobSpec*) {}), "");
  EXPECT_THAT(refusal([](JobSpec* j) { j->mutable_model()->set_inputs(64); }),
              HasSubstr("model.inputs: it must be left out"));
  EXPECT_THAT(refusal([](JobSpec* j) { j->mutable_model()->set_classes(10); }),
              HasSubstr("model.classes: it must be left out"));
  EXPECT_THAT(refusal([](JobSpec* j) { j->mutable_data()->set_format("rows"); }),
              HasSubstr("rows are for model.family mlp"));
}

}  // namespace
}  // namespace isthmus
