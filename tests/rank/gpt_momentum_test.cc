// recipe.optimizer quantized_adam (AC-SGD, arXiv 2206.01299) with the real engine: against the
// algorithm in plain loops, and what must hold of it whatever the codec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "proto/codec/codec_text.h"
#include "proto/model/recipe.h"
#include "proto/plan/groups.h"
#include "tests/rank/gpt_world.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/stage_watch.h"
#include "worker/engine/adamw.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::worker {
namespace {

using Floats = std::vector<float>;
using ::testing::SizeIs;

// Sums are grouped differently, and a code may fall on the other side of a half; its error comes
// back in the next step.
constexpr double kTolerance = 2e-5;

WorldShape Shape() {
  WorldShape shape = SmallGpt();
  shape.stages = 1;
  shape.global_batch = 8;
  shape.replicas = {5, 3};
  shape.steps = 16;
  shape.optimizer = "quantized_adam";
  shape.optimizer_warmup = 6;
  shape.gradients = "ef(quant(8, token, symmetric))";
  return shape;
}

TextCorpus Text() { return {GenerateText(4000, 1), 16, 20}; }

std::vector<double> Train(const WorldShape& shape, StageWatch* watch = nullptr) {
  const TextCorpus corpus = Text();
  MemoryStore store;
  World::Options options = GptOptions(&store, &corpus);
  if (watch != nullptr) options.make_stage = watch->Around(options.make_stage);
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  return world.Losses();
}

// What a receiver has of x, in buckets of kGradientRow.
Floats Coded(const std::string& codec, const Floats& x) {
  compress::CodecOptions options;
  options.hidden = kGradientRow;
  options.positions = static_cast<int64_t>(x.size()) / kGradientRow;
  options.max_samples = 1;
  const TensorDims dims{1, options.positions, options.hidden};
  const CodecSpec spec = ParseCodec(codec).value();
  std::string payload;
  Floats out(x.size());
  auto encoder = compress::MakeEncoder(spec, options).value();
  EXPECT_TRUE(encoder->Encode({x.data(), {}, {}, dims}, {}, &payload).ok());
  auto decoder = compress::MakeDecoder(spec, options).value();
  EXPECT_TRUE(decoder->Decode(payload, 1, {}, {out.data(), {}, {}, dims}).ok());
  return out;
}

// x + *error by the codec; what it loses is the new *error.
Floats WithFeedback(const std::string& codec, Floats x, Floats* error) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += (*error)[i];
  Floats coded = Coded(codec, x);
  for (size_t i = 0; i < x.size(); ++i) (*error)[i] = x[i] - coded[i];
  return coded;
}

void SetWeights(const Floats& w, Stage* stage) {
  const std::vector<StageTensor> tensors = stage->Tensors();
  int64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].weight()) continue;
    const int64_t n = tensors[i].elements();
    EXPECT_TRUE(stage->WriteTensor(static_cast<int>(i), 0, absl::MakeSpan(w).subspan(at, n)).ok());
    at += n;
  }
  EXPECT_EQ(at, static_cast<int64_t>(w.size()));
}

struct Model {
  Floats w, decay, m, v;
};

// `sum`: of the gradients, or after the warm-up of the moments.
void Step(const RecipeSpec& r, int64_t step, const Floats& sum, Model* model) {
  const bool frozen = step >= r.optimizer_warmup();
  const auto most = static_cast<float>(engine::MostOfRate({r.beta1(), r.beta2()}));
  double squares = 0;
  for (float x : sum) squares += double{x} * x;
  const auto scale = static_cast<float>(ClipScale(r.clip_norm(), std::sqrt(squares)));
  const auto b1 = static_cast<float>(r.beta1()), b2 = static_cast<float>(r.beta2());
  const int64_t seen = std::min<int64_t>(step + 1, r.optimizer_warmup());
  const double rate = LearningRate(r, step);
  const double c1 = 1 - std::pow(r.beta1(), step + 1), c2 = 1 - std::pow(r.beta2(), seen);
  for (size_t i = 0; i < model->w.size(); ++i) {
    const float x = sum[i] * scale;
    float &m = model->m[i], &v = model->v[i], &w = model->w[i];
    m = frozen ? x : b1 * m + (1 - b1) * x;
    if (!frozen) v = b2 * v + (1 - b2) * x * x;
    float ratio = static_cast<float>(m / (std::sqrt(v / c2) + r.epsilon()));
    if (frozen) ratio = std::clamp(ratio, -most, most);
    w = static_cast<float>(w * (1 - rate * model->decay[i]) - rate / c1 * ratio);
  }
}

// The whole model on each replica; no codec: nothing is coded. The losses of each step.
std::vector<double> Algorithm(const WorldShape& shape, const std::string& codec) {
  const TextCorpus corpus = Text();
  WorldShape one = shape;
  one.replicas.clear();
  one.stages = 1;
  const Plan plan = MakePlan(one);
  const RecipeSpec& r = plan.job().recipe();
  auto stage = GptStages()(plan, 0).value();
  const auto specs = engine::StageParameters(plan.job().model(), 0, shape.layers);
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  const size_t replicas = orders.size(), count = stage->Elements(GroupPlan::OWN);
  const size_t rows = (count + kGradientRow - 1) / kGradientRow, padded = rows * kGradientRow;
  Model model{{}, {}, Floats(count), Floats(count)};
  for (const engine::ParameterSpec& spec : specs) {
    Floats& w = model.w;
    w.resize(w.size() + spec.elements());
    engine::FillInitial(spec, shape.seed, w.data() + w.size() - spec.elements());
    model.decay.resize(w.size(), spec.decay ? static_cast<float>(r.weight_decay()) : 0.0f);
  }
  const double tokens = static_cast<double>(shape.global_batch) * shape.context;
  std::vector<Floats> worker_error(replicas, Floats(padded)), owner_error(replicas);
  std::vector<double> losses;
  for (int64_t step = 0; step < shape.steps; ++step) {
    const bool frozen = step >= r.optimizer_warmup();
    std::vector<Floats> part(replicas, Floats(padded));
    double loss = 0;
    for (size_t k = 0; k < replicas; ++k) {
      SetWeights(model.w, stage.get());
      loss += RunPasses(stage.get(), corpus, orders[k].Step(step), shape, 1 / tokens);
      EXPECT_TRUE(
          stage->ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(part[k].data(), count)).ok());
      stage->Discard();
      const double share = static_cast<double>(shape.replicas[k]) / shape.global_batch;
      for (size_t i = 0; frozen && i < count; ++i)
        part[k][i] = static_cast<float>(share * r.beta1()) * model.m[i] +
                     static_cast<float>(1 - r.beta1()) * part[k][i];
    }
    Floats sum(padded);
    for (size_t owner = 0; owner < replicas; ++owner) {
      const size_t begin = rows * owner / replicas * kGradientRow,
                   end = rows * (owner + 1) / replicas * kGradientRow;
      Floats mine(end - begin);
      owner_error[owner].resize(mine.size());
      for (size_t k = 0; k < replicas; ++k) {
        Floats of(part[k].begin() + begin, part[k].begin() + end);
        if (frozen && k != owner && !codec.empty()) {
          Floats error(worker_error[k].begin() + begin, worker_error[k].begin() + end);
          of = WithFeedback(codec, of, &error);
          std::copy(error.begin(), error.end(), worker_error[k].begin() + begin);
        }
        for (size_t i = 0; i < mine.size(); ++i) mine[i] += of[i];
      }
      if (frozen && !codec.empty()) mine = WithFeedback(codec, mine, &owner_error[owner]);
      std::copy(mine.begin(), mine.end(), sum.begin() + begin);
    }
    Step(r, step, sum, &model);
    losses.push_back(loss / tokens);
  }
  return losses;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                const std::string& what) {
  ASSERT_THAT(got, SizeIs(want.size())) << what;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], kTolerance * want[i]) << what << ", step " << i;
}

TEST(GptMomentum, IsTheAlgorithm) {
  WorldShape shape = Shape();
  ExpectNear(Train(shape), Algorithm(shape, "quant(8, token, symmetric)"), "8 bits");
  shape.gradients = "none";
  const std::vector<double> exact = Algorithm(shape, "");
  ExpectNear(Train(shape), exact, "none");
  shape.stages = 2;
  ExpectNear(Train(shape), exact, "two stages");
  shape.buckets = 2;
  ExpectNear(Train(shape), exact, "in buckets");
}

TEST(GptMomentum, TheWarmUpIsAdamWOfExactGradients) {
  for (const int stages : {1, 2}) {
    WorldShape shape = Shape();
    shape.stages = stages;
    shape.tied = "ef(quant(4, token, symmetric))";
    const std::vector<double> momentum = Train(shape);
    shape.optimizer_warmup = shape.steps;
    const std::vector<double> warm = Train(shape);
    shape.optimizer = "adamw";
    shape.optimizer_warmup = 0;
    shape.gradients = shape.tied = "none";
    const std::vector<double> adamw = Train(shape);
    EXPECT_EQ(warm, adamw) << stages;
    ASSERT_THAT(momentum, SizeIs(adamw.size()));
    // The loss of a step is that of the weights before it.
    for (int i = 0; i <= 6; ++i) EXPECT_EQ(momentum[i], adamw[i]) << i;
    EXPECT_NE(momentum[7], adamw[7]) << "the moment is frozen";
  }
}

// F52: compression that begins before the moments have settled. A second moment of one batch is
// next to nothing where a weight's gradient has yet to come; its step is bounded all the same.
TEST(GptMomentum, AFreezeAfterTheFirstStepSkipsNoStepAndLearns) {
  const TextCorpus corpus = Text();
  WorldShape shape = Shape();
  shape.stages = 2;
  shape.steps = 60;
  shape.tied = shape.gradients = "ef(quant(4, token, symmetric))";
  shape.constant_rate = true;
  const auto last = [&](int warmup) {
    shape.optimizer_warmup = warmup;
    MemoryStore store;
    World world(MakePlan(shape), GptOptions(&store, &corpus));
    for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
    for (const StepRecord& record : world.last().records())
      EXPECT_TRUE(record.committed()) << warmup << " steps, step " << record.step();
    const std::vector<double> losses = world.Losses();
    EXPECT_LT(losses.back(), 0.9 * losses.front()) << warmup;
    return losses.back();
  };
  const double settled = last(20);
  EXPECT_LT(last(1), 1.3 * settled);
}

// F54: the freeze on a grid of replicas and stages.
TEST(GptMomentum, AllReplicasHoldTheSameBits) {
  for (const char* codec : {"ef(quant(4, token, symmetric))", "ef(cocktail(0.2, 0.2, 4))",
                            "ef(topk(0.05))", "ef(lowrank(2))"}) {
    WorldShape shape = Shape();
    shape.stages = 2;
    shape.replicas = {3, 3, 2};
    shape.gradients = codec;
    shape.tied = "ef(quant(4, token, symmetric))";
    StageWatch watch;
    watch.KeepWeights();
    const std::vector<double> losses = Train(shape, &watch);
    EXPECT_LT(losses.back(), losses.front()) << codec;
    ASSERT_THAT(watch.weights(), SizeIs(6));
    for (int r = 2; r < 6; ++r)
      EXPECT_EQ(watch.weights().at(r), watch.weights().at(r % 2)) << codec << ", rank " << r;
  }
}

// Before and after the freeze; residuals come out of the codecs' states.
TEST(GptMomentum, AResumeGoesOnBitForBit) {
  const TextCorpus corpus = Text();
  WorldShape shape = Shape();
  shape.stages = 2;
  shape.gradients = "ef(quant(4, token, symmetric))";
  shape.tied = "ef(quant(8, token))";
  shape.checkpoint_every = 4;
  shape.constant_rate = true;
  const std::vector<double> whole = Train(shape);
  for (const int64_t step : {4, 12}) {
    MemoryStore store;
    MemoryStates states;
    World::Options options = GptOptions(&store, &corpus);
    options.codec_states = &states;
    WorldShape first = shape;
    first.steps = static_cast<int>(step);
    World before(MakePlan(first), options);
    for (const absl::Status& status : before.Run()) ASSERT_TRUE(status.ok()) << status;
    World after(MakePlan(shape, 2, step), options);
    for (const absl::Status& status : after.Run()) ASSERT_TRUE(status.ok()) << status;
    std::vector<double> rest = whole;  // Losses has zeros for the steps before
    std::fill_n(rest.begin(), step, 0.0);
    EXPECT_EQ(after.Losses(), rest) << step;
  }
}

TEST(GptMomentum, StepsMayOverlap) {
  WorldShape shape = Shape();
  shape.stages = 2;
  shape.schedule = "overlap";
  shape.steps = 40;
  const std::vector<double> losses = Train(shape);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
}

}  // namespace
}  // namespace isthmus::worker
