#include "worker/link/resumable_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/worker/link/memory_states.h"
#include "tests/worker/world.h"
#include "worker/link/codec_options.h"
#include "worker/link/inlet.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;

// A disk that is slower than any deadline.
class SlowStates : public CodecStateStore {
 public:
  class SlowWriter : public Writer {
   public:
    explicit SlowWriter(SlowStates* states) : states_(states) {}
    absl::Status Append(absl::string_view bytes) override {
      ++states_->appends;
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
      while (std::chrono::steady_clock::now() < until) {
      }
      return absl::OkStatus();
    }
    absl::Status Commit() override {
      ++states_->commits;
      return absl::OkStatus();
    }

   private:
    SlowStates* const states_;
  };
  void Begin(const std::string&, int64_t) override {}
  absl::StatusOr<std::unique_ptr<Writer>> Create(const CodecStateKey&) override {
    return std::make_unique<SlowWriter>(this);
  }
  absl::StatusOr<std::unique_ptr<compress::StateSource>> Open(const CodecStateKey&) override {
    return absl::NotFoundError("none");
  }
  int appends = 0, commits = 0;
};

struct End {
  End(WorldShape shape, int stage, int64_t start_step = 0)
      : plan(SessionPlan::Make(MakePlan(shape, 1, start_step), stage).value()),
        link(stage == 0 ? *plan->above() : *plan->below()),
        options(BoundaryCodecOptions(*plan, link, link.forward(), true, "")) {}

  ResumableCodec<compress::Encoder> Encoder(CodecStateStore* states) const {
    return *ResumableCodec<compress::Encoder>::Make(*plan, CodecPlace::Boundary(*plan, link, true),
                                                    link.forward(), options, states);
  }

  void Encode(ResumableCodec<compress::Encoder>* encoder) const {
    std::vector<float> x(static_cast<size_t>(options.positions * options.hidden), 1.5f);
    const std::vector<uint32_t> ids = {3};
    compress::FrameContext context;
    context.sample_ids = ids;
    const compress::TensorView view{x.data(),
                                    compress::DType::kF32,
                                    compress::Device::kCpu,
                                    {1, options.positions, options.hidden}};
    std::string payload;
    ASSERT_TRUE((*encoder)->Encode(view, context, &payload).ok());
  }

  std::unique_ptr<const SessionPlan> plan;
  const LinkPlan& link;
  compress::CodecOptions options;
};

WorldShape Delta() {
  WorldShape shape;
  shape.forward = "delta(quant(3))";
  return shape;
}

TEST(ResumableCodec, GoesOnFromWhatWasSaved) {
  MemoryStates states;
  const End first(Delta(), 0);
  ResumableCodec<compress::Encoder> encoder = first.Encoder(&states);
  first.Encode(&encoder);
  encoder.Save(4);
  EXPECT_THAT(states.names(), ElementsAre("b0-lower-up@4"));
  first.Encode(&encoder);  // after the checkpoint

  const End second(Delta(), 0, 4);
  ResumableCodec<compress::Encoder> again = second.Encoder(&states);
  const absl::StatusOr<uint64_t> agreement = again.Load();
  ASSERT_TRUE(agreement.ok());
  EXPECT_NE(*agreement, 0u);
  EXPECT_EQ(again->version(), 1u);
  second.Encode(&again);
  EXPECT_EQ(again->StateHash().value(), encoder->StateHash().value());
  ASSERT_TRUE(again.Forget().ok());
  EXPECT_EQ(again->version(), 0u);
}

TEST(ResumableCodec, WithoutAStateItIsNew) {
  MemoryStates states;
  const End end(Delta(), 0, 4);
  ResumableCodec<compress::Encoder> encoder = end.Encoder(&states);
  EXPECT_EQ(*encoder.Load(), 0u);
  end.Encode(&encoder);
  EXPECT_EQ(encoder->version(), 1u);
}

TEST(ResumableCodec, CodecsWithoutMemoryKeepNothing) {
  MemoryStates states;
  WorldShape shape;
  shape.forward = "quant(3)";
  const End end(shape, 0);
  ResumableCodec<compress::Encoder> encoder = end.Encoder(&states);
  EXPECT_FALSE(encoder.keeps());
  end.Encode(&encoder);
  encoder.Save(4);
  EXPECT_THAT(states.names(), ElementsAre());
  EXPECT_FALSE(End(Delta(), 0).Encoder(nullptr).keeps());
}

TEST(ResumableCodec, ASlowDiskIsGivenUp) {
  SlowStates states;
  WorldShape shape = Delta();
  shape.step_ms = 4;        // a quarter of it: 1 ms
  shape.context = 1 << 18;  // a key frame that takes more than one Append
  const End end(shape, 0);
  ResumableCodec<compress::Encoder> encoder = end.Encoder(&states);
  end.Encode(&encoder);
  encoder.Save(4);
  EXPECT_LE(states.appends, 1);  // none, on a slow machine
  EXPECT_EQ(states.commits, 0);
}

}  // namespace
}  // namespace isthmus::worker
