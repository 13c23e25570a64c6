#include "coordinator/planner/planner.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/pricing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class PlannerTest : public ::testing::Test {
 protected:
  void Nodes(std::vector<NodeInfo> nodes, double mbit = 100, double round_trip_ms = 20) {
    in_.topology.Clear();
    for (NodeInfo& n : nodes) *in_.topology.add_nodes() = n;
    JoinAll(&in_.topology, mbit, round_trip_ms);
  }
  PlannedJob Plan() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? *planned : PlannedJob();
  }
  absl::Status Refusal() { return MakePlan(in_).status(); }
  std::vector<int> Layers(const isthmus::Plan& plan) {
    std::vector<int> n;
    for (const RankPlan& s : plan.ranks()) n.push_back(s.end_layer() - s.first_layer());
    return n;
  }
  static std::string Lines(const PlannedJob& p) {
    return absl::StrJoin(p.plan.explanation(), "\n") + "\n";
  }
  // tests/coordinator/planner/golden/NAME.txt: what a user reads; a change of it is a change to
  // look at.
  static std::string Golden(const std::string& name) {
    std::ifstream in(absl::StrCat(ISTHMUS_GOLDEN_DIR, "/", name, ".txt"));
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  std::string Forward(const isthmus::Plan& plan, int link = 0) {
    return FormatCodec(plan.links(link).forward());
  }
  std::string Backward(const isthmus::Plan& plan, int link = 0) {
    return FormatCodec(plan.links(link).backward());
  }

  PlannerInput in_ = [] {
    PlannerInput in;
    in.job_id = "bible-1";
    in.job = MakeJob();
    in.generation = 3;
    return in;
  }();
};

TEST_F(PlannerTest, GoldenTwoUnequalDaemonsOnASlowLink) {
  Nodes({MakeNode("lab", 20), MakeNode("home", 10)}, 18.2, 40);
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob p = Plan();
  EXPECT_EQ(Lines(p), Golden("slow_link"));
  EXPECT_THAT(p.warnings, IsEmpty());
}

TEST_F(PlannerTest, LinksAreHiddenByMoreMicroBatchesUnderWay) {
  Nodes({MakeNode("lab", 20), MakeNode("home", 10)}, 18.2, 40);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_compression()->set_forward("none");
  in_.job.mutable_compression()->set_backward("none");
  const PlannedJob free = Plan();
  EXPECT_THAT(Lines(free), HasSubstr("1f1b with 4, 1 micro-batches under way"));
  in_.job.mutable_strategy()->set_in_flight(2);
  const PlannedJob published = Plan();
  EXPECT_THAT(Lines(published), HasSubstr("1f1b with 2, 1 micro-batches under way"));
  EXPECT_THAT(Lines(published), HasSubstr("strategy.in_flight 2 allows no more"));
  EXPECT_LT(free.plan.predicted_step_s(), 0.9 * published.plan.predicted_step_s());
  EXPECT_GT(free.plan.ranks(0).memory_bytes(), published.plan.ranks(0).memory_bytes());
  in_.job.mutable_strategy()->set_in_flight(0);
  for (NodeInfo& n : *in_.topology.mutable_nodes())
    n.set_memory_bytes(published.plan.ranks(n.name() == "home" ? 0 : 1).memory_bytes());
  EXPECT_THAT(Lines(Plan()), HasSubstr("the memory of home carries no more"));
}

TEST_F(PlannerTest, QueuesLimitWhatIsUnderWay) {
  Nodes({MakeNode("lab", 2000), MakeNode("home", 1000)}, 1000, 400);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_strategy()->set_queue_limit(1);
  in_.job.mutable_recipe()->set_micro_batch(1);
  EXPECT_THAT(Lines(Plan()), HasSubstr("strategy.queue_limit 1 allows no more; "));
}

TEST_F(PlannerTest, GoldenOneDaemonIsFasterThanASlowNetwork) {
  Nodes({MakeNode("lab", 100), MakeNode("home", 90), MakeNode("cafe", 10)}, 2, 80);
  const PlannedJob p = Plan();
  EXPECT_EQ(Lines(p), Golden("one_is_faster"));
}

TEST_F(PlannerTest, GoldenManyPassesOverASlowLink) {
  Nodes({MakeNode("lab", 20, int64_t{8} << 30, int64_t{50} << 30, 200000),
         MakeNode("home", 20, int64_t{8} << 30, int64_t{50} << 30, 200000)},
        5, 20);
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob p = Plan();
  EXPECT_EQ(Lines(p), Golden("many_passes"));
  EXPECT_THAT(p.warnings, IsEmpty());
}

TEST_F(PlannerTest, AFastLinkIsNotQuantised) {
  Nodes({MakeNode("a", 100), MakeNode("b", 100), MakeNode("c", 100), MakeNode("d", 100)}, 10000,
        0.1);
  in_.job.mutable_strategy()->set_stages(4);
  const PlannedJob p = Plan();
  for (int b = 0; b < 3; ++b) {
    EXPECT_EQ(Forward(p.plan, b), "bf16") << "it costs nothing, and takes less than none";
    EXPECT_EQ(Backward(p.plan, b), "bf16");
    EXPECT_EQ(FormatCodec(p.plan.links(b).evaluation()), "bf16");
  }
  EXPECT_EQ(FormatCodec(p.plan.groups(0).contribution()), "bf16")
      << "the tied embedding's gradient";
  EXPECT_THAT(p.warnings, IsEmpty());
}

TEST_F(PlannerTest, AutoTakesAsManyStagesAsPay) {
  Nodes({MakeNode("a", 1), MakeNode("b", 1), MakeNode("c", 1)}, 1000, 1);
  EXPECT_EQ(Plan().plan.ranks_size(), 3);
  Nodes({MakeNode("a", 100), MakeNode("b", 100), MakeNode("c", 100)}, 0.5, 200);
  EXPECT_EQ(Plan().plan.ranks_size(), 1);
}

TEST_F(PlannerTest, TheSlowDaemonGetsFewerLayers) {
  Nodes({MakeNode("fast", 30), MakeNode("slow", 10)}, 1000, 1);
  in_.job = MakeJob(8);
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob p = Plan();
  for (const RankPlan& s : p.plan.ranks()) {
    EXPECT_EQ(s.end_layer() - s.first_layer(), s.node_name() == "fast" ? 6 : 2);
  }
}

TEST_F(PlannerTest, NeighboursAreChosenByTheirLinks) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10), MakeNode("c", 10), MakeNode("d", 10)}, 1, 200);
  // A ring a - c - b - d - a is fast; the chain must follow it, for its ends exchange the tied
  // embedding.
  in_.topology.clear_links();
  for (auto [x, y] :
       {std::pair("a", "c"), std::pair("c", "b"), std::pair("b", "d"), std::pair("d", "a")})
    Join(&in_.topology, x, y, 1000, 1);
  for (auto [x, y] : {std::pair("a", "b"), std::pair("c", "d")}) Join(&in_.topology, x, y, 1, 200);
  in_.job.mutable_strategy()->set_stages(4);
  const PlannedJob p = Plan();
  for (const LinkPlan& l : p.plan.links()) EXPECT_EQ(l.rate_up_bits_per_s(), 1e9) << l.id();
}

TEST_F(PlannerTest, WhatTheJobSaysIsDone) {
  Nodes({MakeNode("a", 10), MakeNode("b", 20), MakeNode("c", 30)});
  StrategySpec* s = in_.job.mutable_strategy();
  for (const char* n : {"c", "id-a"}) s->add_nodes(n);
  for (int n : {1, 5}) s->add_layers_per_stage(n);
  s->set_stages(2);
  s->set_schedule("gpipe");
  in_.job.mutable_compression()->set_forward("delta(quant(3)) | zstd");
  in_.job.mutable_compression()->set_backward("quant(6)");
  in_.job.mutable_compression()->set_tied("bf16");
  in_.start_step = 20;
  in_.from_checkpoint = true;
  const PlannedJob p = Plan();
  EXPECT_EQ(p.plan.ranks(0).node_name(), "c");
  EXPECT_EQ(p.plan.ranks(1).node_name(), "a");
  EXPECT_THAT(Layers(p.plan), ElementsAre(1, 5));
  EXPECT_EQ(Forward(p.plan), "delta(quant(3)) | zstd");
  EXPECT_EQ(Backward(p.plan), "quant(6)");
  EXPECT_EQ(FormatCodec(p.plan.links(0).evaluation()), "bf16");
  EXPECT_EQ(p.plan.links(1).kind(), LinkPlan::GROUP);
  EXPECT_EQ(FormatCodec(p.plan.groups(0).contribution()), "bf16");
  EXPECT_EQ(p.plan.start_step(), 20);
  EXPECT_TRUE(p.plan.from_checkpoint());
  EXPECT_EQ(p.plan.generation(), 3u);
  EXPECT_EQ(p.plan.ranks(0).train(0).op(), Action::FWD);
  EXPECT_EQ(p.plan.ranks(0).train(14).op(), Action::FWD) << "gpipe: eight forwards first";
}

TEST_F(PlannerTest, ABoundaryMayDiffer) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10), MakeNode("c", 10)});
  in_.job.mutable_strategy()->set_stages(3);
  in_.job.mutable_compression()->set_forward("none");
  in_.job.mutable_compression()->set_backward("none");
  BoundaryCodec* b = in_.job.mutable_compression()->add_boundaries();
  b->set_boundary(1);
  b->set_backward("fp16");
  in_.job.mutable_compression()->add_boundaries()->set_boundary(7);
  const PlannedJob p = Plan();
  EXPECT_EQ(Backward(p.plan, 0), "none");
  EXPECT_EQ(Backward(p.plan, 1), "fp16");
  EXPECT_EQ(Forward(p.plan, 1), "none");
  EXPECT_THAT(p.warnings, Contains(HasSubstr("names boundary 7")));
}

// Gradients of an autoencoder's boundary have its channels: `auto` counts with them.
TEST_F(PlannerTest, AnAutoencoderNarrowsBothDirections) {
  Nodes({MakeNode("lab", 20), MakeNode("home", 20)}, 5, 20);
  in_.job.mutable_strategy()->set_stages(2);
  const std::string wide = Backward(Plan().plan);
  in_.job.mutable_compression()->set_forward("autoencoder(2, values=bf16)");
  const isthmus::Plan narrow = Plan().plan;
  EXPECT_EQ(Forward(narrow), "autoencoder(2, values=bf16)");
  EXPECT_THAT(wide, HasSubstr("quant("));
  EXPECT_EQ(Backward(narrow), "bf16");
}

TEST_F(PlannerTest, RefusalsSayWhatIsMissing) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10)});
  in_.absent = {{"id-c", "c", "c runs job other-2", true}};
  in_.job.mutable_strategy()->set_stages(4);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      Refusal().message(),
      HasSubstr(
          "4 stages need as many daemons; 2 are free (a, b); not usable: c runs job other-2"));

  in_.job.mutable_strategy()->set_stages(7);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Refusal().message(), HasSubstr("strategy.stages"));

  in_.job = MakeJob();
  in_.job.mutable_strategy()->add_nodes("x");
  EXPECT_THAT(Refusal().message(),
              HasSubstr("strategy.nodes names 'x', which is not free; free are: a, b"));
  *in_.job.mutable_strategy()->mutable_nodes(0) = "a";
  in_.job.mutable_strategy()->add_nodes("a");
  EXPECT_THAT(Refusal().message(), HasSubstr("'a' is there twice"));

  in_.job = MakeJob();
  in_.job.mutable_data()->set_path("nothing.txt");
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Refusal().message(),
              HasSubstr("'nothing.txt' (data.path) in its --data-dir; there are: text.txt"));

  in_.job = MakeJob(6, 256, 1 << 16);
  in_.job.mutable_recipe()->set_global_batch(64);
  EXPECT_THAT(
      Refusal().message(),
      HasSubstr("training samples of context 65536; one step needs recipe.global_batch = 64"));

  in_.job = MakeJob();
  in_.start_step = 300;
  EXPECT_THAT(Refusal().message(), HasSubstr("300 are done already"));

  in_.start_step = 0;
  in_.topology.clear_nodes();
  EXPECT_THAT(Refusal().message(), HasSubstr("1 stage needs as many daemons; 0 are free"));
}

TEST_F(PlannerTest, TooLittleMemorySaysHowManyBytes) {
  Nodes({MakeNode("a", 10, int64_t{1} << 30), MakeNode("b", 10, int64_t{1} << 30)});
  in_.job = MakeJob(48, 1600, 128);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Refusal().message(), HasSubstr("memory: "));
  EXPECT_THAT(Refusal().message(), HasSubstr("bytes)"));
  in_.job.mutable_strategy()->set_stages(2);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  in_.job.mutable_strategy()->add_layers_per_stage(24);
  in_.job.mutable_strategy()->add_layers_per_stage(24);
  EXPECT_THAT(Refusal().message(), HasSubstr("stage 0 with 24 layers needs"));
}

TEST_F(PlannerTest, MemoryMovesLayersToWhoHasRoom) {
  Nodes({MakeNode("big", 10, int64_t{32} << 30), MakeNode("small", 100, int64_t{1} << 30)}, 1000,
        1);
  in_.job = MakeJob(24, 1024, 128);
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob p = Plan();
  for (const RankPlan& s : p.plan.ranks()) {
    if (s.node_name() == "small") {
      EXPECT_LE(s.memory_bytes(), int64_t{1} << 30);
      EXPECT_LT(s.end_layer() - s.first_layer(), 12);
    }
  }
}

TEST_F(PlannerTest, UnreachablePairsAreNamed) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10)});
  in_.topology.mutable_links(0)->set_error("connect 10.0.0.2:7071: timed out");
  in_.topology.mutable_links()->RemoveLast();
  in_.job.mutable_strategy()->set_stages(2);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Refusal().message(), HasSubstr("a -> b: connect 10.0.0.2:7071: timed out"));
  EXPECT_THAT(Refusal().message(), HasSubstr("b -> a: not measured yet"));
  in_.job.mutable_strategy()->set_stages(0);
  EXPECT_EQ(Plan().plan.ranks_size(), 1) << "one daemon needs no link";
}

TEST_F(PlannerTest, DeltaBuffersThatDoNotFitAreRefusedOrNotChosen) {
  const int64_t text = int64_t{1} << 30;  // 8.4 million samples x 128 x 256 x 2 bytes = 500 GiB
  Nodes({MakeNode("a", 10, int64_t{8} << 30, int64_t{50} << 30, text),
         MakeNode("b", 10, int64_t{8} << 30, int64_t{50} << 30, text)},
        2, 20);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_recipe()->set_steps(1000000);
  EXPECT_THAT(Forward(Plan().plan), StartsWith("predict(quant("));
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("its buffers do not fit")));
  in_.job.mutable_compression()->set_forward("delta(quant(3))");
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Refusal().message(), HasSubstr("delta buffers of boundary b0 need 486 GiB (5"));
  EXPECT_THAT(Refusal().message(), HasSubstr("compression.buffer_disk_bytes 8.00 GiB"));
}

TEST_F(PlannerTest, QuantisedDeltaBuffersNeedLess) {
  const int64_t text = 16 << 20;  // 127 thousand samples x 128 x 256: 7.7 GiB as bf16
  Nodes({MakeNode("a", 10, int64_t{8} << 30, int64_t{50} << 30, text),
         MakeNode("b", 10, int64_t{8} << 30, int64_t{50} << 30, text)},
        2, 20);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_recipe()->set_steps(100000);
  in_.job.mutable_compression()->set_buffer_disk_bytes(int64_t{4} << 30);
  in_.job.mutable_compression()->set_forward("delta(quant(3))");
  EXPECT_THAT(Refusal().message(), HasSubstr("256 channels x 2 bytes)"));
  EXPECT_THAT(Refusal().message(), HasSubstr("keep the buffers in fewer bits"));
  in_.job.mutable_compression()->set_forward("delta(quant(3), buffer=8)");
  EXPECT_EQ(Forward(Plan().plan), "delta(quant(3), buffer=8)");
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("delta buffers: 3.86 GiB")));
  in_.job.mutable_compression()->set_buffer_disk_bytes(int64_t{1} << 30);
  EXPECT_THAT(Refusal().message(), HasSubstr("256 channels x 8 bits)"));
}

TEST_F(PlannerTest, DeltaBuffersMayGoToDisk) {
  const int64_t text = 8 << 20;
  Nodes({MakeNode("a", 10, int64_t{1} << 30, int64_t{50} << 30, text),
         MakeNode("b", 10, int64_t{8} << 30, int64_t{50} << 30, text)},
        2, 20);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_recipe()->set_steps(100000);
  in_.job.mutable_compression()->set_forward("delta(quant(4))");
  const PlannedJob p = Plan();
  EXPECT_THAT(p.warnings, Contains(HasSubstr("go to a spill file on disk")));
  for (const RankPlan& s : p.plan.ranks())
    EXPECT_LE(s.memory_bytes(), int64_t{s.node_name() == "a" ? 1 : 8} << 30) << s.node_name();
  EXPECT_LT(p.plan.job().compression().buffer_memory_bytes(), int64_t{1} << 30);
}

// What a file takes has slots for buffers on their way: 64 of 64 KiB, as far as its cap goes.
TEST_F(PlannerTest, SpillFilesHaveSpareSlots) {
  const int64_t text = 1 << 20;
  Nodes({MakeNode("a", 10, int64_t{8} << 30, int64_t{50} << 30, text),
         MakeNode("b", 10, int64_t{8} << 30, int64_t{50} << 30, text)},
        2, 20);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_recipe()->set_steps(100000);
  in_.job.mutable_compression()->set_forward("delta(quant(3))");
  in_.job.mutable_compression()->set_buffer_memory_bytes(64 << 20);
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("in memory, 426 MiB on disk")));
  in_.job.mutable_compression()->set_buffer_disk_bytes(424 << 20);
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("in memory, 424 MiB on disk")));
}

TEST_F(PlannerTest, TokenIdsComeAlongToTheSlowLink) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10), MakeNode("c", 10)});
  in_.topology.clear_links();
  Join(&in_.topology, "a", "b", 1000, 1);
  Join(&in_.topology, "b", "c", 2, 20);
  Join(&in_.topology, "a", "c", 2, 20);
  std::vector<const NodeInfo*> nodes;
  for (const NodeInfo& n : in_.topology.nodes()) nodes.push_back(&n);
  const LinkIndex links(in_.topology);
  auto placed = PricePlacement(in_.job, nodes, {}, links);
  ASSERT_TRUE(placed.ok()) << placed.status();
  ASSERT_EQ(placed->boundaries.size(), 2u);
  EXPECT_EQ(FormatCodec(placed->boundaries[0].forward), "predict(bf16)");
  EXPECT_EQ(FormatCodec(placed->boundaries[0].backward), "bf16");
  EXPECT_THAT(placed->boundaries[0].forward_why, HasSubstr("passes the token ids on"));
  EXPECT_THAT(FormatCodec(placed->boundaries[1].forward), StartsWith("predict(quant("));
  EXPECT_THAT(FormatCodec(placed->boundaries[1].backward), HasSubstr("next"));
  in_.job.mutable_compression()->set_forward("quant(8)");
  placed = PricePlacement(in_.job, nodes, {}, links);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(FormatCodec(placed->boundaries[1].backward).find("predict"), std::string::npos);
  in_.job.mutable_compression()->set_backward("predict(quant(4), next)");
  EXPECT_THAT(PricePlacement(in_.job, nodes, {}, links).status().message(),
              HasSubstr("boundary b0, backward predict(quant(4), next): predict needs the token"));
}

TEST_F(PlannerTest, TablesOfPredictCountAsMemory) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10)}, 2, 20);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_strategy()->set_in_flight(2);  // no more if there is memory, no fewer if not
  in_.job.mutable_compression()->set_forward("quant(4)");
  in_.job.mutable_compression()->set_backward("quant(4)");
  const int64_t without = Plan().plan.ranks(0).memory_bytes();
  in_.job.mutable_compression()->set_forward("predict(quant(4), context=4)");
  const JobSpec& job = in_.job;
  const int64_t tables =
      PredictorBytes(*ParseCodec(job.compression().forward()),
                     {job.recipe().micro_batch(), job.model().context(), job.model().hidden()},
                     job.model().vocabulary());
  EXPECT_EQ(Plan().plan.ranks(0).memory_bytes(), without + tables);
  for (NodeInfo& n : *in_.topology.mutable_nodes()) n.set_memory_bytes(without + tables - 1);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Refusal().message(), HasSubstr("memory: the tables of predict(quant(4), context=4)"));
}

TEST_F(PlannerTest, TheTiedEmbeddingsResidualCountsAsMemory) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10), MakeNode("c", 10)});
  in_.job.mutable_model()->set_layers(3);  // none to move
  in_.job.mutable_strategy()->set_stages(3);
  in_.job.mutable_strategy()->set_in_flight(2);
  const int64_t residual = 4 * in_.job.model().vocabulary() * in_.job.model().hidden();
  const auto bytes = [&](const char* codec, int rank) {
    in_.job.mutable_compression()->set_tied(codec);
    return Plan().plan.ranks(rank).memory_bytes();
  };
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(bytes("ef(quant(4, token))", rank) - bytes("quant(4, token)", rank),
              rank == 1 ? 0 : residual);
  const int64_t need = bytes("ef(quant(4, token))", 0);
  for (NodeInfo& n : *in_.topology.mutable_nodes()) n.set_memory_bytes(need - 1);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Refusal().message(), HasSubstr("residual of compression.tied ef(quant(4, token)) "));
}

TEST_F(PlannerTest, Warnings) {
  Nodes({MakeNode("a", 1000), MakeNode("b", 1000)}, 1, 300);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_recipe()->set_micro_batch(32);
  in_.topology.mutable_links(0)->set_loss(0.03);
  const PlannedJob p = Plan();
  EXPECT_THAT(p.warnings, Contains(HasSubstr("sync takes")));
  EXPECT_THAT(p.warnings, Contains(HasSubstr("is slower than the compute")));
  EXPECT_THAT(p.warnings, Contains(HasSubstr("1 micro-batches for 2 stages")));
  EXPECT_THAT(p.warnings, Contains(HasSubstr("loses 3.0 %")));
  EXPECT_THAT(Backward(p.plan), HasSubstr("quant(4")) << "gradients never under 4 bits";
  EXPECT_THAT(Forward(p.plan), HasSubstr("quant(4")) << "nor activations";
  EXPECT_THAT(p.warnings, Not(Contains(HasSubstr("compression.tied"))));
  in_.job.mutable_compression()->set_tied("bf16 | zstd");
  EXPECT_THAT(Plan().warnings, Contains(HasSubstr("zstd may take less")));
  in_.job.mutable_compression()->set_tied("none");
  EXPECT_THAT(Plan().warnings, Contains(HasSubstr("compression.tied bf16, or fewer stages")));
}

TEST_F(PlannerTest, WindowsAndDeadlinesFollowTheLink) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10)}, 300, 100);
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob fast = Plan();
  EXPECT_EQ(fast.plan.links(0).window_bytes(), 7500000);
  EXPECT_EQ(fast.plan.links(0).chunk_bytes(), 512 << 10);
  Nodes({MakeNode("a", 10), MakeNode("b", 10)}, 1, 10);
  const PlannedJob slow = Plan();
  EXPECT_EQ(slow.plan.links(0).window_bytes(), 256 << 10);
  EXPECT_EQ(slow.plan.links(0).chunk_bytes(), 64 << 10);
  EXPECT_GT(slow.plan.deadlines().step_ms(), fast.plan.deadlines().step_ms());
  EXPECT_GE(fast.plan.deadlines().open_ms(), 30000);
}

TEST_F(PlannerTest, UnmeasuredDaemonsAreNotUsed) {
  NodeInfo fresh = MakeNode("fresh", 10);
  fresh.set_block_forward_s(0);
  Nodes({MakeNode("a", 10), fresh});
  EXPECT_EQ(Plan().plan.ranks(0).node_name(), "a");
  in_.job.mutable_strategy()->set_stages(2);
  EXPECT_THAT(Refusal().message(), HasSubstr("fresh has not measured its compute"));
}

TEST_F(PlannerTest, TheEndsOfThePipelineAreWhereTheDataIs) {
  NodeInfo empty = MakeNode("empty", 100);
  empty.clear_data_files();
  Nodes({MakeNode("a", 10), empty, MakeNode("b", 10)}, 1000, 1);
  in_.job.mutable_strategy()->set_stages(3);
  EXPECT_EQ(Plan().plan.ranks(1).node_name(), "empty");
}

TEST_F(PlannerTest, APlanThatNoMessageCarriesIsRefused) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10)});
  in_.job = MakeJob(6, 8, 2);
  in_.job.mutable_recipe()->set_global_batch(65536);
  in_.job.mutable_recipe()->set_micro_batch(1);
  in_.job.mutable_strategy()->set_stages(2);
  EXPECT_THAT(Refusal().message(), HasSubstr("Use larger micro-batches"));
}

TEST_F(PlannerTest, SameInputSamePlan) {
  std::vector<NodeInfo> nodes;
  for (int i = 0; i < 12; ++i) nodes.push_back(MakeNode(absl::StrCat("n", i), 10 + i % 3));
  Nodes(nodes, 50, 30);
  const PlannedJob a = Plan(), b = Plan();
  EXPECT_EQ(a.plan.SerializeAsString(), b.plan.SerializeAsString());
}

}  // namespace
}  // namespace isthmus::coordinator
