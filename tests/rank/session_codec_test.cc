// The real codecs between fake stages: what is lossless changes nothing, and the delta buffers of
// both ends stay bit-identical.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>

#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "tests/rank/codec_witness.h"
#include "tests/temp_directory.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

std::vector<double> Losses(const WorldShape& shape) {
  World world(MakePlan(shape));
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  return world.last().losses();
}

TEST(SessionCodec, LosslessCodecsChangeNothing) {
  WorldShape shape;
  shape.stages = 3;
  const std::vector<double> plain = Losses(shape);
  for (const char* codec :
       {"none | zstd", "fp16", "fp16 | zstd"}) {  // fp16 holds the fake's integers exactly
    shape.forward = shape.backward = codec;
    EXPECT_EQ(Losses(shape), plain) << codec;
  }
}

TEST(SessionCodec, EveryStatelessCodecRuns) {
  WorldShape shape;
  shape.stages = 3;
  for (const char* codec : {"bf16", "quant(4)", "quant(1)", "quant(3, token)",
                            "quant(8, stochastic)", "quant(2, rms, symmetric) | zstd"}) {
    shape.forward = shape.backward = codec;
    ExpectTheCodecsTensors(shape, true, true);
  }
}

TEST(SessionCodec, DeltaBuffersStayIdenticalOverEpochs) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 20;  // 23 samples, 7 a step: 3 steps an epoch
  shape.check_buffers = true;
  shape.backward = "quant(6)";
  for (const char* codec :
       {"delta(quant(3))", "delta(quant(2, token), cold=bf16)", "delta(quant(4)) | zstd"}) {
    shape.forward = codec;
    for (const char* schedule : {"1f1b", "gpipe"}) {
      shape.schedule = schedule;
      World world(MakePlan(shape));
      for (const absl::Status& status : world.Run())
        EXPECT_TRUE(status.ok()) << codec << ": " << status;
      const std::vector<StepRecord> records = world.observer(0).records();
      EXPECT_EQ(records.front().key_frames(), 7) << codec;  // cold
      EXPECT_LT(records.back().key_frames(), 7) << codec;   // warm
      EXPECT_GT(records.back().buffer_memory_bytes(), 0) << codec;
      ExpectTheCodecsTensors(shape, true, true);
    }
  }
}

// Token ids go up with the activations from boundary to boundary, in one frame (F63).
TEST(SessionCodec, PredictorsStayIdentical) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 8;
  shape.check_buffers = true;
  const std::pair<const char*, const char*> both_ways[] = {
      {"predict(quant(4))", "none"},
      {"delta(quant(3), cold=predict(quant(4)))", "none"},
      {"predict(quant(2, token), context=3)", "predict(quant(4, token), context=2, next)"},
      {"predict(none)", "predict(quant(4, token), context=3, next) | zstd"},
      {"delta(quant(3), cold=predict(quant(4)))", "predict(quant(4), next)"},
  };
  for (const auto& [forward, backward] : both_ways) {
    shape.forward = forward;
    shape.backward = backward;
    for (const char* schedule : {"1f1b", "gpipe"}) {
      shape.schedule = schedule;
      ExpectTheCodecsTensors(shape, std::string(forward) != "predict(none)",
                             std::string(backward) != "none");
    }
  }
}

// Codecs whose memory is the sender's alone.
TEST(SessionCodec, SparseAndFeedbackCodecsRun) {
  WorldShape shape;
  shape.stages = 3;
  for (const char* codec :
       {"ef(quant(2))", "topk(0.25)", "randomk(0.5)", "lowrank(2)", "sign", "lep(topk(0.25))"}) {
    shape.backward = codec;
    ExpectTheCodecsTensors(shape, false, true);
  }
}

TEST(SessionCodec, EvaluationLeavesDeltaBuffersAlone) {
  WorldShape shape;
  shape.steps = 12;
  shape.check_buffers = true;
  shape.forward = "delta(quant(3))";
  shape.eval_samples = 0;
  const std::vector<double> without = Losses(shape);
  shape.eval_samples = 5;
  shape.eval_every = 1;
  EXPECT_EQ(Losses(shape), without);
}

// Written in the background and read ahead by both threads of each link: the losses are those of
// buffers that all lie in memory, to the last bit.
TEST(SessionCodec, BuffersInAFileAndReadAheadChangeNothing) {
  TempDirectory directory;
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 30;  // 23 samples, 7 a step: ten epochs
  shape.check_buffers = true;
  for (const char* codec : {"delta(quant(3))", "delta(quant(3), buffer=4)"}) {
    shape.forward = codec;
    shape.buffer_memory_bytes = 1 << 20;
    shape.buffer_disk_bytes = 0;
    const std::vector<double> in_memory = Losses(shape);
    shape.buffer_memory_bytes = 5 * BufferBytes(*ParseCodec(codec), 1, shape.context, shape.hidden);
    shape.buffer_disk_bytes = 1 << 20;
    for (const int64_t train_samples : {23, 0}) {  // 0: not known, so nothing is read ahead
      Plan plan = MakePlan(shape);
      plan.set_train_samples(train_samples);
      World::Options options;
      options.spill_directory = directory.path();
      World world(plan, options);
      for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(world.last().losses(), in_memory) << codec << ", " << train_samples;
      EXPECT_GT(world.observer(1).records().back().buffer_disk_bytes(), 0) << codec;
    }
  }
}

TEST(SessionCodec, BuffersThatDoNotFitAreEvictedAlike) {
  char name[] = "/tmp/isthmus-rank-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  WorldShape shape;
  shape.steps = 20;
  shape.check_buffers = true;
  shape.forward = "delta(quant(3))";
  const int64_t sample = 2 * shape.context * shape.hidden;  // bytes of one buffer
  shape.buffer_memory_bytes = 9 * sample;
  for (const int64_t disk : {int64_t{0}, 8 * sample}) {
    shape.buffer_disk_bytes = disk;
    World::Options options;
    options.spill_directory = name;
    World world(MakePlan(shape), options);
    for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(std::filesystem::is_empty(name));
  std::filesystem::remove_all(name);
}

}  // namespace
}  // namespace isthmus::worker
