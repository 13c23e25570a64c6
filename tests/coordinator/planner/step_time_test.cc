#include "coordinator/planner/step_time.h"

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/planner/placement.h"
#include "coordinator/planner/pricing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

struct World {
  World(double mbit, double gflops, const std::string& device = "")
      : World({"a", "b"}, mbit, 20, gflops, device) {}
  World(const std::vector<std::string>& names, double mbit, double round_trip_ms, double gflops,
        const std::string& device = "") {
    for (const std::string& name : names) {
      NodeInfo node = MakeNode(name, gflops);
      node.set_device(device);
      *topology.add_nodes() = node;
    }
    JoinAll(&topology, mbit, round_trip_ms);
  }
  Placement Price(const JobSpec& job) {
    std::vector<const NodeInfo*> nodes;
    for (const NodeInfo& n : topology.nodes()) nodes.push_back(&n);
    return PricePlacement(job, nodes, {}, LinkIndex(topology)).value();
  }
  Topology topology;
};

JobSpec Job(const char* forward, const char* backward) {
  JobSpec job = MakeJob(4, 128, 128);
  job.mutable_recipe()->set_global_batch(256);
  job.mutable_strategy()->set_queue_limit(8);
  job.mutable_compression()->set_forward(forward);
  job.mutable_compression()->set_backward(backward);
  return job;
}

// The two thirds of the bound that delta reached at 5 Mbit/s: its first visits are so slow that
// 1F1B's own warm-ups are as good, and the later steps, which want more, kept them. Whether the
// daemons have listed their data or not.
TEST(StepTime, WarmUpsAreForTheStepsOfMostOfTheRun) {
  const auto warmups = [](const char* forward, bool listed) {
    World w(5, 40);
    for (NodeInfo& n : *w.topology.mutable_nodes()) {
      n.set_data_listed(listed);
      n.mutable_data_files(0)->set_bytes(40000);  // many passes
    }
    return w.Price(Job(forward, "quant(6)")).warmups[0];
  };
  const int warm = warmups("quant(3)", true), cold = warmups("none", true);
  ASSERT_GT(warm, cold);
  EXPECT_GE(warmups("delta(quant(3))", true), warm);
  EXPECT_GE(warmups("delta(quant(3))", false), warm);
}

TEST(StepTime, AWarmStepWithTheChosenWarmUpsIsAsFastAsThatOfDirectCodes) {
  World w(5, 40);
  for (NodeInfo& n : *w.topology.mutable_nodes()) n.set_data_listed(false);
  const Placement delta = w.Price(Job("delta(quant(3))", "quant(6)")),
                  direct = w.Price(Job("quant(3)", "quant(6)"));
  EXPECT_LT(delta.again_step_s, 1.02 * direct.step_s);
  EXPECT_GT(delta.first_step_s, 1.5 * delta.again_step_s);
}

// compression.backward_when: what the epilogue alone takes, and where auto takes it.
Placement WithEpilogue(double mbit, const char* when, const char* backward = "quant(6)") {
  World w(mbit, 40);
  JobSpec job = Job("bf16", backward);
  job.mutable_compression()->set_backward_when(when);
  return w.Price(job);
}

TEST(StepTime, AnEpilogueIsPricedByTheScheduleThatItIsPartOf) {
  const Placement all = WithEpilogue(5, "all"), some = WithEpilogue(5, "epilogue"),
                  none = WithEpilogue(5, "epilogue", "none");
  EXPECT_FALSE(all.boundaries[0].epilogue);
  EXPECT_FALSE(none.boundaries[0].epilogue) << "nothing is coded";
  ASSERT_TRUE(some.boundaries[0].epilogue);
  EXPECT_EQ(some.boundaries[0].epilogue_micros, some.warmups[0]);
  EXPECT_DOUBLE_EQ(some.boundaries[0].down_s, none.boundaries[0].down_s);
  EXPECT_DOUBLE_EQ(some.boundaries[0].epilogue_down_s, all.boundaries[0].down_s);
  EXPECT_GT(some.step_s, all.step_s);
  EXPECT_LT(some.step_s, none.step_s);
  EXPECT_GT(some.loss, 0);
  EXPECT_NEAR(some.loss, all.loss * some.warmups[0] / 64, 1e-12) << "of 64 micro-batches";
  EXPECT_LT(some.price, all.price);
}

TEST(StepTime, AutoTakesTheEpilogueWhereComputeHidesTheRest) {
  const Placement fast = WithEpilogue(2000, "auto"), slow = WithEpilogue(5, "auto");
  EXPECT_TRUE(fast.boundaries[0].epilogue);
  EXPECT_LE(fast.step_s, 1.01 * WithEpilogue(2000, "all").step_s);
  EXPECT_THAT(fast.boundaries[0].backward_why,
              testing::HasSubstr("quant(6) as the job says; in the epilogue alone, the last "));
  EXPECT_THAT(fast.boundaries[0].backward_why,
              testing::HasSubstr("the others go as fp32, which the compute hides"));
  EXPECT_FALSE(slow.boundaries[0].epilogue);
  EXPECT_DOUBLE_EQ(slow.step_s, WithEpilogue(5, "all").step_s);
  EXPECT_THAT(slow.boundaries[0].backward_why,
              testing::HasSubstr("of all gradients: with the epilogue's alone a step would take "
                                 "longer"));
  // Codecs of `auto` that can't miss a gradient are not compared where the job wants an epilogue.
  EXPECT_TRUE(WithEpilogue(5, "epilogue", "auto").boundaries[0].epilogue);
}

// A codec's cores are those that compute, unless an accelerator computes.
TEST(StepTime, CodecsTakeTheirSecondsFromTheCompute) {
  const auto more = [](const std::string& device) {
    World w(1000, 100, device);
    const Placement predict = w.Price(Job("predict(quant(8, token))", "bf16")),
                    quant = w.Price(Job("quant(8, token)", "bf16"));
    return predict.step_s - quant.step_s;
  };
  const double each_s = kPredictSecondsPerElement * 4 * 128 * 128;
  EXPECT_GT(more("cpu"), 0.8 * 64 * each_s) << "of each of 64 micro-batches";
  EXPECT_LT(more("cuda:0"), 0.2 * 64 * each_s);
}

// Of the codecs that auto compares; each has its price.
TEST(StepTime, TheTiedCodecCostsTheLeast) {
  const auto tied = [](double mbit, const char* wanted) {
    JobSpec job = Job("bf16", "bf16");
    job.mutable_compression()->set_tied(wanted);
    World w(mbit, 100);
    return w.Price(job);
  };
  EXPECT_EQ(FormatCodec(tied(10000, "auto").tied), "bf16");
  EXPECT_EQ(FormatCodec(tied(5, "auto").tied), "quant(4, token, symmetric)");
  EXPECT_EQ(FormatCodec(tied(5, "fp16").tied), "fp16");
  EXPECT_TRUE(tied(5, "fp16").tied_why.empty());
  EXPECT_EQ(FormatCodec(tied(5, "lowrank(4)").tied), "ef(lowrank(4))") << "as PowerSGD has it";
  EXPECT_LT(tied(5, "ef(quant(4, token))").tied_s, 0.3 * tied(5, "bf16").tied_s);
  const Placement best = tied(5, "auto");
  for (const char* other : {"none", "bf16", "bf16 | zstd"})
    EXPECT_LE(best.tied_s, tied(5, other).tied_s) << other;
}

// Eight stages, 100 Mbit/s, 50 ms of round trip. With as many under way as hide the links a step of
// eight micro-batches took 2.7 s, with the published ones 0.48.
TEST(StepTime, OverlappedStepsKeepNoMoreUnderWayThanMakesThemShorter) {
  for (const int micros : {2, 8, 16, 24, 32, 48, 64}) {
    World w({"a", "b", "c", "d", "e", "f", "g", "h"}, 100, 50, 20);
    JobSpec job = MakeJob(8, 64, 128);
    job.mutable_recipe()->set_micro_batch(4);
    job.mutable_recipe()->set_global_batch(4 * micros);
    job.mutable_strategy()->set_schedule("overlap");
    job.mutable_compression()->set_forward("quant(4)");
    job.mutable_compression()->set_backward("quant(6)");
    const Placement all = w.Price(job);
    for (const int in_flight : {1, 9, 20}) {
      job.mutable_strategy()->set_in_flight(in_flight);
      EXPECT_LE(all.pipeline_s, 1.1 * w.Price(job).pipeline_s) << micros << " " << in_flight;
    }
    job.mutable_strategy()->set_in_flight(0);
    job.mutable_strategy()->set_schedule("1f1b");
    EXPECT_NEAR(all.other_step_s, w.Price(job).step_s, 1e-9) << micros;
    if (micros >= 8) {
      EXPECT_LT(all.step_s, all.other_step_s) << micros;
    }
  }
}

}  // namespace
}  // namespace isthmus::coordinator
