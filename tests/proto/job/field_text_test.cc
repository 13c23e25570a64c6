#include "proto/job/field_text.h"

#include <gtest/gtest.h>

#include "proto/job.pb.h"

namespace isthmus {
namespace {

std::string Text(const google::protobuf::Message& message, const std::string& field) {
  return FieldText(message, message.GetDescriptor()->FindFieldByName(field));
}

TEST(FieldText, IsWhatAJobFileSays) {
  JobSpec job;
  job.set_name("bible");
  job.set_seed(18446744073709551615u);
  EXPECT_EQ(Text(job, "name"), "bible");
  EXPECT_EQ(Text(job, "seed"), "18446744073709551615");
  RecipeSpec* recipe = job.mutable_recipe();
  recipe->set_steps(1000000000);
  recipe->set_learning_rate(1e-3);
  recipe->set_weight_decay(0.1 + 0.2);
  recipe->set_clip_norm(1e9);
  EXPECT_EQ(Text(*recipe, "steps"), "1000000000");
  EXPECT_EQ(Text(*recipe, "learning_rate"), "0.001");
  EXPECT_EQ(Text(*recipe, "weight_decay"), "0.3");
  EXPECT_EQ(Text(*recipe, "clip_norm"), "1000000000");
  StrategySpec* strategy = job.mutable_strategy();
  EXPECT_EQ(Text(*strategy, "layers_per_stage"), "[]");
  strategy->add_layers_per_stage(1);
  strategy->add_layers_per_stage(3);
  strategy->add_nodes("a");
  EXPECT_EQ(Text(*strategy, "layers_per_stage"), "[1, 3]");
  EXPECT_EQ(Text(*strategy, "nodes"), "[a]");
  CompressionSpec* c = job.mutable_compression();
  c->set_buffer_memory_bytes(256 << 20);
  c->set_buffer_disk_bytes(1000);
  c->set_check_buffers(true);
  EXPECT_EQ(Text(*c, "buffer_memory_bytes"), "256MiB");
  EXPECT_EQ(Text(*c, "buffer_disk_bytes"), "1000");
  EXPECT_EQ(Text(*c, "check_buffers"), "true");
  BoundaryCodec* boundary = c->add_boundaries();
  boundary->set_boundary(0);
  boundary->set_forward("delta(quant(3, group=64))");
  EXPECT_EQ(Text(*c, "boundaries"), "[{boundary: 0, forward: 'delta(quant(3, group=64))'}]");
}

}  // namespace
}  // namespace isthmus
