#include "tests/worker/faulty_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/worker/world.h"
#include "worker/link/memory_link.h"

namespace isthmus::worker {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

Frame FrameOf(int micro, size_t bytes) {
  Frame frame;
  frame.header.set_micro(micro);
  frame.payload = std::string(bytes, 'x');
  return frame;
}

struct Ends {
  std::unique_ptr<Link> lower, upper;
};

Ends Open(LinkOpener* opener, const Plan& plan) {
  Ends ends;
  std::thread dial([&] { ends.lower = opener->Open(plan, plan.links(0), 0, kLong).value(); });
  ends.upper = opener->Open(plan, plan.links(0), 1, kLong).value();
  dial.join();
  return ends;
}

std::vector<int> ArrivalsUnder(Fault::Kind kind) {
  MemoryLinkHub hub;
  const Fault fault{kind, "b0", 0, 1, 3};
  FaultyLinkOpener faulty(&hub, fault);
  Ends ends = Open(&faulty, MakePlan(WorldShape()));
  for (int i = 0; i < 4; ++i) ends.lower->Send(FrameOf(i, 10), kLong).IgnoreError();
  EXPECT_TRUE(faulty.struck());
  std::thread finish([&] { ends.lower->Finish(kLong).IgnoreError(); });
  std::vector<int> micros;
  for (absl::StatusOr<Frame> frame = ends.upper->Receive(10, kLong); frame.ok();
       frame = ends.upper->Receive(10, kLong)) {
    micros.push_back(frame->header.micro());
    if (frame->payload != std::string(10, 'x')) micros.back() = -1;
  }
  finish.join();
  return micros;
}

TEST(FaultyLink, DoesWhatItSays) {
  using ::testing::ElementsAre;
  EXPECT_THAT(ArrivalsUnder(Fault::kDrop), ElementsAre(0, 2, 3));
  EXPECT_THAT(ArrivalsUnder(Fault::kRepeat), ElementsAre(0, 1, 1, 2, 3));
  EXPECT_THAT(ArrivalsUnder(Fault::kCorrupt), ElementsAre(0, -1, 2, 3));
  EXPECT_THAT(ArrivalsUnder(Fault::kReorder), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(ArrivalsUnder(Fault::kStall), ElementsAre(0));
  EXPECT_THAT(ArrivalsUnder(Fault::kCut), ElementsAre());  // an error overtakes what was not read
}

}  // namespace
}  // namespace isthmus::worker
