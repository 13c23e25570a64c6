// One group's reduction on all of its ranks in one thread, for tests of what comes out of it.
// Thread: one.
#ifndef ISTHMUS_TESTS_WORKER_SYNC_GROUP_OF_RANKS_H_
#define ISTHMUS_TESTS_WORKER_SYNC_GROUP_OF_RANKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/actions.h"
#include "proto/plan/groups.h"
#include "tests/worker/bare_stage.h"
#include "tests/worker/world.h"
#include "worker/link/codec_options.h"
#include "worker/sync/group_reduction.h"

namespace isthmus::worker {

// A stage that is nothing but gradients.
class Gradients : public BareStage {
 public:
  explicit Gradients(std::vector<float> values) : values_(std::move(values)) {}
  const std::vector<float>& values() const { return values_; }

  int64_t Elements(GroupPlan::Tensors) const override { return values_.size(); }
  absl::Status ReadGradient(GroupPlan::Tensors, int64_t first, absl::Span<float> out) override {
    std::copy_n(values_.begin() + first, out.size(), out.begin());
    return absl::OkStatus();
  }
  absl::Status WriteGradient(GroupPlan::Tensors, int64_t first,
                             absl::Span<const float> in) override {
    std::copy(in.begin(), in.end(), values_.begin() + first);
    return absl::OkStatus();
  }
  absl::Status TakeMomentum(GroupPlan::Tensors, int64_t first, int64_t size,
                            double share) override {
    for (int64_t i = first; i < first + size; ++i) values_[i] += static_cast<float>(share) * 100;
    return absl::OkStatus();
  }

 protected:
  std::vector<float> values_;
};

// A plan of `ranks` pipelines of one stage each that share one group of rows x width.
inline Plan GroupOf(int ranks, GroupPlan::Rule rule, const char* codec, int64_t rows,
                    int64_t width) {
  WorldShape shape;
  shape.stages = 1;
  Plan plan = MakePlan(shape);
  plan.mutable_job()->mutable_recipe()->set_global_batch(2 * ranks);
  for (int r = 0; r < ranks; ++r) plan.add_replicas()->set_samples(2);
  for (int r = 1; r < ranks; ++r) {
    *plan.add_ranks() = plan.ranks(0);
    plan.mutable_ranks(r)->set_replica(r);
  }
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      LinkPlan* link = plan.add_links();
      link->set_id(absl::StrCat("g", a, "-", b));
      link->set_kind(LinkPlan::GROUP);
      link->set_lower(a);
      link->set_upper(b);
      link->set_queue_limit(4);
    }
  }
  GroupPlan* group = plan.add_groups();
  group->set_id("stage 0");
  group->set_tensors(GroupPlan::OWN);
  group->set_rule(rule);
  for (int r = 0; r < ranks; ++r) group->add_ranks(r);
  *group->mutable_contribution() = ParseCodec(codec).value();
  *group->mutable_sum() = ParseCodec(codec).value();
  group->set_rows(rows);
  group->set_width(width);
  const absl::Status written = WriteActions({}, &plan);
  EXPECT_TRUE(written.ok()) << written;
  return plan;
}

// All ranks of a group in one thread; frames are decoded as an inlet does.
class Group {
 public:
  // `states`: of the encoders; null: none are kept.
  Group(const Plan& plan, const std::vector<std::vector<float>>& gradients,
        CodecStateStore* states = nullptr)
      : Group(plan, StagesOf(gradients), states) {}
  Group(const Plan& plan, std::vector<std::unique_ptr<Gradients>> stages,
        CodecStateStore* states = nullptr)
      : stages_(std::move(stages)) {
    for (size_t r = 0; r < stages_.size(); ++r) {
      plans_.push_back(SessionPlan::Make(plan, static_cast<int>(r)).value());
      reductions_.push_back(GroupReduction::Make(*plans_.back(), 0, states).value());
    }
  }

  absl::Status Step(int64_t step) {
    step_ = step;
    for (const Action::Op op : {Action::OFFER, Action::REDUCE, Action::COLLECT}) {
      if (op == Action::COLLECT && group().rule() != GroupPlan::SHARDED) continue;
      for (int r = 0; r < static_cast<int>(plans_.size()); ++r) {
        const GroupWires wires = WiresOf(r);
        Stage* stage = stages_[r].get();
        RETURN_IF_ERROR(op == Action::OFFER    ? reductions_[r]->Offer(stage, step, wires)
                        : op == Action::REDUCE ? reductions_[r]->Reduce(stage, step, wires)
                                               : reductions_[r]->Collect(stage, wires));
      }
    }
    return absl::OkStatus();
  }

  GroupReduction& reduction(int rank) { return *reductions_[rank]; }
  Stage* stage(int rank) { return stages_[rank].get(); }
  const std::vector<float>& values(int rank) const { return stages_[rank]->values(); }
  void Set(int rank, std::vector<float> values) {
    stages_[rank] = std::make_unique<Gradients>(std::move(values));
  }
  int64_t bytes() const { return bytes_; }

 private:
  static std::vector<std::unique_ptr<Gradients>> StagesOf(
      const std::vector<std::vector<float>>& gradients) {
    std::vector<std::unique_ptr<Gradients>> stages;
    for (const std::vector<float>& g : gradients) stages.push_back(std::make_unique<Gradients>(g));
    return stages;
  }

  const GroupPlan& group() const { return plans_[0]->plan().groups(0); }

  GroupWires WiresOf(int rank) {
    GroupWires wires;
    wires.new_frame = [this] {
      Outbound frame;
      frame.header.set_step(step_);
      return frame;
    };
    wires.send = [this, rank](int peer, Outbound frame) {
      bytes_ += frame.payload.size();
      wire_[{rank, peer}].push_back(std::move(frame));
      return absl::OkStatus();
    };
    wires.receive = [this, rank](int peer, FrameHeader::Kind kind) -> absl::StatusOr<Inbound> {
      Outbound frame = std::move(wire_[{peer, rank}].front());
      wire_[{peer, rank}].pop_front();
      EXPECT_EQ(frame.header.kind(), kind);
      Inbound item;
      item.tensor = Tensor::Zeros(frame.tensor.dims);
      if (item.tensor.data.empty()) return item;
      auto decoder = compress::MakeDecoder(
                         GroupCodec(plans_[rank]->plan(), group(), kind, frame.header.step()),
                         GroupCodecOptions(*plans_[rank], 0, kind, peer, rank))
                         .value();
      compress::FrameContext context;
      context.step = frame.header.step();
      const compress::MutableTensorView view{item.tensor.data.data(), compress::DType::kF32,
                                             compress::Device::kCpu, item.tensor.dims};
      RETURN_IF_ERROR(decoder->Decode(frame.payload, frame.header.state_version(), context, view));
      return item;
    };
    return wires;
  }

  std::vector<std::unique_ptr<const SessionPlan>> plans_;
  std::vector<std::unique_ptr<GroupReduction>> reductions_;
  std::vector<std::unique_ptr<Gradients>> stages_;
  std::map<std::pair<int, int>, std::deque<Outbound>> wire_;
  int64_t bytes_ = 0;
  int64_t step_ = 0;
};

inline std::vector<std::vector<float>> SomeGradients(int ranks, int64_t count) {
  std::vector<std::vector<float>> all;
  for (int r = 0; r < ranks; ++r) {
    std::vector<float>& g = all.emplace_back();
    for (int64_t i = 0; i < count; ++i)
      g.push_back(std::sin(0.7f * static_cast<float>(i) + static_cast<float>(r)));
  }
  return all;
}

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_SYNC_GROUP_OF_RANKS_H_
