// A rank whose gradients are on a device, here in host memory, beside one on a CPU.
#include "worker/sync/device_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/actions.h"
#include "tests/worker/fake_lane.h"
#include "tests/worker/world.h"
#include "worker/link/codec_options.h"

namespace isthmus::worker {
namespace {

class Gradients : public DeviceGradients {
 public:
  explicit Gradients(std::vector<float> values) : values_(std::move(values)) {}
  const std::vector<float>& values() const { return values_; }

  absl::StatusOr<Tensor> CopyGradient(GroupPlan::Tensors, int64_t first,
                                      const TensorDims& dims) override {
    std::vector<float> padded(values_.begin() + first, values_.end());
    padded.resize(dims.elements());
    return Tensor{dims, {}, std::make_shared<FakeMemory>(std::move(padded))};
  }
  absl::Status PutGradient(GroupPlan::Tensors, int64_t first, Tensor gradients) override {
    ASSIGN_OR_RETURN(const std::vector<float> part, gradients.device->ToHost());
    values_.resize(std::max<size_t>(values_.size(), first + part.size()));
    std::copy(part.begin(), part.end(), values_.begin() + first);
    return absl::OkStatus();
  }

 private:
  std::vector<float> values_;
};

// What a rank on a CPU makes of its contribution.
class Host {
 public:
  Host(const SessionPlan& plan, int rank)
      : codec_(plan.plan().groups(0).contribution()),
        options_(GroupCodecOptions(plan, 0, FrameHeader::CONTRIBUTION, rank, rank)),
        encoder_(compress::MakeEncoder(codec_, options_).value()),
        decoder_(compress::MakeDecoder(codec_, options_).value()) {}

  std::string Encode(std::vector<float> values, int64_t step) {
    compress::FrameContext context;
    context.step = step;
    const TensorDims dims{1, options_.positions, options_.hidden};
    values.resize(dims.elements());
    std::string payload;
    EXPECT_TRUE(encoder_
                    ->Encode({values.data(), compress::DType::kF32, compress::Device::kCpu, dims},
                             context, &payload)
                    .ok());
    decoded_.resize(dims.elements());
    EXPECT_TRUE(decoder_
                    ->Decode(payload, encoder_->version(), context,
                             {decoded_.data(), compress::DType::kF32, compress::Device::kCpu, dims})
                    .ok());
    return payload;
  }
  const std::vector<float>& decoded() const { return decoded_; }

 private:
  const CodecSpec codec_;
  const compress::CodecOptions options_;
  const std::unique_ptr<compress::Encoder> encoder_;
  const std::unique_ptr<compress::Decoder> decoder_;
  std::vector<float> decoded_;
};

Plan TiedPlan(const std::string& codec) {
  Plan plan = MakePlan(WorldShape());
  GroupPlan* group = plan.mutable_groups(0);
  EXPECT_EQ(group->ranks_size(), 2);
  *group->mutable_contribution() = ParseCodec(codec).value();
  return plan;
}

std::vector<float> Some(int64_t count, float phase) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(std::sin(0.7f * static_cast<float>(i) + phase));
  return values;
}

TEST(DeviceReduction, HasTheBitsOfAHost) {
  for (const char* codec : {"none", "bf16", "bf16 | zstd", "ef(quant(8, token))"}) {
    const Plan plan = TiedPlan(codec);
    ASSERT_TRUE(ReducesOnDevice(plan.groups(0)));
    for (int position : {0, 1}) {
      const int own = plan.groups(0).ranks(position), other = plan.groups(0).ranks(1 - position);
      const auto session = SessionPlan::Make(plan, own).value();
      LaneCalls calls;
      const auto reduction =
          DeviceReduction::Make(*session, 0, std::make_unique<FakeLane>(&calls), nullptr).value();
      Host host(*session, own), peer(*session, other);
      const int64_t room = plan.groups(0).rows() * plan.groups(0).width();
      for (int64_t step = 0; step < 3; ++step) {
        const std::vector<float> mine = Some(room - 1, static_cast<float>(step));
        Gradients stage(mine);
        const Outbound frame = reduction->Offer(&stage, step, Outbound()).value();
        EXPECT_EQ(frame.payload, host.Encode(mine, step)) << codec;
        peer.Encode(Some(room - 1, 2.5f), step);
        const absl::Status reduced = reduction->Reduce(&stage, [&](int rank) {
          EXPECT_EQ(rank, other);
          Inbound item;
          item.tensor = {frame.tensor.dims, {}, std::make_shared<FakeMemory>(peer.decoded())};
          return absl::StatusOr<Inbound>(std::move(item));
        });
        ASSERT_TRUE(reduced.ok()) << reduced;
        std::vector<float> sum = position == 0 ? host.decoded() : peer.decoded();
        const std::vector<float>& second = position == 0 ? peer.decoded() : host.decoded();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
        EXPECT_EQ(stage.values(), sum) << codec << ", step " << step;
      }
      EXPECT_GT(calls.read, 0) << "the codec waits for the copy";
    }
  }
}

// The last rows are part 0.
TEST(DeviceReduction, APartTouchesItsOwnRowsAlone) {
  Plan plan = TiedPlan("none");
  const GroupPlan whole = plan.groups(0);
  *plan.add_groups() = whole;
  plan.mutable_groups(0)->set_rows(4);
  plan.mutable_groups(1)->set_rows(whole.rows() - 4);
  for (int part : {0, 1}) {
    plan.mutable_groups(part)->set_parts(2);
    plan.mutable_groups(part)->set_part(part);
    plan.mutable_groups(part)->set_id(absl::StrCat("tied part ", part));
  }
  ASSERT_TRUE(WriteActions({}, &plan).ok());
  const int own = whole.ranks(0);
  const auto session = SessionPlan::Make(plan, own).value();
  const std::vector<float> mine = Some(whole.rows() * whole.width(), 1);
  Gradients stage(mine);
  for (int part : {0, 1}) {
    ASSERT_TRUE(ReducesOnDevice(plan.groups(part)));
    const GroupPlan& group = plan.groups(part);
    const int64_t first = part == 0 ? (whole.rows() - 4) * whole.width() : 0,
                  count = group.rows() * group.width();
    LaneCalls calls;
    const auto reduction =
        DeviceReduction::Make(*session, part, std::make_unique<FakeLane>(&calls), nullptr).value();
    const Outbound frame = reduction->Offer(&stage, 0, Outbound()).value();
    EXPECT_EQ(frame.payload.size(), 4 * count);
    EXPECT_EQ(std::memcmp(frame.payload.data(), mine.data() + first, 4 * count), 0);
    const std::vector<float> before = stage.values();
    const absl::Status reduced = reduction->Reduce(&stage, [&](int) {
      Inbound item;
      item.tensor = {
          frame.tensor.dims, {}, std::make_shared<FakeMemory>(std::vector<float>(count, 2.0f))};
      return absl::StatusOr<Inbound>(std::move(item));
    });
    ASSERT_TRUE(reduced.ok()) << reduced;
    for (int64_t i = 0; i < static_cast<int64_t>(mine.size()); ++i) {
      const bool inside = i >= first && i < first + count;
      ASSERT_EQ(stage.values()[i], inside ? mine[i] + 2 : before[i]) << part << ", " << i;
    }
  }
}

TEST(DeviceReduction, OnlyExchangesOfGradients) {
  GroupPlan group = TiedPlan("none").groups(0);
  EXPECT_TRUE(ReducesOnDevice(group));
  for (const auto& change : std::vector<std::function<void(GroupPlan*)>>{
           [](GroupPlan* g) { g->set_rule(GroupPlan::SHARDED); },
           [](GroupPlan* g) { g->set_value(GroupPlan::DIFFERENCE); },
           [](GroupPlan* g) { g->set_value(GroupPlan::MOMENTUM); },
           [](GroupPlan* g) { g->add_shapes(); }}) {
    GroupPlan other = group;
    change(&other);
    EXPECT_FALSE(ReducesOnDevice(other)) << other.ShortDebugString();
  }
}

}  // namespace
}  // namespace isthmus::worker
