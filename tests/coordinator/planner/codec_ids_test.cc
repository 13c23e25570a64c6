// Where `compression: auto` lets token ids go along: only as far as a predict gains by them.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/pricing.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

constexpr int kLayers = 6;
// Of the cost: what a search that prices a few hundred choices may miss.
constexpr double kMissed = 1.001;

struct Case {
  std::vector<int> layers;
  double mbit;
  const char* schedule;
  std::string Words() const {
    return absl::StrCat(layers[0], " + ", layers[1], " + ", layers[2], " layers, ", mbit,
                        " Mbit/s, ", schedule);
  }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int first = 1; first + 2 <= kLayers; ++first) {
    for (int second = 1; first + second < kLayers; ++second) {
      for (const double mbit : {100.0, 50.0, 10.0, 3.0}) {
        for (const char* schedule : {"overlap", "1f1b"})
          cases.push_back({{first, second, kLayers - first - second}, mbit, schedule});
      }
    }
  }
  return cases;
}

bool Predicts(const CodecSpec& codec) { return NeedsTokenIds(codec); }

// The last boundary whose codecs predict; -1: none.
int LastIds(const Placement& p) {
  for (int b = static_cast<int>(p.boundaries.size()) - 1; b >= 0; --b) {
    if (Predicts(p.boundaries[b].forward)) return b;
  }
  return -1;
}

class CodecIdsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Placement> Price(const JobSpec& job, const Case& c) {
    topology_.Clear();
    for (const char* name : {"a", "b", "c"}) *topology_.add_nodes() = MakeNode(name, 25);
    JoinAll(&topology_, c.mbit, 20);
    std::vector<const NodeInfo*> nodes;
    for (const NodeInfo& node : topology_.nodes()) nodes.push_back(&node);
    return PricePlacement(job, nodes, c.layers, LinkIndex(topology_));
  }

  static JobSpec Job(const Case& c) {
    JobSpec job = MakeJob(kLayers);
    job.mutable_strategy()->set_stages(3);
    job.mutable_strategy()->set_schedule(c.schedule);
    return job;
  }

  // `job` with the codecs of `p`, but these at boundary `b`.
  static JobSpec With(JobSpec job, const Placement& p, int b, const std::string& forward,
                      const std::string& backward) {
    for (int i = 0; i < static_cast<int>(p.boundaries.size()); ++i) {
      BoundaryCodec* codec = job.mutable_compression()->add_boundaries();
      codec->set_boundary(i);
      codec->set_forward(i == b ? forward : FormatCodec(p.boundaries[i].forward));
      codec->set_backward(i == b ? backward : FormatCodec(p.boundaries[i].backward));
    }
    return job;
  }

  Topology topology_;
};

TEST_F(CodecIdsTest, NoPredictIsChosenWhoseGainIsNegative) {
  int predicts = 0;
  for (const Case& c : Cases()) {
    const auto p = Price(Job(c), c);
    ASSERT_TRUE(p.ok()) << c.Words() << ": " << p.status();
    for (const BoundaryChoice& choice : p->boundaries)
      EXPECT_FALSE(absl::StrContains(choice.forward_why, "nobody needs")) << c.Words();
    const int b = LastIds(*p);
    if (b < 0) continue;
    ++predicts;
    const CodecSpec &up = p->boundaries[b].forward, &down = p->boundaries[b].backward;
    EXPECT_TRUE(up.inner().kind() == CodecSpec::QUANT || Predicts(down))
        << c.Words() << ": b" << b << " has " << FormatCodec(up) << " for nobody";
    for (const char* forward : {"bf16", "none", "quant(8)", "quant(6)", "quant(5)", "quant(4)"}) {
      for (const std::string& backward :
           {std::string("bf16"), std::string("quant(8, token, symmetric)"),
            std::string("quant(4, token, symmetric)"),
            Predicts(down) ? std::string("none") : FormatCodec(down)}) {
        const auto plain = Price(With(Job(c), *p, b, forward, backward), c);
        ASSERT_TRUE(plain.ok()) << c.Words() << ": " << plain.status();
        EXPECT_LE(p->cost_s, kMissed * plain->cost_s)
            << c.Words() << ": b" << b << " has " << FormatCodec(up) << " / " << FormatCodec(down)
            << ", better is " << forward << " / " << backward;
      }
    }
  }
  EXPECT_GT(predicts, 10) << "else nothing was looked at";
}

TEST_F(CodecIdsTest, WordsNameThePredictThatNeedsTheIds) {
  // Ids that pass a boundary for the next one's sake.
  Case c{{2, 2, 2}, 10, "1f1b"};
  JobSpec job = Job(c);
  BoundaryCodec* codec = job.mutable_compression()->add_boundaries();
  codec->set_boundary(1);
  codec->set_forward("predict(quant(4, token), context=3)");
  codec->set_backward("bf16");
  codec = job.mutable_compression()->add_boundaries();
  codec->set_boundary(0);
  codec->set_backward("bf16");
  topology_.Clear();
  const auto p = Price(job, {{2, 2, 2}, 8000, "1f1b"});
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_EQ(FormatCodec(p->boundaries[0].forward), "predict(bf16)");
  EXPECT_TRUE(absl::StrContains(p->boundaries[0].forward_why,
                                "passes the token ids on, which b1's predict needs"))
      << p->boundaries[0].forward_why;
}

}  // namespace
}  // namespace isthmus::coordinator
