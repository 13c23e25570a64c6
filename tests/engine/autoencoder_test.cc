// The learned codec of a boundary: linear (T3.1), without effect where B A = I (T3.2), trained with
// the loss, saved under names of its own.
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/safetensors.h"
#include "proto/codec/codec_text.h"
#include "proto/model/tensor_names.h"
#include "tests/engine/pipeline.h"
#include "worker/engine/blocks.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Floats = std::map<std::string, std::vector<float>>;

Plan WithAutoencoders(const JobSpec& job, const std::vector<int>& cut, const std::string& codec) {
  Plan plan = MakePlan(job, cut);
  for (int b = 0; b + 1 < plan.ranks_size(); ++b) {
    LinkPlan* link = plan.add_links();
    link->set_lower(b);
    link->set_upper(b + 1);
    *link->mutable_forward() = ParseCodec(codec).value();
  }
  return plan;
}

Floats ToMap(const std::string& safetensors) {
  Floats out;
  const auto parsed = ParseSafetensors(safetensors).value();
  for (const auto& [name, entry] : parsed) out[name] = ToFloats(entry).value();
  return out;
}

// `weights` with the autoencoder of boundary `layer` replaced.
std::string WithBoundary(const std::string& weights, int layer, const at::Tensor& a,
                         const at::Tensor& b) {
  const at::Tensor encoder = a.contiguous(), decoder = b.contiguous();
  std::vector<SafetensorsItem> items;
  const auto parsed = ParseSafetensors(weights).value();
  for (const auto& [name, entry] : parsed)
    if (!IsOwnTensor(name)) items.push_back({name, entry.dtype, entry.shape, entry.data});
  for (const auto& [what, t] : {std::pair("encoder", &encoder), std::pair("decoder", &decoder)}) {
    items.push_back({"isthmus.boundary." + std::to_string(layer) + "." + what + ".weight",
                     "F32",
                     t->sizes().vec(),
                     {static_cast<const char*>(t->data_ptr()), t->nbytes()}});
  }
  return WriteSafetensors(std::move(items), {}).value();
}

// (1 - beta1) x gradient of every weight: an optimiser step of learning rate 0.
Floats GradientsOf(Pipeline* p) {
  p->Gradients(7);
  p->Apply(0, 0);
  return ToMap(p->ExportOptimizer());
}

double Largest(const at::Tensor& t) { return at::max(at::abs(t)).data_ptr<float>()[0]; }

JobSpec Job() {
  JobSpec job = TinyJob();
  job.mutable_recipe()->set_clip_norm(0);
  return job;
}

// T3.1: sums commute with both sides, so shards may be added in the narrow space.
TEST(Autoencoder, IsLinear) {
  const at::Tensor a = at::randn({32, 6}), b = at::randn({6, 32});
  at::Tensor sum = at::randn({3, 5, 32}), narrow = Project(sum, a);
  for (int shard = 0; shard < 3; ++shard) {
    const at::Tensor x = at::randn({3, 5, 32});
    sum = at::add(sum, x);
    narrow = at::add(narrow, Project(x, a));
  }
  const at::Tensor apart = Project(narrow, b), together = Project(Project(sum, a), b);
  EXPECT_EQ(apart.sizes(), sum.sizes());
  // 32 products of magnitude 10 a value in fp32.
  EXPECT_LT(Largest(at::sub(apart, together)), 1e-5 * Largest(together));
}

// T3.2: as many channels as the model is wide, and B the inverse of A.
TEST(Autoencoder, OfFullWidthWithItsInverseChangesNothing) {
  const std::vector<int> cut = {1, 3};
  Pipeline plain(MakePlan(Job(), cut)), coded(WithAutoencoders(Job(), cut, "autoencoder(32)"));
  // Far from singular.
  const at::Tensor a = at::add(at::eye(32), at::mul(at::randn({32, 32}), at::scalar_tensor(0.05)));
  coded.Import(WithBoundary(plain.ExportWeights(), 1, a, at::linalg_inv(a)), "");
  EXPECT_NEAR(coded.Loss(7) / plain.Loss(7), 1, 1e-5);
  const Floats want = GradientsOf(&plain), got = GradientsOf(&coded);
  for (const auto& [name, values] : want) {
    double norm = 0, error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      norm += static_cast<double>(values[i]) * values[i];
      error += std::pow(static_cast<double>(values[i]) - got.at(name)[i], 2);
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(norm) + 1e-9) << name;
  }
  EXPECT_EQ(got.size(), want.size() + 4);
}

// Directional derivatives of A and B, as Gpt2Stage.GradientsMatchFiniteDifferences has them of the
// model.
TEST(Autoencoder, GradientsMatchFiniteDifferences) {
  Pipeline p(WithAutoencoders(Job(), {2, 2}, "autoencoder(8)"));
  for (int step = 0; step < 5; ++step) p.Step(step);
  const std::string weights = p.ExportWeights();
  Pipeline fresh(WithAutoencoders(Job(), {2, 2}, "autoencoder(8)"));  // its moments are zero
  fresh.Import(weights, "");
  const Floats averages = GradientsOf(&fresh);
  for (const char* name :
       {"isthmus.boundary.2.encoder.weight", "isthmus.boundary.2.decoder.weight"}) {
    std::vector<float> g = averages.at(std::string(name) + ".exp_avg");
    double norm = 0;
    for (float& x : g) {
      x /= 1 - Job().recipe().beta1();
      norm += static_cast<double>(x) * x;
    }
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-3) << name;
    const auto parsed = ParseSafetensors(weights).value();
    const ptrdiff_t offset = parsed.at(name).data.data() - weights.data();
    double losses[2];
    const double h = 0.01;
    for (int side = 0; side < 2; ++side) {
      std::string moved = weights;
      for (size_t i = 0; i < g.size(); ++i) {
        float value;
        std::memcpy(&value, moved.data() + offset + 4 * i, 4);
        value += static_cast<float>((side == 0 ? h : -h) * g[i] / norm);
        std::memcpy(moved.data() + offset + 4 * i, &value, 4);
      }
      fresh.Import(moved, "");
      losses[side] = fresh.Loss(7);
    }
    EXPECT_NEAR((losses[0] - losses[1]) / (2 * h) / norm, 1.0, 0.02) << name << " |g| " << norm;
  }
}

TEST(Autoencoder, LearnsAndNarrowsWhatCrosses) {
  Pipeline p(WithAutoencoders(TinyJob(), {2, 2}, "autoencoder(8)"));
  const double first = p.Step(0);
  double last = first;
  for (int step = 1; step < 20; ++step) last = p.Step(step);
  EXPECT_LT(last, first - 0.2);
  worker::MicroBatch batch;
  batch.samples = 1;
  batch.positions = 16;
  const std::vector<uint32_t> tokens(16, 3);
  batch.tokens = tokens;
  batch.train = false;
  const auto out = p.stage(0).Forward(batch, {});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->activation.dims.hidden, 8);
  batch.tokens = {};
  batch.targets = tokens;
  const auto wide = p.stage(1).Forward(batch, worker::Tensor::Zeros({1, 16, 32}));
  EXPECT_THAT(std::string(wide.status().message()), HasSubstr("expected 1 x 16 x 8"));
}

std::vector<std::string> NamesOf(const worker::Stage& stage) {
  std::vector<std::string> names;
  for (const worker::StageTensor& tensor : stage.Tensors()) names.push_back(tensor.name);
  return names;
}

TEST(Autoencoder, IsSavedUnderItsPlaceAndGoesOnBitForBit) {
  const Plan plan = WithAutoencoders(TinyJob(), {1, 2, 1}, "autoencoder(8)");
  Pipeline a(plan);
  for (int step = 0; step < 3; ++step) a.Step(step);
  EXPECT_THAT(NamesOf(a.stage(0)), Contains("isthmus.boundary.1.encoder.weight"));
  EXPECT_THAT(NamesOf(a.stage(1)), Contains("isthmus.boundary.1.decoder.weight"));
  EXPECT_THAT(NamesOf(a.stage(1)), Contains("isthmus.boundary.3.encoder.weight"));
  Pipeline same(plan);
  same.Import(a.ExportWeights(), a.ExportOptimizer());
  for (int step = 3; step < 6; ++step) EXPECT_EQ(same.Step(step), a.Step(step));
}

TEST(Autoencoder, StartsAnewWhereTheCheckpointHasNoneOfItsPlaceAndShape) {
  Pipeline a(WithAutoencoders(TinyJob(), {1, 3}, "autoencoder(8)"));
  for (int step = 0; step < 3; ++step) a.Step(step);
  const std::string weights = a.ExportWeights(), optimizer = a.ExportOptimizer();
  const struct {
    std::vector<int> cut;
    const char* codec;
  } cases[] = {{{2, 2}, "autoencoder(8)"}, {{1, 3}, "autoencoder(4)"}};
  for (const auto& c : cases) {
    const Plan plan = WithAutoencoders(TinyJob(), c.cut, c.codec);
    Pipeline moved(plan), initial(plan);
    moved.Import(weights, optimizer);
    const Floats got = ToMap(moved.ExportWeights()), start = ToMap(initial.ExportWeights()),
                 trained = ToMap(weights);
    for (const auto& [name, values] : got)
      EXPECT_EQ(values, (IsOwnTensor(name) ? start : trained).at(name)) << name;
    moved.Step(3);
  }
  // The other way round: without an autoencoder, its tensors in the checkpoint do not matter.
  Pipeline without(MakePlan(TinyJob(), {1, 3}));
  without.Import(weights, optimizer);
}

TEST(Autoencoder, InitialValuesAreXaviersAndDifferFromPlaceToPlace) {
  const ModelSpec model = TinyJob(4, 64).model();
  const ParameterSpec encoder = BoundaryEncoder(model, 2, 16),
                      other = BoundaryEncoder(model, 3, 16);
  EXPECT_EQ(encoder.shape, (std::vector<int64_t>{64, 16}));
  EXPECT_EQ(BoundaryDecoder(model, 2, 16).shape, (std::vector<int64_t>{16, 64}));
  std::vector<float> x(encoder.elements()), y(other.elements());
  FillInitial(encoder, 1, x.data());
  FillInitial(other, 1, y.data());
  EXPECT_NE(x, y);
  double squares = 0;
  for (float v : x) squares += static_cast<double>(v) * v;
  // Variance 2 / (in + out) = 0.025; 1024 values: 4.4 % standard error.
  EXPECT_NEAR(squares / static_cast<double>(x.size()), 0.025, 0.004);
}

}  // namespace
}  // namespace isthmus::engine
