#include "worker/study/step_time.h"

#include "gtest/gtest.h"

namespace isthmus::study {
namespace {

ComputeCost Passes() { return {{0.1, 0.1}, {0.2, 0.2}}; }

WireCost Frames(double bytes, double codec_s = 0) {
  return {{{bytes, codec_s, codec_s}}, {{bytes, codec_s, codec_s}}, 0};
}

TEST(StepTime, FreeLinksGiveTheScheduleAlone) {
  // GPipe of one micro-batch on two stages: 0.1 + 0.1 forward, 0.2 + 0.2 backward.
  EXPECT_NEAR(*StepSeconds({"gpipe", 2, 1, 4, 0}, Passes(), Frames(0), 1e6), 0.6, 1e-9);
}

TEST(StepTime, BytesDelayTiedExchangeAndVoteAdd) {
  WireCost wire = Frames(125000);  // 1 s at 1 Mbit/s
  wire.tied_bytes = 250000;
  // Up and down 1 s + 0.05 s each, tied 2 s + 0.05 s, the vote there and back 0.1 s.
  EXPECT_NEAR(*StepSeconds({"gpipe", 2, 1, 4, 0.05}, Passes(), wire, 1e6), 0.6 + 2.1 + 2.05 + 0.1,
              1e-9);
}

TEST(StepTime, AFasterLinkThanTheCodecWaitsForTheCodec) {
  const StepShape shape{"gpipe", 2, 8, 8, 0};
  const double plain = *StepSeconds(shape, Passes(), Frames(1000), 1e12);
  const double slow = *StepSeconds(shape, Passes(), Frames(1000, 0.5), 1e12);
  // Eight frames each way through an encoder of 0.5 s a frame.
  EXPECT_GT(slow, plain + 2 * 7 * 0.4);
  const double less = *StepSeconds(shape, Passes(), Frames(1000), 1e6);
  const double more = *StepSeconds(shape, Passes(), Frames(100000), 1e6);
  EXPECT_LT(less, more);
}

TEST(StepTime, AnUnknownScheduleIsAnError) {
  EXPECT_FALSE(StepSeconds({"zigzag", 2, 1, 4, 0}, Passes(), Frames(0), 1e6).ok());
}

}  // namespace
}  // namespace isthmus::study
