// What gradients a stage receives when activations are compressed: those at the indices that were
// sent, by `kept`; and all of them, unchanged, where only the forward direction has a codec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/mutex.h"
#include "proto/codec/codec_size.h"
#include "tests/rank/codec_witness.h"
#include "tests/worker/stage_watch.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

WorldShape Shape(const char* forward, const char* backward) {
  WorldShape shape;
  shape.stages = 3;
  shape.hidden = 8;
  shape.forward = forward;
  shape.backward = backward;
  return shape;
}

struct Watched {
  std::vector<double> losses;
  StageWatch watch;
};

void RunWatched(const WorldShape& shape, Watched* out) {
  World::Options options;
  options.make_stage = out->watch.Around(FakeStages());
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run())
    EXPECT_TRUE(status.ok()) << shape.forward << " / " << shape.backward << ": " << status;
  out->losses = world.last().losses();
}

std::vector<double> Losses(const WorldShape& shape) {
  Watched run;
  RunWatched(shape, &run);
  return run.losses;
}

// Every frame that goes out, on the world's own links.
class TappedLinks : public LinkOpener {
 public:
  struct Sum {
    int64_t frames = 0, payload = 0, samples = 0, wire = 0;
  };

  absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link, int my_stage,
                                             absl::Duration timeout) override {
    absl::StatusOr<std::unique_ptr<Link>> opened = hub_.Open(plan, link, my_stage, timeout);
    if (!opened.ok()) return opened;
    return std::make_unique<Tapped>(this, *std::move(opened), link.kind() == LinkPlan::BOUNDARY);
  }
  Sum Of(FrameHeader::Kind kind) {
    MutexLock lock(&mutex_);
    return sums_[kind];
  }

 private:
  class Tapped : public Link {
   public:
    Tapped(TappedLinks* taps, std::unique_ptr<Link> link, bool counts)
        : taps_(taps), link_(std::move(link)), counts_(counts) {}
    absl::Status Send(Frame frame, absl::Duration timeout) override {
      if (counts_) {
        MutexLock lock(&taps_->mutex_);
        Sum& sum = taps_->sums_[frame.header.kind()];
        ++sum.frames;
        sum.payload += static_cast<int64_t>(frame.payload.size());
        sum.samples += frame.header.sample_ids_size();
        sum.wire += static_cast<int64_t>(frame.header.ByteSizeLong() + frame.payload.size());
      }
      return link_->Send(std::move(frame), timeout);
    }
    absl::StatusOr<Frame> Receive(int64_t max, absl::Duration timeout) override {
      return link_->Receive(max, timeout);
    }
    void Cancel(absl::Status why) override { link_->Cancel(std::move(why)); }
    absl::Status Finish(absl::Duration timeout) override { return link_->Finish(timeout); }
    bool peer_exchanges_codec_state() const override { return link_->peer_exchanges_codec_state(); }
    int64_t wire_bytes_sent() const override { return link_->wire_bytes_sent(); }

   private:
    TappedLinks* const taps_;
    const std::unique_ptr<Link> link_;
    const bool counts_;
  };

  MemoryLinkHub hub_;
  Mutex mutex_;
  std::map<FrameHeader::Kind, Sum> sums_ ABSL_GUARDED_BY(mutex_);
};

// T3.3: of each sample, at most K elements of the gradient are not zero, they are exact, and they
// are where the activation's are.
TEST(SessionIndices, GradientsComeBackAtTheIndicesThatWereSent) {
  for (const auto& [forward, scaled] : {std::pair{"topk(0.25)", false},
                                        {"topk(0.25, global)", false},
                                        {"randomk(0.25)", false},
                                        {"topk(0.25) | zstd", false},
                                        {"randomk(0.25, scaled, values=none)", true}}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      WorldShape shape = Shape(forward, "kept");
      shape.schedule = schedule;
      shape.eval_every = 2;
      Watched run;
      RunWatched(shape, &run);
      EXPECT_THAT(run.losses, SizeIs(shape.steps));
      ASSERT_THAT(run.watch.passages(), SizeIs(2 * shape.steps * 4)) << "boundaries, micro-batches";
      int64_t received = 0;
      for (const auto& [key, p] : run.watch.passages()) {
        const std::vector<float>&x = p.activation.data, &got = p.gradient_received.data,
              &above = p.gradient_above.data;
        ASSERT_EQ(got.size(), above.size());
        const size_t sample = static_cast<size_t>(shape.context * shape.hidden);
        const float run_length = scaled ? 4 : 1;  // of 24 elements, 6 are drawn
        for (size_t s = 0; s < got.size(); s += sample) {
          size_t nonzero = 0;
          for (size_t i = s; i < s + sample; ++i) {
            nonzero += got[i] != 0;
            if (got[i] != 0 || x[i] != 0) {
              EXPECT_EQ(got[i], run_length * above[i]) << forward << " at " << i;
            }
          }
          EXPECT_LE(nonzero, sample / 4) << forward;
          received += static_cast<int64_t>(nonzero);
        }
      }
      EXPECT_GT(received, 400) << forward << ", of 504 at most";
    }
  }
}

// T3.3: K = numel is the dense run, bit for bit.
TEST(SessionPlaces, AllPlacesAreTheDenseRun) {
  for (const char* forward :
       {"topk(1)", "topk(1, values=none)", "topk(1, global)", "randomk(1, scaled)"}) {
    const std::vector<double> dense = Losses(Shape(forward, "none"));
    EXPECT_EQ(Losses(Shape(forward, "kept")), dense) << forward;
    EXPECT_EQ(Losses(Shape(forward, "kept | zstd")), dense) << forward;
    EXPECT_NE(Losses(Shape(forward, "kept(quant(2))")), dense) << "the test can fail";
  }
  EXPECT_EQ(Losses(Shape("topk(1, values=none)", "kept")), Losses(Shape("none", "none")));
}

TEST(SessionIndices, EveryCodecOfValuesSendsWhatItIs) {
  for (const char* backward : {"kept(bf16)", "kept(quant(8))", "kept(quant(4, group=32)) | zstd"}) {
    ExpectTheCodecsTensors(Shape("topk(0.5)", backward), true, true);
  }
}

// T3.3: K values and K indices go up, K values come down; the bytes reported have them all.
TEST(SessionIndices, TheWireHoldsIndicesOneWayAlone) {
  WorldShape shape = Shape("topk(0.25, values=none)", "kept(bf16)");
  shape.eval_samples = 0;
  TappedLinks links;
  World::Options options;
  options.links = &links;
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  const int64_t n = shape.context * shape.hidden, kept = n / 4;
  const int64_t samples = 2 * shape.steps * shape.global_batch;  // of two boundaries
  const TappedLinks::Sum up = links.Of(FrameHeader::ACTIVATION),
                         down = links.Of(FrameHeader::GRADIENT);
  EXPECT_EQ(up.samples, samples);
  EXPECT_EQ(up.payload, samples * (kept * 4 + IndexSetBytes(n, kept)));
  EXPECT_EQ(down.payload, samples * kept * 2);
  int64_t reported[2] = {0, 0}, raw[2] = {0, 0};  // down, up
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const StepRecord& record : world.observer(stage).records()) {
      for (const DirectionBytes& d : record.directions()) {
        if (d.link_id() == "tied") continue;
        reported[d.forward()] += d.wire_bytes();
        raw[d.forward()] += d.raw_bytes();
      }
    }
  }
  EXPECT_EQ(raw[0], samples * n * 4);
  EXPECT_EQ(raw[1], samples * n * 4);
  EXPECT_EQ(reported[0], down.wire + links.Of(FrameHeader::VOTE).wire);
  EXPECT_EQ(reported[1], up.wire + links.Of(FrameHeader::DECISION).wire);
}

TEST(SessionIndices, AResumedSessionGoesOnWithoutOldIndices) {
  WorldShape shape = Shape("topk(0.25)", "kept");
  shape.steps = 8;
  shape.checkpoint_every = 4;
  World whole(MakePlan(shape));
  for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
  MemoryStore copy = whole.store();
  World::Options options;
  options.store = &copy;
  World again(MakePlan(shape, 2, 4), options);
  for (const absl::Status& status : again.Run()) ASSERT_TRUE(status.ok()) << status;
  const std::vector<double> losses = whole.last().losses();
  EXPECT_EQ(again.last().losses(), std::vector<double>(losses.begin() + 4, losses.end()));
}

// Another codec on one boundary has nothing to do with it.
TEST(SessionIndices, OneBoundaryMayHaveItAndAnotherNot) {
  Plan plan = MakePlan(Shape("topk(0.5)", "kept"));
  plan.mutable_links(1)->clear_forward();
  plan.mutable_links(1)->clear_backward();
  World world(plan);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
}

// T3.5: a compressed forward boundary has the derivative 1. What the stage below receives is what
// the stage above has for its decoded input, bit for bit.
TEST(SessionIndices, AForwardCodecIsStraightThrough) {
  for (const char* forward :
       {"quant(2)", "delta(quant(2))", "topk(0.3)", "randomk(0.5)", "lowrank(2)", "sign",
        "ef(quant(2))", "predict(quant(2))", "delta(quant(3), cold=predict(quant(4)))"}) {
    WorldShape shape = Shape(forward, "none");
    shape.steps = 8;  // two passes over the samples: delta frames as well as key frames
    Watched run;
    RunWatched(shape, &run);
    ASSERT_THAT(run.watch.passages(), SizeIs(2 * shape.steps * 4)) << forward;
    for (const auto& [key, p] : run.watch.passages()) {
      ASSERT_FALSE(p.gradient_above.data.empty());
      EXPECT_EQ(p.gradient_received.data, p.gradient_above.data) << forward;
    }
    EXPECT_NE(run.losses, Losses(Shape("none", "none"))) << forward << " changes the activations";
  }
}

}  // namespace
}  // namespace isthmus::worker
