#include "proto/job/subnetworks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "proto/job/job_defaults.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

JobSpec Subnetworks() {
  JobSpec job;
  job.set_name("ist");
  ModelSpec* m = job.mutable_model();
  m->set_layers(6);
  m->set_hidden(32);
  m->set_heads(4);
  m->set_context(16);
  job.mutable_data()->set_path("text");
  RecipeSpec* r = job.mutable_recipe();
  r->set_steps(100);
  r->set_global_batch(8);
  r->set_micro_batch(2);
  r->set_learning_rate(1e-3);
  job.mutable_strategy()->set_subnetworks("units");
  job.mutable_strategy()->set_replicas(2);
  job.mutable_strategy()->set_local_steps(10);
  return job;
}

TEST(Subnetworks, DefaultsAreTheMeanOfWhatIsShared) {
  JobSpec job = Subnetworks();
  FillDefaults(&job);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  EXPECT_TRUE(TrainsSubnetworks(job));
  EXPECT_EQ(job.strategy().outer_learning_rate(), 1);
  EXPECT_EQ(job.strategy().outer_momentum(), 0);
  EXPECT_EQ(job.strategy().whole_layers(), 0);
  JobSpec plain = Subnetworks();
  plain.mutable_strategy()->clear_subnetworks();
  FillDefaults(&plain);
  EXPECT_TRUE(ValidateJob(plain).ok());
  EXPECT_FALSE(TrainsSubnetworks(plain));
  EXPECT_EQ(plain.strategy().outer_momentum(), 0.9);
}

TEST(Subnetworks, RefusalsNameTheFieldAndWhatWouldDo) {
  const struct {
    std::function<void(JobSpec*)> spoil;
    const char *field, *words;
  } cases[] = {
      {[](JobSpec* j) { j->mutable_strategy()->set_subnetworks("unit"); },
       "strategy.subnetworks: 'unit'", "did you mean 'units'"},
      {[](JobSpec* j) { j->mutable_strategy()->set_subnetworks("blocks"); },
       "strategy.subnetworks: 'blocks'", "does not deal whole layers yet"},
      {[](JobSpec* j) { j->mutable_strategy()->set_replicas(1); }, "strategy.replicas: '1'",
       "from 2 to 4"},
      {[](JobSpec* j) { j->mutable_strategy()->set_replicas(0); }, "strategy.replicas: '0'",
       "from 2 to 4"},
      {[](JobSpec* j) { j->mutable_strategy()->set_replicas(5); }, "strategy.replicas: '5'",
       "(model.heads)"},
      {[](JobSpec* j) { j->mutable_strategy()->clear_local_steps(); }, "strategy.local_steps: '1'",
       "2 or more"},
      {[](JobSpec* j) { j->mutable_strategy()->set_whole_layers(3); }, "strategy.whole_layers: '3'",
       "from 0 to 2 with model.layers 6"},
      {[](JobSpec* j) { j->mutable_strategy()->set_whole_layers(-1); },
       "strategy.whole_layers: '-1'", "from 0 to 2"},
      // It said "from 2 to 1".
      {[](JobSpec* j) { j->mutable_model()->set_heads(1); }, "strategy.subnetworks: 'units'",
       "none with model.heads 1: each of two replicas or more needs a head of each layer"},
      {[](JobSpec* j) {
         j->mutable_model()->set_heads(2);
         j->mutable_strategy()->set_replicas(3);
       },
       "strategy.replicas: '3'", "it must be 2 with"},
      {[](JobSpec* j) {
         j->mutable_model()->set_layers(2);
         j->mutable_strategy()->set_whole_layers(1);
       },
       "strategy.whole_layers: '1'", "it must be 0 with model.layers 2"},
      {[](JobSpec* j) { j->mutable_strategy()->set_fragments(2); }, "strategy.fragments: '2'",
       "all layers at once"},
      {[](JobSpec* j) { j->mutable_strategy()->set_fragment_delay(2); },
       "strategy.fragment_delay: '2'", "change hands"},
      {[](JobSpec* j) { j->mutable_compression()->set_gradients("quant(4, token)"); },
       "compression.gradients: 'quant(4, token)'", "carries weights"},
      {[](JobSpec* j) { j->mutable_compression()->set_gradients("ef(quant(8, token))"); },
       "compression.gradients: 'ef(quant(8, token))'", "auto, none, bf16 or fp16"},
      {[](JobSpec* j) { j->mutable_strategy()->set_schedule("overlap"); }, "strategy.local_steps",
       "overlap"},
      {[](JobSpec* j) { j->mutable_recipe()->set_optimizer("quantized_adam"); },
       "strategy.local_steps", "quantized_adam"},
      {[](JobSpec* j) {
         j->mutable_strategy()->clear_subnetworks();
         j->mutable_strategy()->set_whole_layers(1);
       },
       "strategy.whole_layers: '1'", "without strategy.subnetworks"},
  };
  for (const auto& row : cases) {
    JobSpec job = Subnetworks();
    row.spoil(&job);
    FillDefaults(&job);
    const std::string error(ValidateJob(job).message());
    EXPECT_THAT(error, StartsWith(row.field));
    EXPECT_THAT(error, HasSubstr(row.words));
  }
  for (const char* codec : {"none", "bf16", "fp16", "bf16 | zstd", "auto"}) {
    JobSpec job = Subnetworks();
    job.mutable_compression()->set_gradients(codec);
    FillDefaults(&job);
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  }
}

}  // namespace
}  // namespace isthmus
