// Whatever the topology and the job: a valid plan, or a refusal in words. The seed is in the
// failure's text.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "coordinator/planner/planner.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/action_check.h"
#include "proto/plan/actions.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int Below(int n) { return static_cast<int>(RandomBelow(seed_, 0, next_++, n)); }
  bool Once(int in) { return Below(in) == 0; }
  double Log(double low, double high) {
    return low * std::pow(high / low, RandomUniform(seed_, 0, next_++));
  }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Below(values.size()));
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

PlannerInput Draw(uint64_t seed) {
  Dice dice(seed);
  PlannerInput in;
  in.job_id = "random-1";
  in.generation = seed + 1;
  const int nodes = dice.Below(10);
  const int64_t text = static_cast<int64_t>(dice.Log(1e4, 1e9));
  for (int i = 0; i < nodes; ++i) {
    NodeInfo n = MakeNode(absl::StrCat("n", i), dice.Log(0.5, 5000),
                          static_cast<int64_t>(dice.Log(2e8, 1e12)),
                          static_cast<int64_t>(dice.Log(1e6, 1e13)), text);
    if (dice.Once(20)) n.set_block_flops(0);
    if (dice.Once(10)) n.clear_data_files();
    if (dice.Once(10)) n.set_data_listed(false);
    *in.topology.add_nodes() = n;
  }
  for (int i = 0; i < nodes; ++i) {
    for (int j = i + 1; j < nodes; ++j) {
      if (!dice.Once(15))
        Join(&in.topology, absl::StrCat("n", i), absl::StrCat("n", j), dice.Log(0.1, 20000),
             dice.Log(0.1, 500));
    }
  }
  if (dice.Once(5) && in.topology.links_size() > 0)
    in.topology.mutable_links(dice.Below(in.topology.links_size()))->set_error("timed out");
  JobSpec job;
  job.set_name("random");
  job.mutable_model()->set_layers(1 + dice.Below(48));
  job.mutable_model()->set_heads(dice.Of({1, 2, 4, 8}));
  job.mutable_model()->set_hidden(job.model().heads() * (1 + dice.Below(200)));
  job.mutable_model()->set_context(1 + dice.Below(1024));
  job.mutable_data()->set_path("text.txt");
  job.mutable_recipe()->set_steps(1 + dice.Below(20000));
  job.mutable_recipe()->set_global_batch(1 + dice.Below(64));
  job.mutable_recipe()->set_micro_batch(1 + dice.Below(job.recipe().global_batch()));
  job.mutable_recipe()->set_learning_rate(1e-3);
  if (dice.Once(2))
    job.mutable_strategy()->set_stages(1 + dice.Below(std::min(8, job.model().layers())));
  if (dice.Once(2)) job.mutable_strategy()->set_schedule("gpipe");
  if (dice.Once(3)) job.mutable_strategy()->set_queue_limit(1 + dice.Below(8));
  if (dice.Once(3))
    job.mutable_compression()->set_forward(
        dice.Of<const char*>({"none", "bf16", "quant(4)", "delta(quant(3))",
                              "delta(quant(2)) | zstd", "predict(quant(3), context=3)"}));
  if (dice.Once(3))
    job.mutable_compression()->set_backward(dice.Of<const char*>({"none", "fp16", "quant(6)"}));
  FillDefaults(&job);
  in.job = job;
  return in;
}

void CheckPlan(const PlannerInput& in, const PlannedJob& planned) {
  const Plan& plan = planned.plan;
  const JobSpec& job = plan.job();
  const int stages = plan.ranks_size();
  ASSERT_GE(stages, 1);
  if (in.job.strategy().stages() != 0) {
    EXPECT_EQ(stages, in.job.strategy().stages());
  }
  EXPECT_EQ(plan.generation(), in.generation);
  std::set<std::string> used;
  int next_layer = 0;
  for (const RankPlan& s : plan.ranks()) {
    EXPECT_EQ(s.first_layer(), next_layer);
    EXPECT_GT(s.end_layer(), s.first_layer());
    next_layer = s.end_layer();
    EXPECT_TRUE(used.insert(s.node_id()).second) << "a daemon holds two stages";
    const auto node = std::find_if(in.topology.nodes().begin(), in.topology.nodes().end(),
                                   [&](const NodeInfo& n) { return n.id() == s.node_id(); });
    ASSERT_NE(node, in.topology.nodes().end());
    EXPECT_LE(s.memory_bytes(), node->memory_bytes());
  }
  EXPECT_EQ(next_layer, job.model().layers());
  EXPECT_TRUE(CheckActions(plan).ok()) << CheckActions(plan);
  ASSERT_EQ(plan.links_size(), stages == 1 ? 0 : stages);
  for (int b = 0; b + 1 < stages; ++b) {
    const LinkPlan& l = plan.links(b);
    EXPECT_EQ(l.id(), absl::StrCat("b", b));
    EXPECT_EQ(l.upper(), l.lower() + 1);
    EXPECT_TRUE(ValidateCodec(l.forward()).ok());
    EXPECT_FALSE(HasBuffers(l.backward()));
    EXPECT_TRUE(!NeedsTokenIds(l.backward()) || NeedsTokenIds(l.forward()));
    EXPECT_FALSE(IsStateful(l.evaluation()));
    if (in.job.compression().backward() == "auto" && l.backward().kind() == CodecSpec::QUANT) {
      EXPECT_GE(l.backward().bits(), 4);
    }
    if (in.job.compression().forward() == "auto" && l.forward().kind() == CodecSpec::QUANT) {
      EXPECT_GE(l.forward().bits(), 2);
    }
    EXPECT_GE(l.window_bytes(), 256 << 10);
    EXPECT_GE(l.chunk_bytes(), 64 << 10);
    EXPECT_LE(l.chunk_bytes(), 512 << 10);
    EXPECT_GT(l.queue_limit(), 0);
  }
  const Deadlines& d = plan.deadlines();
  EXPECT_GT(d.open_ms(), 0);
  EXPECT_GT(d.first_step_ms(), 0);
  EXPECT_GT(d.step_ms(), plan.predicted_step_s() * 1000);
  EXPECT_GT(d.drain_ms(), 0);
  EXPECT_GT(plan.predicted_step_s(), 0);
  EXPECT_GE(plan.explanation_size(), 4);
  double slowest = 0;
  for (const RankPlan& s : plan.ranks()) slowest = std::max(slowest, s.predicted_step_s());
  EXPECT_GE(plan.predicted_step_s(), slowest * (1 - 1e-9))
      << "no step is faster than its slowest stage";
}

TEST(PlannerProperty, AValidPlanOrARefusalInWords) {
  int plans = 0, refusals = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const PlannerInput in = Draw(seed);
    const auto planned = MakePlan(in);
    if (planned.ok()) {
      ++plans;
      CheckPlan(in, *planned);
    } else {
      ++refusals;
      EXPECT_NE(planned.status().code(), absl::StatusCode::kInternal) << planned.status();
      EXPECT_GT(planned.status().message().size(), 20u);
    }
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GT(plans, 400);
  EXPECT_GT(refusals, 100);
}

TEST(PlannerProperty, TwoHundredDaemonsArePlannedFor) {
  PlannerInput in;
  in.job = MakeJob(96, 512, 256);
  in.generation = 1;
  for (int i = 0; i < 200; ++i)
    *in.topology.add_nodes() = MakeNode(absl::StrCat("n", i), 10 + i % 7);
  JoinAll(&in.topology, 200, 20);
  const auto planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  CheckPlan(in, *planned);
}

}  // namespace
}  // namespace isthmus::coordinator
