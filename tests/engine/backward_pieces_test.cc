// Buckets: a backward pass in pieces has the bits of the whole one, and what a piece completes
// stays as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "tests/engine/pipeline.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;
using worker::MicroBatch;
using worker::Tensor;

// Stage `rank` of a chain of two, both with autoencoders at the boundary, in buckets or not.
std::unique_ptr<worker::Stage> Bucketed(int rank, int buckets, bool as_on_gpu, Plan* plan,
                                        bool recompute = false) {
  *plan = MakePlan(TinyJob(6), {3, 3});
  plan->mutable_job()->mutable_recipe()->set_recompute(recompute);
  plan->clear_links();
  LinkPlan* boundary = plan->add_links();
  boundary->set_upper(1);
  boundary->mutable_forward()->set_kind(CodecSpec::AUTOENCODER);
  boundary->mutable_forward()->set_channels(24);
  std::vector<LayerTensors> layers;
  for (int r : {0, 1}) {
    *plan->add_ranks() = plan->ranks(r);  // another replica
    layers.push_back(OwnShapes(*plan, r));
  }
  AddGradientGroups(CodecSpec(), CodecSpec(), layers, {buckets, buckets}, plan);
  EngineOptions options;
  options.as_on_gpu = as_on_gpu;
  return MakeGpt2Stage(*plan, rank, options).value();
}

std::vector<float> OwnGradients(worker::Stage* stage) {
  std::vector<float> all(stage->Elements(GroupPlan::OWN));
  EXPECT_TRUE(stage->ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(all)).ok());
  return all;
}

TEST(BackwardPieces, AnEmbeddingOfBothEndsIsAddedUpAsWithoutPieces) {
  std::vector<std::vector<float>> gradients;
  for (const auto& [buckets, recompute] : {std::pair(1, false), {4, false}, {1, true}, {4, true}}) {
    Plan plan = MakePlan(TinyJob(), {4});
    plan.mutable_job()->mutable_recipe()->set_recompute(recompute);
    *plan.add_ranks() = plan.ranks(0);
    AddGradientGroups(CodecSpec(), CodecSpec(), {OwnShapes(plan, 0)}, {buckets}, &plan);
    const auto stage = MakeGpt2Stage(plan, 0, EngineOptions()).value();
    for (uint16_t micro : {0, 1, 2}) {
      std::vector<uint32_t> ids(2 * 16);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>((7 * i + micro) % 50);
      MicroBatch batch;
      batch.micro = micro;
      batch.samples = 2;
      batch.positions = 16;
      batch.tokens = batch.targets = ids;
      batch.loss_scale = 0.01;
      ASSERT_TRUE(stage->Forward(batch, Tensor()).ok());
      ASSERT_TRUE(stage->Backward(micro, Tensor()).ok());
    }
    gradients.push_back(OwnGradients(stage.get()));
  }
  for (const std::vector<float>& each : gradients) EXPECT_EQ(each, gradients[0]);
}

// After each piece the gradients of its bucket have the bits that they have in the end.
TEST(BackwardPieces, PiecesOfABackwardPassAreTheWholePassBitForBit) {
  for (const auto& [as_on_gpu, recompute] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    for (const int rank : {0, 1}) {
      Plan plan, plain;
      const auto cut = Bucketed(rank, 3, as_on_gpu, &plan, recompute);
      const auto whole = Bucketed(rank, 1, as_on_gpu, &plain);
      ASSERT_EQ(GradientParts(plan, rank), 3);
      const std::vector<uint32_t> ids(2 * 16, 7);
      std::map<worker::Stage*, std::vector<float>> below;
      for (worker::Stage* stage : {cut.get(), whole.get()}) {
        for (int micro : {0, 1}) {
          MicroBatch batch;
          batch.micro = micro;
          batch.samples = 2;
          batch.positions = 16;
          (rank == 0 ? batch.tokens : batch.targets) = ids;
          batch.loss_scale = 0.01;
          Tensor edge = Tensor::Zeros({2, 16, 24});
          for (size_t i = 0; i < edge.data.size(); ++i) edge.data[i] = std::sin(0.1f * i);
          ASSERT_TRUE(stage->Forward(batch, rank == 0 ? Tensor() : edge).ok());
          const Tensor gradient = rank == 0 ? edge : Tensor();
          if (micro == 0 || stage == whole.get()) {
            below[stage] = stage->Backward(micro, gradient)->data;
            continue;
          }
          EXPECT_FALSE(stage->BackwardPiece(micro, 1, gradient).ok()) << "out of order";
          for (int piece = 0; piece < 3; ++piece) {
            const auto result = stage->BackwardPiece(micro, piece, gradient);
            ASSERT_TRUE(result.ok()) << result.status();
            EXPECT_EQ(result->data.empty() && result->device == nullptr, piece < 2 || rank == 0);
            below[stage] = result->data;
            const auto first = FirstElement(plan, plan.groups(3 * rank + piece));
            std::vector<float> now = OwnGradients(stage);
            now.erase(now.begin(), now.begin() + first);
            std::vector<float>& soonest = below[nullptr];
            EXPECT_TRUE(std::equal(soonest.rbegin(), soonest.rend(), now.rbegin()))
                << "a bucket that was complete changed";
            soonest = now;
          }
          EXPECT_FALSE(stage->BackwardPiece(micro, 0, gradient).ok()) << "it is over";
          below.erase(nullptr);
        }
      }
      EXPECT_EQ(OwnGradients(cut.get()), OwnGradients(whole.get())) << rank << as_on_gpu;
      EXPECT_EQ(below[cut.get()], below[whole.get()]);
    }
  }
}

TEST(BackwardPieces, ABucketOfLessThanALayerIsRefused) {
  Plan plan;
  Bucketed(0, 3, false, &plan);
  for (GroupPlan& group : *plan.mutable_groups()) {
    if (group.part() == 2) group.set_rows(1);
  }
  EXPECT_THAT(std::string(MakeGpt2Stage(plan, 0, {}).status().message()),
              HasSubstr("reduces gradients of less than layer 0"));
}

}  // namespace
}  // namespace isthmus::engine
