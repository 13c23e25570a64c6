#include "tests/rank/codec_witness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "tests/worker/stage_watch.h"
#include "worker/data/corpus.h"

namespace isthmus::worker {
namespace {

// One direction of one link.
class Pair {
 public:
  Pair(const Plan& plan, const LinkPlan& link, const CodecSpec& spec, bool up) {
    compress::CodecOptions options;
    options.seed = RandomBits(plan.job().seed(), Hash64(link.id()), up ? 1 : 2);
    options.positions = plan.job().model().context();
    options.hidden = plan.job().model().hidden();
    options.max_samples = plan.job().recipe().micro_batch();
    options.buffer_memory_bytes = plan.job().compression().buffer_memory_bytes();
    options.buffer_disk_bytes = 0;
    options.distinct_samples = plan.train_samples();
    encoder_ = compress::MakeEncoder(spec, options).value();
    decoder_ = compress::MakeDecoder(spec, options).value();
  }

  Tensor Through(const Tensor& in, const compress::FrameContext& context) {
    Tensor out = Tensor::Zeros(in.dims);
    std::string payload;
    absl::Status status =
        encoder_->Encode({in.data.data(), compress::DType::kF32, compress::Device::kCpu, in.dims},
                         context, &payload);
    if (status.ok()) {
      status = decoder_->Decode(
          payload, encoder_->version(), context,
          {out.data.data(), compress::DType::kF32, compress::Device::kCpu, out.dims});
    }
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  absl::Span<const uint32_t> indices() const { return encoder_->indices(); }
  absl::Span<const uint32_t> token_ids() const { return decoder_->token_ids(); }

 private:
  std::unique_ptr<compress::Encoder> encoder_;
  std::unique_ptr<compress::Decoder> decoder_;
};

// The samples of micro-batches and their tokens, as a FakeCorpus has them.
class Samples {
 public:
  Samples(const WorldShape& shape, const Corpus& corpus)
      : shape_(shape),
        corpus_(corpus),
        order_(shape.seed, corpus.train_samples(), shape.global_batch) {}

  void Go(int64_t step, int32_t micro) {
    const std::vector<uint32_t> all = order_.Step(step);
    const size_t first = static_cast<size_t>(micro) * shape_.micro_batch;
    ids_.assign(all.begin() + first,
                all.begin() + std::min(all.size(), first + shape_.micro_batch));
    tokens_.clear();
    std::vector<uint32_t> tokens(shape_.context);
    for (uint32_t id : ids_) {
      EXPECT_TRUE(corpus_.Read(id, tokens.data(), nullptr).ok());
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    }
  }
  const std::vector<uint32_t>& ids() const { return ids_; }
  const std::vector<uint32_t>& tokens() const { return tokens_; }

 private:
  const WorldShape& shape_;
  const Corpus& corpus_;
  SampleOrder order_;
  std::vector<uint32_t> ids_, tokens_;
};

}  // namespace

void ExpectTheCodecsTensors(const WorldShape& shape, bool lossy_forward, bool lossy_backward) {
  SCOPED_TRACE(shape.forward + " / " + shape.backward + ", " + shape.schedule);
  const FakeCorpus corpus(23, 9, shape.context, shape.vocabulary);
  StageWatch watch;
  World::Options options;
  options.corpus = &corpus;
  options.make_stage = watch.Around(FakeStages());
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;

  const Plan plan = MakePlan(shape);
  std::map<int, std::pair<Pair, Pair>> pairs;  // by lower stage
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() != LinkPlan::BOUNDARY) continue;
    pairs.emplace(link.lower(), std::make_pair(Pair(plan, link, link.forward(), true),
                                               Pair(plan, link, link.backward(), false)));
  }
  ASSERT_EQ(static_cast<int>(pairs.size()), shape.stages - 1);
  Samples samples(shape, corpus);
  // What the stage above the last boundary knows of the tokens of a step and micro-batch: the frame
  // of a sample that is sent as a difference alone brings none.
  std::map<std::pair<int64_t, int32_t>, std::vector<uint32_t>> known;
  int64_t passages = 0, changed_up = 0, changed_down = 0;
  for (const auto& [key, passage] : watch.passages()) {  // in the order of steps and micro-batches
    const auto& [lower, step, micro] = key;
    auto& [up, down] = pairs.at(lower);
    samples.Go(step, micro);
    compress::FrameContext context;
    context.sample_ids = samples.ids();
    context.step = step;
    context.micro = micro;
    std::vector<uint32_t>& tokens = known[{step, micro}];
    if (lower == 0) tokens = samples.tokens();
    context.token_ids = tokens;
    ASSERT_EQ(up.Through(passage.activation_below, context).data, passage.activation.data)
        << "up from stage " << lower << ", step " << step << ", micro-batch " << micro;
    const absl::Span<const uint32_t> arrived = up.token_ids();
    tokens.assign(arrived.begin(), arrived.end());
    context.token_ids = tokens;
    context.indices = up.indices();
    ASSERT_EQ(down.Through(passage.gradient_above, context).data, passage.gradient_received.data)
        << "down to stage " << lower << ", step " << step << ", micro-batch " << micro;
    ++passages;
    changed_up += passage.activation_below.data != passage.activation.data ? 1 : 0;
    changed_down += passage.gradient_above.data != passage.gradient_received.data ? 1 : 0;
  }
  const int micros = (shape.global_batch + shape.micro_batch - 1) / shape.micro_batch;
  EXPECT_EQ(passages, int64_t{shape.stages - 1} * shape.steps * micros);
  EXPECT_EQ(changed_up > 0, lossy_forward);
  EXPECT_EQ(changed_down > 0, lossy_backward);
}

}  // namespace isthmus::worker
