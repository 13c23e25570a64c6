#include "worker/link/state_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/worker/link/memory_states.h"
#include "tests/worker/world.h"
#include "worker/link/codec_options.h"
#include "worker/link/frames.h"
#include "worker/link/inlet.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

// Keeps what is sent; gives what it was told to.
class CannedLink : public Link {
 public:
  absl::Status Send(Frame frame, absl::Duration) override {
    sent = std::move(frame);
    return absl::OkStatus();
  }
  absl::StatusOr<Frame> Receive(int64_t, absl::Duration) override {
    if (!answer.has_value()) return absl::DeadlineExceededError("nothing arrived");
    return *answer;
  }
  void Cancel(absl::Status) override {}
  absl::Status Finish(absl::Duration) override { return absl::OkStatus(); }
  bool peer_exchanges_codec_state() const override { return exchanges; }
  int64_t wire_bytes_sent() const override { return 0; }

  bool exchanges = true;
  std::optional<Frame> sent, answer;
};

class StateExchangeTest : public ::testing::Test {
 protected:
  // The lower end of b0 at `start_step`, with a state of step 4 if `saved`.
  void Make(int64_t start_step, bool saved, const std::string& codec = "delta(quant(3))") {
    WorldShape shape;
    shape.forward = codec;
    plan_ = SessionPlan::Make(MakePlan(shape, 2, start_step), 0).value();
    const LinkPlan& link = *plan_->above();
    encoder_ = *ResumableCodec<compress::Encoder>::Make(
        *plan_, CodecPlace::Boundary(*plan_, link, true), link.forward(),
        BoundaryCodecOptions(*plan_, link, link.forward(), true, ""), &states_);
    decoder_ = *ResumableCodec<compress::Decoder>::Make(
        *plan_, CodecPlace::Boundary(*plan_, link, false), link.backward(),
        BoundaryCodecOptions(*plan_, link, link.backward(), false, ""), &states_);
    if (saved) encoder_.Save(4);
    exchange_.emplace(*plan_, link, &wire_, &encoder_, &decoder_);
  }

  void Answer(uint64_t up) {
    Frame frame;
    frame.header.set_kind(FrameHeader::CODEC_STATE);
    frame.header.set_step(4);
    frame.header.mutable_codec_state()->set_up(up);
    SealFrame(plan_->plan(), &frame);
    wire_.answer = std::move(frame);
  }

  MemoryStates states_;
  CannedLink wire_;
  std::unique_ptr<const SessionPlan> plan_;
  ResumableCodec<compress::Encoder> encoder_;
  ResumableCodec<compress::Decoder> decoder_;
  std::optional<StateExchange> exchange_;
};

TEST_F(StateExchangeTest, GoesOnWhereBothAgree) {
  Make(4, true);
  ASSERT_TRUE(exchange_->Offer().ok());
  const uint64_t mine = wire_.sent->header.codec_state().up();
  EXPECT_NE(mine, 0u);
  EXPECT_EQ(wire_.sent->header.codec_state().down(), 0u);
  Answer(mine);
  EXPECT_EQ(*exchange_->Settle(), "b0: outgoing codec goes on");
}

TEST_F(StateExchangeTest, BeginsAnewWhereTheyDiffer) {
  for (const auto& [theirs, words] :
       {std::make_pair(uint64_t{0}, "b0: outgoing codec new, the peer has no state"),
        std::make_pair(uint64_t{99}, "b0: outgoing codec new, the two ends' states differ")}) {
    Make(4, true);
    ASSERT_TRUE(exchange_->Offer().ok());
    Answer(theirs);
    EXPECT_EQ(*exchange_->Settle(), words);
  }
  Make(4, false);
  states_.Lose("");
  ASSERT_TRUE(exchange_->Offer().ok());
  EXPECT_EQ(wire_.sent->header.codec_state().up(), 0u);
  Answer(99);
  EXPECT_EQ(*exchange_->Settle(), "b0: outgoing codec new, not here");
}

TEST_F(StateExchangeTest, NothingPassesWhereNothingCanGoOn) {
  Make(0, false);  // no checkpoint
  ASSERT_TRUE(exchange_->Offer().ok());
  EXPECT_EQ(*exchange_->Settle(), "");
  Make(4, false, "quant(3)");  // no codec with a memory
  ASSERT_TRUE(exchange_->Offer().ok());
  EXPECT_EQ(*exchange_->Settle(), "");
  Make(4, true);  // an older peer: it would take the frame for an error
  wire_.exchanges = false;
  ASSERT_TRUE(exchange_->Offer().ok());
  EXPECT_EQ(*exchange_->Settle(), "");
  EXPECT_EQ(encoder_->version(), 0u);
  EXPECT_FALSE(wire_.sent.has_value());
}

TEST_F(StateExchangeTest, ErrorsNameTheLink) {
  Make(4, true);
  ASSERT_TRUE(exchange_->Offer().ok());
  EXPECT_THAT(
      exchange_->Settle().status().message(),
      HasSubstr("link b0 with stage 1 (node-1, 10.0.0.2:7071): waiting for the peer's codec "
                "states: nothing arrived"));
  Answer(7);
  wire_.answer->header.mutable_codec_state()->set_up(8);
  EXPECT_THAT(exchange_->Settle().status().message(),
              HasSubstr("the checksum of the offer of codec states of step 4 is wrong"));
  Answer(7);
  wire_.answer->header.set_kind(FrameHeader::VOTE);
  SealFrame(plan_->plan(), &*wire_.answer);
  EXPECT_EQ(exchange_->Settle().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace isthmus::worker
