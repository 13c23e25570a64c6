// Plans of several replicas: what is written down, said, refused, and kept on a resume.
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/plan_words.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/action_check.h"
#include "proto/plan/actions.h"
#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class PlannerReplicasTest : public ::testing::Test {
 protected:
  PlannerReplicasTest() {
    in_.job_id = "bible-1";
    in_.job = MakeJob();
    in_.generation = 3;
    in_.job.mutable_strategy()->set_replicas(2);
  }
  void Nodes(const std::vector<NodeInfo>& nodes, double mbit = 100, double round_trip_ms = 20) {
    in_.topology.Clear();
    for (const NodeInfo& n : nodes) *in_.topology.add_nodes() = n;
    JoinAll(&in_.topology, mbit, round_trip_ms);
  }
  void Four(double gflops = 20, double mbit = 100) {
    Nodes({MakeNode("lab", gflops), MakeNode("home", gflops), MakeNode("cafe", gflops),
           MakeNode("attic", gflops)},
          mbit);
  }
  PlannedJob Make() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? *planned : PlannedJob();
  }
  std::string Refusal() { return std::string(MakePlan(in_).status().message()); }
  static std::string Lines(const PlannedJob& p) {
    return absl::StrJoin(p.plan.explanation(), "\n") + "\n";
  }

  // Of each stage's own parameters, how many no group reduces; by the name of the set.
  static std::map<std::string, int64_t> ElementsLeft(const Plan& plan) {
    std::map<std::string, int64_t> left;
    for (const GroupPlan& group : plan.groups()) {
      if (group.tensors() == GroupPlan::TIED) continue;
      left.emplace(SetName(group), OwnElements(plan, group.ranks(0)));
      left[SetName(group)] -= group.rows() * group.width();
    }
    return left;
  }

  PlannerInput in_;
};

// As a job of an older build may be stored: the coordinator died of it.
TEST_F(PlannerReplicasTest, ACutWithoutANumberOfStagesIsOfAsManyStages) {
  Nodes({MakeNode("a", 20), MakeNode("b", 20), MakeNode("c", 20), MakeNode("d", 20),
         MakeNode("e", 20), MakeNode("f", 20)});
  for (const int replicas : {1, 2}) {
    in_.job.mutable_strategy()->set_replicas(replicas);
    in_.job.mutable_strategy()->set_stages(0);
    in_.job.mutable_strategy()->clear_layers_per_stage();
    for (int i = 0; i < 2; ++i) in_.job.mutable_strategy()->add_layers_per_stage(3);
    EXPECT_THAT(Make().plan.ranks(), SizeIs(2 * replicas));
  }
  Four();
  in_.job.mutable_strategy()->set_replicas(3);
  EXPECT_THAT(Refusal(), HasSubstr("3"));
  in_.job.mutable_strategy()->set_replicas(1);
  for (const char* name : {"lab", "home", "cafe"}) in_.job.mutable_strategy()->add_nodes(name);
  EXPECT_THAT(Refusal(), HasSubstr("strategy.nodes: 3 daemons for 2 stages"));
}

TEST_F(PlannerReplicasTest, GoldenTwoReplicasOfTwoStages) {
  Four();
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob p = Make();
  std::ifstream in(absl::StrCat(ISTHMUS_GOLDEN_DIR, "/replicas.txt"));
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(Lines(p), golden.str());
}

TEST_F(PlannerReplicasTest, ThePlanIsWholeAndItsListsHold) {
  Four();
  for (const int stages : {1, 2}) {
    in_.job.mutable_strategy()->set_stages(stages);
    const Plan plan = Make().plan;
    ASSERT_THAT(plan.ranks(), SizeIs(2 * stages));
    ASSERT_THAT(plan.replicas(), SizeIs(2));
    EXPECT_TRUE(CheckReplicas(plan).ok());
    EXPECT_TRUE(CheckActions(plan).ok()) << CheckActions(plan);
    std::set<std::string> ids;
    for (const LinkPlan& link : plan.links()) EXPECT_TRUE(ids.insert(link.id()).second);
    for (const GroupPlan& group : plan.groups()) EXPECT_TRUE(CheckGroup(plan, group).ok());
    std::map<std::string, int64_t> left = ElementsLeft(plan);
    EXPECT_THAT(left, SizeIs(stages));
    for (const auto& [set, elements] : left) {
      EXPECT_LE(elements, 0) << set;
      EXPECT_GT(elements, -kGradientRow) << set;
    }
  }
}

TEST_F(PlannerReplicasTest, AutoencodersAreAmongTheParametersOfAStage) {
  Four();
  in_.job.mutable_strategy()->set_stages(2);
  const Plan without = Make().plan;
  in_.job.mutable_compression()->set_forward("autoencoder(16)");
  in_.job.mutable_compression()->set_backward("none");
  const Plan with = Make().plan;
  for (int rank : {0, 1, 2, 3})
    EXPECT_EQ(OwnElements(with, rank) - OwnElements(without, rank), 16 * 256) << rank;
}

// PowerSGD: what the engine has is what the plan says, tensor by tensor, and the words say that a
// low rank comes with error feedback.
TEST_F(PlannerReplicasTest, ALowRankIsOfEachMatrix) {
  Four();
  in_.job.mutable_compression()->set_gradients("lowrank(4)");
  for (const int stages : {1, 2}) {
    in_.job.mutable_strategy()->set_stages(stages);
    const PlannedJob p = Make();
    for (const GroupPlan& group : p.plan.groups()) {
      EXPECT_TRUE(CheckGroup(p.plan, group).ok()) << CheckGroup(p.plan, group);
      if (group.tensors() == GroupPlan::TIED) continue;
      EXPECT_EQ(FormatCodec(group.contribution()), "ef(lowrank(4))");
    }
    for (const auto& [set, elements] : ElementsLeft(p.plan)) EXPECT_EQ(elements, 0) << set;
    EXPECT_EQ(p.plan.job().compression().gradients(), "ef(lowrank(4))");
    EXPECT_THAT(Lines(p), HasSubstr("gradients of replicas: lowrank(4) by matrix, with error "
                                    "feedback, as PowerSGD has it -> ef(lowrank(4))"));
    in_.job.mutable_compression()->set_gradients("none");
    EXPECT_GT(Make().plan.predicted_step_s(), p.plan.predicted_step_s());
    in_.job.mutable_compression()->set_gradients("lowrank(4)");
  }
  in_.job.mutable_compression()->set_gradients("lowrank(4) | zstd");
  EXPECT_THAT(Refusal(), HasSubstr("compression.gradients: 'lowrank(4) | zstd' is not allowed"));
}

// Later stages end their backward passes sooner: as fp32 their gradients cost nothing that counts,
// until too many of them do.
TEST_F(PlannerReplicasTest, GradientsOfSomeStagesAlone) {
  Four(20, 400);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_compression()->set_gradients("ef(lowrank(4))");
  const auto predicted = [&](int coded) {
    in_.job.mutable_compression()->set_gradient_stages(coded);
    return Make().plan.predicted_step_s();
  };
  EXPECT_LE(predicted(2), predicted(1));
  EXPECT_LT(predicted(1), predicted(0));
  in_.job.mutable_compression()->set_gradient_stages(1);
  const PlannedJob p = Make();
  std::set<std::string> codecs;
  for (const GroupPlan& group : p.plan.groups())
    codecs.insert(absl::StrCat(SetName(group), " ", FormatCodec(group.contribution())));
  EXPECT_THAT(codecs, Contains("stage 0 ef(lowrank(4))"));
  EXPECT_THAT(codecs, Contains("stage 1 none"));
  EXPECT_THAT(Lines(p), HasSubstr("gradients of replicas: ef(lowrank(4)), on 1 of 2 stages "
                                  "(compression.gradient_stages); the others reduce as fp32"));
  in_.job.mutable_compression()->set_gradient_stages(-1);
  EXPECT_THAT(Refusal(), HasSubstr("compression.gradient_stages: '-1' is not allowed"));
}

TEST_F(PlannerReplicasTest, AsManyAsPay) {
  in_.job.mutable_strategy()->set_replicas(0);
  Four(2, 1000);
  PlannedJob p = Make();
  EXPECT_THAT(p.plan.ranks(), SizeIs(4)) << Lines(p);
  EXPECT_THAT(Lines(p), HasSubstr("4 replicas x 1 stage: "));
  EXPECT_THAT(Lines(p), HasSubstr("2 replicas x 2 stages: "));
  Four(200, 2);
  p = Make();
  EXPECT_THAT(p.plan.ranks(), SizeIs(1)) << Lines(p);
  EXPECT_THAT(p.plan.replicas(), IsEmpty());
}

TEST_F(PlannerReplicasTest, Refusals) {
  Nodes({MakeNode("lab", 20), MakeNode("home", 20), MakeNode("cafe", 20)});
  in_.job.mutable_strategy()->set_stages(2);
  EXPECT_EQ(Refusal(), "2 replicas x 2 stages need 4 daemons; 3 are free (cafe, home, lab)");
  in_.job.mutable_strategy()->set_stages(0);
  for (const char* name : {"lab", "home", "cafe"}) in_.job.mutable_strategy()->add_nodes(name);
  EXPECT_THAT(Refusal(),
              HasSubstr("3 daemons for 2 replicas (strategy.replicas): no equal chains"));
  in_.job.mutable_strategy()->set_stages(1);
  EXPECT_THAT(Refusal(), HasSubstr("3 daemons for 2 replicas x 1 stage, which need 2"));
  in_.job.mutable_compression()->set_gradients("delta(quant(4))");
  EXPECT_THAT(Refusal(), HasSubstr("compression.gradients: 'delta(quant(4))' is not allowed"));
}

// All replicas hold the same: one of them stores it.
TEST_F(PlannerReplicasTest, ACheckpointIsOneReplicas) {
  Four();
  in_.job.mutable_strategy()->set_stages(1);
  for (const NodeInfo& node : in_.topology.nodes()) {
    in_.paths[node.id()].set_up_bits_per_s(1e6);
    in_.paths[node.id()].set_down_bits_per_s(1e6);
  }
  const auto checkpoint = [&] {
    const std::string lines = Lines(Make());
    const size_t at = lines.find("a checkpoint: ");
    return lines.substr(at, lines.find(',', at) - at);
  };
  const std::string two = checkpoint();
  in_.job.mutable_strategy()->set_replicas(1);
  EXPECT_EQ(two, checkpoint());
}

TEST_F(PlannerReplicasTest, NamedDaemonsAreTakenReplicaAfterReplica) {
  Four();
  for (const char* name : {"attic", "lab", "cafe", "home"})
    in_.job.mutable_strategy()->add_nodes(name);
  const Plan plan = Make().plan;
  std::vector<std::string> names;
  for (const RankPlan& rank : plan.ranks())
    names.push_back(absl::StrCat(rank.replica(), rank.stage(), rank.node_name()));
  EXPECT_THAT(names, ::testing::ElementsAre("00attic", "01lab", "10cafe", "11home"));
}

// A resumed job stays where it was with the shares it had: buffers belong to a replica's samples.
TEST_F(PlannerReplicasTest, AResumeKeepsDaemonsAndShares) {
  Nodes({MakeNode("lab", 40), MakeNode("home", 20)});
  in_.job.mutable_strategy()->set_stages(1);
  const Plan first = Make().plan;
  in_.previous = first;
  in_.from_checkpoint = true;
  in_.start_step = 100;
  in_.generation = 4;
  in_.topology.mutable_nodes(0)->set_block_forward_s(1.1 / 40);
  const PlannedJob again = Make();
  ASSERT_THAT(again.plan.replicas(), SizeIs(2));
  for (int r : {0, 1}) {
    EXPECT_EQ(again.plan.replicas(r).samples(), first.replicas(r).samples());
    EXPECT_EQ(again.plan.ranks(r).node_id(), first.ranks(r).node_id());
  }
  in_.job.mutable_strategy()->set_replicas(1);
  EXPECT_THAT(Lines(Make()), HasSubstr("the job says otherwise now (strategy.replicas)"));
}

// Local steps: gradients stay inside a replica, differences are reduced by a list of their own.
TEST_F(PlannerReplicasTest, LocalStepsHaveGroupsAndListsOfTheirOwn) {
  Four(20, 10);
  for (const int stages : {1, 2}) {
    in_.job.mutable_strategy()->set_stages(stages);
    in_.job.mutable_strategy()->set_local_steps(1);
    const PlannedJob every = Make();
    in_.job.mutable_strategy()->set_local_steps(50);
    const PlannedJob local = Make();
    EXPECT_LT(local.plan.predicted_step_s(), every.plan.predicted_step_s());
    EXPECT_TRUE(CheckActions(local.plan).ok());
    std::multiset<std::string> groups;
    for (const GroupPlan& group : local.plan.groups())
      groups.insert(absl::StrCat(group.id(), GroupPlan::Value_Name(group.value())));
    EXPECT_EQ(groups, stages == 1 ? (std::multiset<std::string>{"stage 0DIFFERENCE"})
                                  : (std::multiset<std::string>{
                                        "tied.0GRADIENT", "tied.1GRADIENT", "stage 0DIFFERENCE",
                                        "stage 1DIFFERENCE", "tied firstDIFFERENCE",
                                        "tied lastDIFFERENCE"}));
    for (const RankPlan& rank : local.plan.ranks())
      EXPECT_EQ(rank.agree(rank.agree_size() - 1).op(), Action::OUTER);
    EXPECT_THAT(every.plan.ranks(0).agree(), IsEmpty());
    EXPECT_THAT(Lines(local),
                HasSubstr("after 50 steps all agree (DiLoCo, outer learning rate 0.7"));
    EXPECT_THAT(Lines(local), HasSubstr("what replicas learnt: an agreement "));
  }
}

// The first and the last stage have nothing to tell each other then.
TEST_F(PlannerReplicasTest, AHeadOfItsOwnNeedsNoLinkBetweenTheEnds) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10), MakeNode("c", 10)});
  in_.job.mutable_strategy()->set_replicas(1);
  for (const char* name : {"a", "b", "c"}) in_.job.mutable_strategy()->add_nodes(name);
  in_.job.mutable_strategy()->set_stages(3);
  const PlannedJob tied = Make();
  ASSERT_EQ(tied.plan.groups_size(), 1);
  in_.job.mutable_model()->set_tied(false);
  const PlannedJob plan = Make();
  EXPECT_EQ(plan.plan.groups_size(), 0);
  EXPECT_EQ(plan.plan.links_size(), 2);
  EXPECT_LT(plan.plan.predicted_step_s(), tied.plan.predicted_step_s());
  EXPECT_GT(plan.plan.ranks(2).memory_bytes(), 0);
  EXPECT_EQ(plan.plan.ranks(2).memory_bytes(), tied.plan.ranks(2).memory_bytes())
      << "as many weights there as of a copy";
  EXPECT_THAT(Lines(plan), HasSubstr("parameters, head and embedding apart"));
  EXPECT_THAT(Lines(plan), Not(HasSubstr("tied")));
  for (LinkMeasurement& link : *in_.topology.mutable_links()) {
    if (link.from_id() != in_.topology.nodes(1).id() && link.to_id() != in_.topology.nodes(1).id())
      link.set_error("connect: timed out"), link.set_rate_bits_per_s(0);
  }
  EXPECT_EQ(Make().plan.links_size(), 2) << "no link between a and c is needed";
  in_.job.mutable_model()->set_tied(true);
  EXPECT_THAT(Refusal(), HasSubstr("(tied embedding)"));
}

TEST_F(PlannerReplicasTest, ReplicasOfAFrozenSecondMomentExchangeMomentum) {
  Four(20, 10);
  in_.job.mutable_strategy()->set_stages(2);
  const PlannedJob adamw = Make();
  in_.job.mutable_recipe()->set_optimizer("quantized_adam");
  in_.job.mutable_recipe()->set_optimizer_warmup(30);
  const PlannedJob planned = Make();
  EXPECT_TRUE(CheckActions(planned.plan).ok());
  ASSERT_GE(planned.plan.groups_size(), 3);
  for (const GroupPlan& group : planned.plan.groups()) {
    EXPECT_EQ(group.value(), GroupPlan::MOMENTUM) << group.id();
    EXPECT_TRUE(CheckGroup(planned.plan, group).ok()) << group.id();
  }
  EXPECT_EQ(FormatCodec(planned.plan.groups(1).contribution()), "ef(quant(4, token, symmetric))");
  EXPECT_THAT(Lines(planned), HasSubstr("momentum of replicas: an exchange takes "));
  EXPECT_THAT(Lines(planned), HasSubstr("quantized_adam: 30 steps of AdamW on exact gradients, "));
  EXPECT_GT(planned.plan.deadlines().step_ms(), adamw.plan.deadlines().step_ms())
      << "the warm-up reduces fp32";
}

TEST_F(PlannerReplicasTest, AHeadOfItsOwnHasGroupsOfStagesAlone) {
  Four(20, 10);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_model()->set_tied(false);
  for (const int64_t local_steps : {1, 50}) {
    in_.job.mutable_strategy()->set_local_steps(local_steps);
    const PlannedJob planned = Make();
    EXPECT_TRUE(CheckActions(planned.plan).ok());
    for (const GroupPlan& group : planned.plan.groups())
      EXPECT_EQ(group.tensors(), GroupPlan::OWN) << group.id();
  }
}

// Streaming: a group for each fragment that a stage has layers of, and the time that no step hides.
TEST_F(PlannerReplicasTest, FragmentsCrossWhileTrainingGoesOn) {
  Four(20, 1);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_strategy()->set_local_steps(30);
  const PlannedJob whole = Make();
  in_.job.mutable_strategy()->set_fragments(3);
  const PlannedJob fragments = Make();
  EXPECT_TRUE(CheckActions(fragments.plan).ok()) << CheckActions(fragments.plan);
  std::set<std::string> ids;
  for (const GroupPlan& group : fragments.plan.groups()) {
    if (group.value() != GroupPlan::DIFFERENCE) continue;
    EXPECT_EQ(group.parts(), 3);
    ids.insert(group.id());
  }
  EXPECT_THAT(ids, SizeIs(8));
  EXPECT_THAT(ids, Contains("stage 1 part 2"));
  EXPECT_THAT(Lines(fragments), HasSubstr("on 3 fragments, layers 3 apart, one after the other"));
  in_.job.mutable_strategy()->set_fragment_delay(4);
  in_.job.mutable_strategy()->set_fragment_mix(0.5);
  const PlannedJob delayed = Make();
  EXPECT_LT(delayed.plan.predicted_step_s(), fragments.plan.predicted_step_s());
  EXPECT_LT(delayed.plan.predicted_step_s(), whole.plan.predicted_step_s());
  EXPECT_THAT(Lines(delayed), HasSubstr("while up to 4 steps go on"));
  EXPECT_THAT(Lines(delayed), HasSubstr("after which a replica keeps 0.5 of its own"));
  EXPECT_THAT(Lines(delayed), HasSubstr("are of all at once, at the end of a round"));
}

// Buckets: fewer seconds where contributions can pass while the last backward pass computes.
TEST_F(PlannerReplicasTest, BucketsHideContributions) {
  Nodes({MakeNode("lab", 5), MakeNode("home", 5)}, 50);
  in_.job.mutable_strategy()->set_stages(1);
  in_.job.mutable_compression()->set_gradients("none");
  const PlannedJob p = Make();
  EXPECT_THAT(Lines(p), HasSubstr("buckets: the gradients of the stage are reduced in "));
  ASSERT_GT(p.plan.groups_size(), 1);
  const std::map<int, int> pieces = BackwardPieces(TrainOf(p.plan, 0));
  EXPECT_EQ(pieces.rbegin()->second, p.plan.groups_size());
  for (const LinkPlan& link : p.plan.links()) EXPECT_GT(link.queue_limit(), p.plan.groups_size());
  Nodes({MakeNode("lab", 5), MakeNode("home", 5)}, 100000);
  const PlannedJob fast = Make();
  EXPECT_THAT(Lines(fast), HasSubstr("buckets: the gradients of a stage are reduced as a whole"));
  EXPECT_EQ(fast.plan.groups_size(), 1);
}

TEST_F(PlannerReplicasTest, GradientStagesThatAreNotThereAreSaid) {
  Four();
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_strategy()->set_replicas(2);
  const auto warns = [this](const char* words) {
    return ::testing::Value(Make().warnings, Contains(HasSubstr(words)));
  };
  in_.job.mutable_compression()->set_gradient_stages(2);
  EXPECT_FALSE(warns("compression.gradient_stages"));
  in_.job.mutable_compression()->set_gradient_stages(3);
  EXPECT_TRUE(warns("compression.gradient_stages is 3, and this plan has 2 stages"));
  in_.job.mutable_strategy()->set_replicas(1);
  EXPECT_TRUE(warns("compression.gradient_stages 3 changes nothing with one replica"));
}

TEST_F(PlannerReplicasTest, LocalStepsThatChangeNothingAreSaid) {
  Four();
  in_.job.mutable_strategy()->set_replicas(1);
  in_.job.mutable_strategy()->set_local_steps(50);
  EXPECT_THAT(Make().warnings, Contains(HasSubstr("changes nothing with one replica")));
  in_.job.mutable_strategy()->set_replicas(2);
  in_.job.mutable_strategy()->set_local_steps(1000);
  EXPECT_THAT(Make().warnings, Contains(HasSubstr("the job ends before strategy.local_steps")));
  in_.job.mutable_strategy()->set_local_steps(5000);
  EXPECT_THAT(Refusal(), HasSubstr("strategy.local_steps: '5000' is not allowed"));
}

TEST_F(PlannerReplicasTest, OuterMomentumOfAShortJobIsWarnedOf) {
  Four();
  in_.job.mutable_strategy()->set_local_steps(5);
  in_.job.mutable_strategy()->set_outer_momentum(0.9);
  in_.job.mutable_recipe()->set_steps(60);
  const char* words = "outer_momentum 0.9 wants 100 agreements and more, this job has 12";
  EXPECT_THAT(Make().warnings, Contains(HasSubstr(words)));
  in_.job.mutable_strategy()->set_outer_momentum(0);
  EXPECT_THAT(Make().warnings, Not(Contains(HasSubstr(words))));
  in_.job.mutable_strategy()->set_outer_momentum(0.9);
  in_.job.mutable_recipe()->set_steps(500);
  EXPECT_THAT(Make().warnings, Not(Contains(HasSubstr("outer_momentum"))));
}

// What a job waits for may be daemons; data that are wrong on those that are busy are no matter of
// waiting.
TEST_F(PlannerReplicasTest, WrongDataAreSaidWhileDaemonsAreBusy) {
  in_.job.mutable_data()->set_format("tokens");
  in_.job.mutable_data()->set_path("ids.bin");
  in_.job.mutable_strategy()->set_replicas(1);
  in_.topology.Clear();
  NodeInfo node = MakeNode("lab", 20);
  DataFile* file = node.add_data_files();
  file->set_path("ids.bin");
  file->set_bytes(1 << 20);
  file->set_format("uint16");
  file->set_tokens(1 << 19);
  in_.absent.push_back({"lab", "lab", "lab runs job other", true, node});
  EXPECT_TRUE(absl::IsUnavailable(MakePlan(in_).status())) << Refusal();
  in_.absent[0].node->mutable_data_files()->rbegin()->set_highest_id(1 << 18);
  EXPECT_TRUE(absl::IsInvalidArgument(MakePlan(in_).status()));
  EXPECT_THAT(Refusal(), HasSubstr("token 262144 is beyond model.vocabulary"));
}

// F65: a link that what replicas exchange takes longer on than a step computes.
TEST_F(PlannerReplicasTest, WarnsWhereAgreeingTakesLongest) {
  Nodes({MakeNode("lab", 200), MakeNode("home", 200)}, 2);
  in_.job.mutable_strategy()->set_stages(1);
  EXPECT_THAT(Make().warnings,
              Contains(HasSubstr("what replicas exchange, more than the compute")));
  Nodes({MakeNode("lab", 1), MakeNode("home", 1)}, 10000);
  EXPECT_THAT(Make().warnings, Not(Contains(HasSubstr("what replicas exchange"))));
}

}  // namespace
}  // namespace isthmus::coordinator
