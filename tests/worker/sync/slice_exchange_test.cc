#include "worker/sync/slice_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "proto/plan/deal.h"
#include "tests/worker/world.h"
#include "worker/link/codec_options.h"
#include "worker/link/frames.h"

namespace isthmus::worker {
namespace {

// A slice that is nothing but weights: of each unit the same value as often as it has weights.
class Weights : public StageSlice {
 public:
  Weights(const ModelSpec& model, Slice held) : model_(model), held_(std::move(held)) {}

  // Calls `use(layer, number, weights)` for each head (numbers below 0) and unit.
  template <typename Use>
  void Each(const Slice& units, Use use) const {
    Slice one(1);
    one[0].dealt = true;
    for (size_t l = 0; l < units.size(); ++l) {
      one[0] = {true, {0}, {}};
      for (int h : units[l].heads) use(l, -1 - h, SliceElements(model_, one));
      one[0] = {true, {}, {0}};
      for (int u : units[l].units) use(l, u, SliceElements(model_, one));
    }
  }
  absl::Status Read(const Slice& units, absl::Span<float> out) override {
    size_t at = 0;
    Each(units, [&](size_t l, int n, int64_t weights) {
      for (int64_t i = 0; i < weights; ++i) out[at++] = held.at({l, n});
    });
    EXPECT_EQ(at, out.size());
    return absl::OkStatus();
  }
  absl::Status Write(const Slice& units, absl::Span<const float> in) override {
    return Take(units, in, &held);
  }
  absl::Status WriteWhole(const Slice& units, absl::Span<const float> in) override {
    return Take(units, in, &whole);
  }
  absl::Status Hold(const Slice& next) override {
    std::map<std::pair<size_t, int>, float> kept;
    const auto& from = whole.empty() ? held : whole;
    Each(next, [&](size_t l, int n, int64_t) {
      if (from.count({l, n}) != 0) kept[{l, n}] = from.at({l, n});
    });
    held = kept;
    held_ = next;
    return absl::OkStatus();
  }
  absl::Status BeginWhole() override {
    whole = held;
    return absl::OkStatus();
  }
  void EndWhole() override { whole.clear(); }

  std::map<std::pair<size_t, int>, float> held, whole;

 private:
  absl::Status Take(const Slice& units, absl::Span<const float> in,
                    std::map<std::pair<size_t, int>, float>* to) {
    size_t at = 0;
    Each(units, [&](size_t l, int n, int64_t weights) {
      (*to)[{l, n}] = in[at];
      at += weights;
    });
    EXPECT_EQ(at, in.size());
    return absl::OkStatus();
  }
  const ModelSpec model_;
  Slice held_;
};

class SliceExchangeTest : public ::testing::Test {
 protected:
  void Make(const char* codec) {
    WorldShape shape;
    shape.real_stages = true;
    shape.stages = 1;
    shape.layers = 2;
    shape.hidden = 8;
    shape.heads = 4;
    shape.replicas = {3, 2, 2};
    shape.subnetworks = true;
    shape.local_steps = 3;
    shape.steps = 100;
    shape.gradients = codec;
    plan_ = MakePlan(shape);
    for (group_ = 0; plan_.groups(group_).value() != GroupPlan::SLICE;) ++group_;
    for (int r = 0; r < 3; ++r) {
      plans_.push_back(SessionPlan::Make(plan_, r).value());
      weights_.push_back(std::make_unique<Weights>(plan_.job().model(), SliceOf(plan_, r, 0)));
      const Slice mine = SliceOf(plan_, r, 0);
      weights_[r]->Each(mine, [&](size_t l, int n, int64_t) {
        weights_[r]->held[{l, n}] = Value(l, n);
      });
      exchanges_.push_back(SliceExchange::Make(*plans_[r], group_, weights_[r].get()).value());
    }
  }
  static float Value(size_t layer, int number) {
    return 1 + static_cast<float>(layer) / 7 + static_cast<float>(number) / 1000;
  }

  GroupWires WiresOf(int rank) {
    GroupWires wires;
    wires.new_frame = [] { return Outbound(); };
    wires.send = [this, rank](int peer, Outbound frame) {
      EXPECT_EQ(frame.header.kind(), FrameHeader::SLICE);
      sent_[{rank, peer}].push_back(std::move(frame));
      return absl::OkStatus();
    };
    wires.receive = [this, rank](int peer, FrameHeader::Kind) -> absl::StatusOr<Inbound> {
      Outbound frame = std::move(sent_[{peer, rank}].front());
      sent_[{peer, rank}].pop_front();
      Inbound item;
      item.tensor.dims = frame.tensor.dims;
      item.tensor.data.resize(frame.tensor.dims.elements());
      EXPECT_EQ(item.tensor.data.empty(), frame.payload.empty());
      if (item.tensor.data.empty()) return item;
      const auto options = GroupCodecOptions(*plans_[rank], group_, FrameHeader::SLICE, peer, rank);
      auto decoder = compress::MakeDecoder(plan_.groups(group_).contribution(), options).value();
      EXPECT_TRUE(decoder
                      ->Decode(frame.payload, frame.header.state_version(), {},
                               {item.tensor.data.data(), compress::DType::kF32,
                                compress::Device::kCpu, item.tensor.dims})
                      .ok());
      return item;
    };
    return wires;
  }

  // The end of a round; whether all that came was finite.
  bool End(int64_t step, bool merged) {
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(exchanges_[r]->Deal(step, merged, WiresOf(r)).ok());
    bool finite = true;
    for (int r = 0; r < 3; ++r)
      finite = exchanges_[r]->Merge(step, merged, WiresOf(r)).value() && finite;
    return finite;
  }

  Plan plan_;
  int group_ = 0;
  std::vector<std::unique_ptr<const SessionPlan>> plans_;
  std::vector<std::unique_ptr<Weights>> weights_;
  std::vector<std::unique_ptr<SliceExchange>> exchanges_;
  std::map<std::pair<int, int>, std::deque<Outbound>> sent_;
};

TEST_F(SliceExchangeTest, EachUnitGoesToItsNextHolder) {
  Make("none");
  for (int64_t round = 0; round < 5; ++round) {
    const bool merged = round % 2 == 1;
    EXPECT_TRUE(End(3 * round + 2, merged));
    for (int r = 0; r < 3; ++r) {
      size_t units = 0;
      weights_[r]->Each(SliceOf(plan_, r, round + 1), [&](size_t l, int n, int64_t) {
        EXPECT_EQ(weights_[r]->held.at({l, n}), Value(l, n));
        ++units;
      });
      EXPECT_EQ(weights_[r]->held.size(), units);
      EXPECT_EQ(weights_[r]->whole.size(), merged && r == 0 ? 2 * (4 + 32) : 0) << round;
    }
    for (const auto& [unit, value] : weights_[0]->whole)
      EXPECT_EQ(value, Value(unit.first, unit.second));
    exchanges_[0]->BeginStep();
    EXPECT_TRUE(weights_[0]->whole.empty());
  }
}

// Who keeps a unit loses nothing, but where the model comes together: there all hold the same bits.
TEST_F(SliceExchangeTest, WhereTheModelComesTogetherAllWeightsAreRounded) {
  Make("bf16");
  EXPECT_TRUE(End(2, false));
  int exact = 0, rounded = 0;
  for (int r = 0; r < 3; ++r) {
    for (const auto& [unit, value] : weights_[r]->held) {
      const bool same = value == Value(unit.first, unit.second);
      ++(same ? exact : rounded);
      EXPECT_NEAR(value, Value(unit.first, unit.second), 0.01);
    }
  }
  EXPECT_GT(exact, 5);
  EXPECT_GT(rounded, 5);
  EXPECT_TRUE(End(5, true));
  for (int r = 0; r < 3; ++r) {
    for (const auto& [unit, value] : weights_[r]->held)
      EXPECT_EQ(value, weights_[0]->whole.at(unit)) << r;
  }
}

TEST_F(SliceExchangeTest, SaysWhatIsNotFinite) {
  Make("none");
  for (auto& [unit, value] : weights_[1]->held) value = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(End(2, false));
}

TEST_F(SliceExchangeTest, AStageOfAllLayersIsAFault) {
  Make("none");
  EXPECT_EQ(SliceExchange::Make(*plans_[0], group_, nullptr).status().code(),
            absl::StatusCode::kInternal);
}

// Frames are as long as the plan says, in every round.
TEST_F(SliceExchangeTest, FramesAreThoseOfThePlan) {
  Make("bf16");
  for (int64_t step = 2; step < 60; step += 3) {
    for (const bool merged : {false, true}) {
      for (const LinkPlan* link : plans_[1]->links()) {
        ExpectedFrame frame;
        frame.kind = FrameHeader::SLICE;
        frame.step = step;
        frame.group = group_;
        frame.merged = merged;
        const int peer = plans_[1]->peer(*link);
        const TensorDims dims = FrameDims(*plans_[1], *link, frame);
        EXPECT_EQ(dims.samples, SliceRows(plan_, Moves(plan_, peer, 1, step, merged)));
        EXPECT_LE(2 * dims.elements(), MaxPayloadBytes(*plans_[1], *link, frame));
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::worker
