#include "proto/plan/actions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/action_check.h"
#include "proto/plan/groups.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

struct Shape {
  int stages = 2;
  int replicas = 1;
  int micros = 2;
  int queue_limit = 4;
  const char* schedule = "1f1b";
  bool hashes = false;
  bool shared = true;  // replicas reduce their gradients
  int buckets = 1;     // ... in so many parts
};

void Join(Plan* plan, const std::string& id, int lower, int upper, LinkPlan::Kind kind) {
  LinkPlan* link = plan->add_links();
  link->set_id(id);
  link->set_kind(kind);
  link->set_lower(lower);
  link->set_upper(upper);
  if (kind == LinkPlan::BOUNDARY) *link->mutable_forward() = ParseCodec("delta(quant(3))").value();
}

Plan Made(const Shape& s) {
  Plan plan;
  JobSpec* job = plan.mutable_job();
  job->mutable_model()->set_layers(s.stages);
  job->mutable_model()->set_vocabulary(11);
  job->mutable_model()->set_hidden(4);
  job->mutable_recipe()->set_global_batch(s.micros * s.replicas);
  job->mutable_recipe()->set_micro_batch(1);
  job->mutable_recipe()->set_eval_samples(1);
  job->mutable_strategy()->set_schedule(s.schedule);
  job->mutable_strategy()->set_queue_limit(s.queue_limit);
  job->mutable_compression()->set_check_buffers(s.hashes);
  for (int d = 0; d < s.replicas; ++d) {
    plan.add_replicas()->set_samples(s.micros);
    for (int i = 0; i < s.stages; ++i) {
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(i);
      rank->set_replica(d);
      rank->set_first_layer(i);
      rank->set_end_layer(i + 1);
      const int r = plan.ranks_size() - 1;
      if (i > 0) Join(&plan, absl::StrCat("b", i - 1, ".", d), r - 1, r, LinkPlan::BOUNDARY);
    }
  }
  for (int a = 0; a < plan.ranks_size(); ++a) {
    for (int b = a + 1; b < plan.ranks_size(); ++b)
      Join(&plan, absl::StrCat("g", a, "-", b), a, b, LinkPlan::GROUP);
  }
  AddTiedGroup(CodecSpec(), &plan);
  for (int i = 0; s.shared && s.replicas > 1 && i < s.stages; ++i) {
    for (int b = 0; b < s.buckets; ++b) {
      GroupPlan* group = plan.add_groups();
      group->set_id(absl::StrCat("stage ", i, s.buckets > 1 ? absl::StrCat(" part ", b) : ""));
      group->set_tensors(GroupPlan::OWN);
      group->set_rule(GroupPlan::SHARDED);
      for (int d = 0; d < s.replicas; ++d) group->add_ranks(d * s.stages + i);
      if (s.buckets == 1) continue;
      group->set_part(b);
      group->set_parts(s.buckets);
    }
  }
  for (LinkPlan& link : *plan.mutable_links()) {
    if (link.kind() == LinkPlan::GROUP) link.set_queue_limit(2 + s.buckets);  // and a vote
  }
  return plan;
}

std::string Names(const Plan& plan, int rank, bool passes = false) {
  const Wiring wiring = Wiring::Of(plan);
  std::vector<std::string> names;
  for (const Action& a : plan.ranks(rank).train()) {
    const bool pass =
        a.op() == Action::FWD || a.op() == Action::BWD || a.what() == FrameHeader::GRADIENT ||
        ((a.op() == Action::SEND || a.op() == Action::RECV) && a.what() == FrameHeader::ACTIVATION);
    if (!pass || passes) names.push_back(ActionName(a, wiring));
  }
  return absl::StrJoin(names, ", ");
}

TEST(Actions, TheEndOfAStepOfOneChain) {
  Shape shape;
  shape.stages = 3;
  Plan plan = Made(shape);
  ASSERT_TRUE(WriteActions({}, &plan).ok()) << WriteActions({}, &plan);
  EXPECT_EQ(Names(plan, 0),
            "OFFER tied, REDUCE tied, RECV vote on b0.0, DECIDE, SEND decision on b0.0, STEP");
  EXPECT_EQ(Names(plan, 1),
            "RECV vote on b1.0, SEND vote on b0.0, RECV decision on b0.0, SEND decision on b1.0, "
            "STEP");
  EXPECT_EQ(Names(plan, 2),
            "OFFER tied, SEND vote on b1.0, REDUCE tied, RECV decision on b1.0, STEP")
      << "its vote does not wait for the tied sum";
  shape.stages = 1;
  plan = Made(shape);
  ASSERT_TRUE(WriteActions({}, &plan).ok());
  EXPECT_EQ(Names(plan, 0, true), "FWD 0, BWD 0, FWD 1, BWD 1, DECIDE, STEP");
}

TEST(Actions, BufferHashesComeBeforeVotesAndDecisions) {
  Shape shape;
  shape.hashes = true;
  Plan plan = Made(shape);
  ASSERT_TRUE(WriteActions({}, &plan).ok());
  EXPECT_EQ(Names(plan, 0),
            "SEND buffer hash on b0.0, OFFER tied, REDUCE tied, RECV vote on b0.0, DECIDE, "
            "SEND decision on b0.0, STEP");
  EXPECT_EQ(Names(plan, 1),
            "OFFER tied, SEND vote on b0.0, REDUCE tied, RECV buffer hash on b0.0, "
            "RECV decision on b0.0, STEP");
}

TEST(Actions, ReplicasReduceBeforeTheyVoteAndOneDecides) {
  Shape shape;
  shape.replicas = 2;
  Plan plan = Made(shape);
  const absl::Status written = WriteActions({}, &plan);
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(Names(plan, 0),
            "OFFER tied, OFFER stage 0, REDUCE tied, REDUCE stage 0, COLLECT tied, "
            "COLLECT stage 0, RECV vote on b0.0, RECV vote on g0-2, DECIDE, "
            "SEND decision on g0-2, SEND decision on b0.0, STEP");
  EXPECT_EQ(Names(plan, 2),
            "OFFER tied, OFFER stage 0, REDUCE tied, REDUCE stage 0, COLLECT tied, "
            "COLLECT stage 0, RECV vote on b0.1, SEND vote on g0-2, RECV decision on g0-2, "
            "SEND decision on b0.1, STEP");
}

// The last backward pass is cut, and each bucket but the last one is offered while it goes on.
TEST(Actions, BucketsAreOfferedBetweenPiecesOfTheLastBackwardPass) {
  Shape shape;
  shape.replicas = 2;
  shape.buckets = 3;
  Plan plan = Made(shape);
  const absl::Status written = WriteActions({}, &plan);
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(Names(plan, 1, true),
            "RECV activation 0 on b0.0, FWD 0, BWD 0, SEND gradient 0 on b0.0, "
            "RECV activation 1 on b0.0, FWD 1, BWD 1, OFFER stage 1 part 0, BWD 1, "
            "OFFER stage 1 part 1, BWD 1, SEND gradient 1 on b0.0, "
            "OFFER tied, OFFER stage 1 part 2, "
            "REDUCE stage 1 part 0, REDUCE stage 1 part 1, REDUCE tied, REDUCE stage 1 part 2, "
            "COLLECT stage 1 part 0, COLLECT stage 1 part 1, COLLECT tied, COLLECT stage 1 part 2, "
            "SEND vote on b0.0, RECV decision on b0.0, STEP");
  const std::map<int, int> pieces = BackwardPieces(TrainOf(plan, 1));
  EXPECT_EQ(pieces, (std::map<int, int>{{0, 1}, {1, 3}}));
  // Where steps overlap no pass is the last one: they are offered after it.
  shape.schedule = "overlap";
  plan = Made(shape);
  ASSERT_TRUE(WriteActions({}, &plan).ok()) << WriteActions({}, &plan);
  EXPECT_EQ(BackwardPieces(TrainOf(plan, 1)), (std::map<int, int>{{0, 1}, {1, 1}}));
}

// A piece of a pass takes its share of the time, and what is offered early travels meanwhile.
TEST(Actions, BucketsTravelWhileTheLastBackwardPassComputes) {
  const auto seconds = [](int buckets, double transfer_s) {
    Shape shape;
    shape.stages = 1;
    shape.replicas = 2;
    shape.micros = 1;
    shape.buckets = buckets;
    Plan plan = Made(shape);
    EXPECT_TRUE(WriteActions({}, &plan).ok());
    const Wiring wiring = Wiring::Of(plan);
    ScheduleCosts costs = ScheduleCosts::Unit(wiring);
    costs.backward_s = {8, 8};
    costs.group_s.assign(plan.groups_size(), transfer_s / buckets);
    return Simulate({TrainOf(plan, 0), TrainOf(plan, 1)}, wiring, 4, costs).value().end_s;
  };
  EXPECT_DOUBLE_EQ(seconds(1, 4), 1 + 8 + 4 + 4);
  EXPECT_DOUBLE_EQ(seconds(4, 4), 1 + 8 + 1 + 4) << "three of four contributions cost nothing";
  EXPECT_DOUBLE_EQ(seconds(2, 32), 1 + 4 + 32 + 32) << "a slow link hides the pass";
}

TEST(Actions, EveryShapePassesTheCheckAtEveryQueueLimit) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int stages : {1, 2, 3, 5}) {
      for (int replicas : {1, 2, 3, 5, 7}) {
        for (int limit : {1, 2, 4}) {
          Shape shape;
          shape.stages = stages;
          shape.replicas = replicas;
          shape.micros = 3;
          shape.schedule = schedule;
          shape.queue_limit = limit;
          shape.hashes = limit == 2;
          shape.buckets = replicas == 3 ? 4 : 1;
          Plan plan = Made(shape);
          const absl::Status written = WriteActions({}, &plan);
          EXPECT_TRUE(written.ok())
              << schedule << " " << stages << " x " << replicas << ", " << limit << written;
        }
      }
    }
  }
}

TEST(Actions, TheCheckFindsEveryKindOfFault) {
  const auto at = [](Plan* p, int rank, int i) { return p->mutable_ranks(rank)->mutable_train(i); };
  const auto erase = [](Plan* p, int rank, int i) {
    p->mutable_ranks(rank)->mutable_train()->DeleteSubrange(i, 1);
  };
  const auto end = [](Plan* p, int rank) { return p->ranks(rank).train_size(); };
  // Rank 0: FWD 0, SEND, FWD 1, SEND, RECV, BWD 0, RECV, BWD 1, OFFER, REDUCE, RECV vote, DECIDE,
  // SEND decision, STEP.
  // Rank 1: RECV, FWD 0, BWD 0, SEND, RECV, FWD 1, BWD 1, SEND, OFFER, SEND vote,
  // REDUCE, RECV decision, STEP.
  const std::pair<const char*, std::function<void(Plan*)>> cases[] = {
      {"before its activation came", [&](Plan* p) { erase(p, 1, 0); }},
      {"is sent and not received", [&](Plan* p) { erase(p, 0, 10); }},
      {"comes next on b0.0", [&](Plan* p) { erase(p, 0, 1); }},
      {"rank 0: does not end with STEP", [&](Plan* p) { erase(p, 0, end(p, 0) - 1); }},
      {"there are 2 micro-batches", [&](Plan* p) { at(p, 1, 1)->set_micro(7); }},
      {"for the second time", [&](Plan* p) { *at(p, 1, 4) = *at(p, 1, 0); }},
      {"micro-batch 1 lacks its FWD or BWD",
       [&](Plan* p) {
         erase(p, 1, 7);
         erase(p, 1, 6);
       }},
      {"before its gradient came", [&](Plan* p) { at(p, 0, 4)->Swap(at(p, 0, 5)); }},
      {"before its FWD", [&](Plan* p) { at(p, 0, 0)->Swap(at(p, 0, 1)); }},
      {"not the boundary it belongs to", [&](Plan* p) { at(p, 0, 1)->set_link(1); }},
      {"before the decision", [&](Plan* p) { erase(p, 1, 11); }},
      {"0 ranks decide",
       [&](Plan* p) {
         at(p, 0, 11)->set_op(Action::SEND);
         at(p, 0, 11)->set_what(FrameHeader::VOTE);
         at(p, 0, 12)->set_op(Action::RECV);
       }},
      {"before its gradients are complete", [&](Plan* p) { at(p, 0, 7)->Swap(at(p, 0, 8)); }},
      {"REDUCE tied): out of order", [&](Plan* p) { at(p, 0, 8)->Swap(at(p, 0, 9)); }},
      {"tied is not reduced", [&](Plan* p) { erase(p, 1, 10); }},
      {"only a sharded group is collected",
       [&](Plan* p) { at(p, 0, 10)->set_op(Action::COLLECT); }},
      {"there are 1 groups", [&](Plan* p) { at(p, 0, 8)->set_group(3); }},
      {"before its vote", [&](Plan* p) { erase(p, 1, 9); }},
      {"STEP ends it", [&](Plan* p) { at(p, 0, 12)->Swap(at(p, 0, 13)); }},
      {"has no place in a validation pass",
       [&](Plan* p) { p->mutable_ranks(0)->mutable_eval(0)->set_op(Action::BWD); }},
      {"deadlock",
       [&](Plan* p) {
         // The first rank wants the vote before it offers, the last one the offer before it votes.
         at(p, 0, 9)->Swap(at(p, 0, 10));
         at(p, 0, 8)->Swap(at(p, 0, 9));
         at(p, 1, 9)->Swap(at(p, 1, 10));
       }},
  };
  for (const auto& [message, spoil] : cases) {
    Plan plan = Made(Shape());
    ASSERT_TRUE(WriteActions({}, &plan).ok());
    spoil(&plan);
    EXPECT_THAT(std::string(CheckActions(plan).message()), HasSubstr(message));
  }
}

TEST(Actions, TheCheckFindsABucketThatIsOfferedTooSoon) {
  Shape shape;
  shape.stages = 1;
  shape.replicas = 2;
  shape.buckets = 3;
  // FWD 0, BWD 0, FWD 1, BWD 1, OFFER part 0, BWD 1, OFFER part 1, BWD 1, OFFER part 2, REDUCE ...
  const std::pair<const char*, std::function<void(RankPlan*)>> cases[] = {
      {"before the gradients of its layers are complete",
       [](RankPlan* r) { r->mutable_train(5)->Swap(r->mutable_train(6)); }},
      {"before its gradients are complete",
       [](RankPlan* r) { r->mutable_train(7)->Swap(r->mutable_train(8)); }},
      {"before its gradients are complete",
       [](RankPlan* r) { r->mutable_train(1)->Swap(r->mutable_train(4)); }},
      {"the backward pass of micro-batch 1 has 2 pieces, and its gradients 3 parts",
       [](RankPlan* r) { r->mutable_train()->DeleteSubrange(3, 1); }},
      {"REDUCE stage 0 part 1): out of order",
       [](RankPlan* r) { r->mutable_train()->DeleteSubrange(6, 1); }},
  };
  for (const auto& [message, spoil] : cases) {
    Plan plan = Made(shape);
    ASSERT_TRUE(WriteActions({}, &plan).ok());
    spoil(plan.mutable_ranks(0));
    EXPECT_THAT(std::string(CheckActions(plan).message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace isthmus
