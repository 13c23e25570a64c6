// What `compression: auto` chooses, by the step that the planner predicts.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/groups.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const std::pair<const char*, const char*> kFixed[] = {
    {"none", "none"},         {"bf16", "bf16"},         {"quant(8)", "quant(8)"},
    {"quant(4)", "quant(6)"}, {"quant(4)", "quant(4)"}, {"quant(6)", "quant(6)"}};

// The setting of the measured table: 4 daemons of one thread, 8 layers x 256, 8 micro-batches of 4
// samples, 20 ms round trip.
class PlannerAutoTest : public ::testing::Test {
 protected:
  PlannerAutoTest() {
    in_.job_id = "bench-1";
    in_.generation = 1;
    in_.job = MakeJob(8, 256, 128);
    in_.job.mutable_strategy()->set_stages(4);
    Rate(100);
  }
  void Rate(double mbit, double gflops = 25, double round_trip_ms = 20) {
    in_.topology.Clear();
    for (const char* name : {"a", "b", "c", "d"})
      *in_.topology.add_nodes() = MakeNode(name, gflops);
    JoinAll(&in_.topology, mbit, round_trip_ms);
  }
  PlannedJob Plan() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? *planned : PlannedJob();
  }
  static std::string Codecs(const isthmus::Plan& plan) {
    return absl::StrJoin(plan.links(), ", ", [](std::string* out, const LinkPlan& l) {
      absl::StrAppend(out, FormatCodec(l.forward()), " / ", FormatCodec(l.backward()));
    });
  }

  PlannerInput in_;
};

TEST_F(PlannerAutoTest, AutoIsWithinThreePercentOfTheBestFixedCodec) {
  for (const double mbit : {8000.0, 100.0, 20.0, 5.0, 1.0}) {
    Rate(mbit);
    in_.job.mutable_compression()->set_forward("auto");
    in_.job.mutable_compression()->set_backward("auto");
    const isthmus::Plan plan = Plan().plan;
    for (const auto& [forward, backward] : kFixed) {
      in_.job.mutable_compression()->set_forward(forward);
      in_.job.mutable_compression()->set_backward(backward);
      const double fixed_s = Plan().plan.predicted_step_s();
      EXPECT_LE(plan.predicted_step_s(), 1.03 * fixed_s)
          << mbit << " Mbit/s: " << Codecs(plan) << " against " << forward << " / " << backward;
    }
  }
}

TEST_F(PlannerAutoTest, FourBitsAreTheLeastUnlessTheJobAllowsLess) {
  Rate(0.5);
  const auto least = [&] {
    int bits = 32;
    const isthmus::Plan plan = Plan().plan;
    for (const LinkPlan& l : plan.links()) {
      for (const CodecSpec* c : {&l.forward(), &l.backward()}) {
        while (c->has_inner()) c = &c->inner();
        if (c->kind() == CodecSpec::QUANT) bits = std::min(bits, c->bits());
        const bool whole = c->kind() != CodecSpec::QUANT || c->symmetric();
        EXPECT_TRUE(c != &l.backward() || whole);
      }
    }
    return bits;
  };
  EXPECT_EQ(least(), 4);
  in_.job.mutable_compression()->set_min_bits(6);
  EXPECT_EQ(least(), 6);
  in_.job.mutable_compression()->set_min_bits(2);
  EXPECT_LT(least(), 4);
}

// Token ids of a predict, that come along or not, are within the tolerance.
TEST_F(PlannerAutoTest, ASlowerLinkNeverCarriesMoreBytes) {
  constexpr double kTokenIds = 1.05;
  const TensorDims dims{4, 128, 256};
  double least = 1e12;
  std::string codecs;
  for (double mbit = 20000; mbit > 0.2; mbit /= 2) {
    Rate(mbit);
    const isthmus::Plan plan = Plan().plan;
    double bytes = 0;
    for (int b = 0; b < 3; ++b) {
      bytes += MeanEncodedBytes(plan.links(b).forward(), dims, plan.first_visits()) +
               EncodedBytes(plan.links(b).backward(), dims, true);
    }
    EXPECT_LE(bytes, kTokenIds * least)
        << mbit << " Mbit/s: " << Codecs(plan) << " after " << codecs;
    least = std::min(least, bytes);
    codecs = Codecs(plan);
  }
  EXPECT_LT(least, 6 * 4.3 / 8 * static_cast<double>(dims.elements())) << "four bits each way";
}

// A boundary more is one more place to lose something: the price adds up.
TEST_F(PlannerAutoTest, ThePlanSaysThePriceAndWhatOthersWouldTake) {
  Rate(20);
  const PlannedJob p = Plan();
  EXPECT_THAT(
      p.plan.explanation(),
      Contains(::testing::AllOf(HasSubstr("codecs: a step of "), HasSubstr(" with bf16 and "),
                                HasSubstr("expected price: a loss 0."),
                                HasSubstr(" more steps (compression.min_bits 4)"))));
  Rate(10000, 25, 0.1);
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("expected price: none that was")));
  in_.job.mutable_compression()->set_forward("quant(4)");
  in_.job.mutable_compression()->set_backward("quant(4)");
  EXPECT_THAT(Plan().plan.explanation(), Not(Contains(HasSubstr("expected price"))));
}

TEST_F(PlannerAutoTest, ASlowStageOfAFastLinkIsStillChosenForFillAndDrain) {
  // Hidden behind the compute in the steady state: by it alone nothing would be compressed.
  Rate(20, 5);
  const isthmus::Plan plan = Plan().plan;
  const double auto_s = plan.predicted_step_s();
  in_.job.mutable_compression()->set_forward("none");
  in_.job.mutable_compression()->set_backward("none");
  EXPECT_LT(auto_s, 0.95 * Plan().plan.predicted_step_s()) << Codecs(plan);
}

// F66: on a fast link a codec may take longer than the bytes that it saves.
TEST_F(PlannerAutoTest, AFastLinkCarriesWholeOrHalfFloats) {
  Rate(10000, 25, 0.1);
  const isthmus::Plan plan = Plan().plan;
  EXPECT_EQ(Codecs(plan).find("quant"), std::string::npos) << Codecs(plan);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_strategy()->set_replicas(2);
  const auto step_s = [&](const char* gradients) {
    in_.job.mutable_compression()->set_gradients(gradients);
    return Plan().plan.predicted_step_s();
  };
  const double auto_s = step_s("auto");
  for (const char* codec : {"none", "bf16", "ef(topk(0.01))", "lowrank(4)"})
    EXPECT_LE(auto_s, step_s(codec)) << codec;
}

TEST_F(PlannerAutoTest, TheTiedGradientGoesInBf16AndInFewerBitsWhereTheLinkIsSlow) {
  const auto tied = [&](double mbit) {
    Rate(mbit);
    const isthmus::Plan plan = Plan().plan;
    const LinkPlan& link = plan.links(3);
    EXPECT_EQ(link.kind(), LinkPlan::GROUP);
    const std::string codec = FormatCodec(plan.groups(0).contribution());
    EXPECT_EQ(DirectionCodecs(plan, link, true), codec);
    EXPECT_EQ(plan.job().compression().tied(), codec) << "what a resume compares";
    return codec;
  };
  EXPECT_EQ(tied(10000), "bf16");
  EXPECT_EQ(tied(20), "quant(8, token, symmetric)");
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("tied embedding a - d: ")));
  in_.job.mutable_compression()->set_tied("none");
  EXPECT_EQ(tied(20), "none");
  in_.job.mutable_strategy()->set_stages(1);
  in_.job.mutable_compression()->set_tied("auto");
  EXPECT_EQ(Plan().plan.job().compression().tied(), "none");
}

}  // namespace
}  // namespace isthmus::coordinator
