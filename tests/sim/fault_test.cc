// Seeded faults on the links of ranks as threads: each one is detected, ends every rank with a
// status that names where, and nothing hangs. A failing seed is replayed with
// --gtest_filter=Seeds/FaultTest.IsDetected/SEED.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "tests/worker/faulty_link.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSeeds = 120;

struct Case {
  WorldShape shape;
  Fault fault;
};

// All that varies is a function of the seed: cut, schedule, codec, queue limit, which link,
// direction, frame and fault.
Case MakeCase(uint64_t seed) {
  const auto pick = [&](uint64_t stream, uint64_t n) { return RandomBelow(seed, stream, 0, n); };
  Case c;
  const int stages[] = {2, 3, 4};
  c.shape.stages = stages[pick(1, 3)];
  c.shape.schedule = pick(2, 2) == 0 ? "1f1b" : "gpipe";
  c.shape.queue_limit = 1 + pick(3, 3);
  c.shape.forward = pick(4, 2) == 0 ? "none" : "delta(quant(4))";
  c.shape.check_buffers = pick(5, 2) == 0;
  c.shape.eval_every = pick(6, 3);
  c.shape.seed = seed;
  c.fault.kind = static_cast<Fault::Kind>(Fault::kDrop + pick(7, 6));
  // Where a frame never comes, the deadline tells; the others must show by themselves, however slow
  // the host.
  const bool silent = c.fault.kind == Fault::kDrop || c.fault.kind == Fault::kStall ||
                      c.fault.kind == Fault::kReorder;
  c.shape.step_ms = silent ? 1000 : 30000;
  const int link = pick(8, c.shape.stages);
  const bool tied = link + 1 == c.shape.stages;
  c.fault.link_id = tied ? "tied" : absl::StrCat("b", link);
  const bool by_lower = pick(9, 2) == 0;
  c.fault.sender_stage = tied ? (by_lower ? 0 : c.shape.stages - 1) : (by_lower ? link : link + 1);
  // A step has 4 micro-batches and one vote a direction, or one tied gradient: the fault falls into
  // the first five of six steps.
  c.fault.frame = pick(10, tied ? 5 : 25);
  c.fault.seed = seed;
  return c;
}

std::string Name(const Case& c) {
  return absl::StrCat(FaultName(c.fault.kind), " of frame ", c.fault.frame, " of stage ",
                      c.fault.sender_stage, " on ", c.fault.link_id, ", ", c.shape.stages,
                      " stages, ", c.shape.schedule, ", forward ", c.shape.forward);
}

class FaultTest : public ::testing::TestWithParam<int> {};

TEST_P(FaultTest, IsDetected) {
  const Case c = MakeCase(GetParam());
  MemoryLinkHub hub;
  FaultyLinkOpener faulty(&hub, c.fault);
  World::Options options;
  options.links = &faulty;
  World world(MakePlan(c.shape), options);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<absl::Status> statuses = world.Run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(faulty.struck()) << Name(c);
  EXPECT_LT(took.count(), 30) << Name(c);  // far above a deadline of 1 s: a hang, not a slow host
  for (const absl::Status& status : statuses) {
    ASSERT_FALSE(status.ok()) << Name(c);
    EXPECT_THAT(status.message(), HasSubstr(" failed at step ")) << Name(c);
    EXPECT_THAT(status.message(), AnyOf(HasSubstr(". Check that the node runs"),
                                        HasSubstr(". Nothing of this step was applied here")))
        << Name(c);
    switch (c.fault.kind) {
      case Fault::kCut:
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << Name(c) << ": " << status;
        break;
      case Fault::kStall:
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << Name(c) << ": " << status;
        break;
      case Fault::kCorrupt:
      case Fault::kRepeat:
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << Name(c) << ": " << status;
        EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("link ", c.fault.link_id))) << Name(c);
        break;
      default:  // what is lost shows by the next frame, or by the deadline where none follows
        EXPECT_THAT(status.code(),
                    AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kDeadlineExceeded))
            << Name(c) << ": " << status;
    }
  }
  // No rank went past the step that the fault hit by more than the one under way, and all saved the
  // same checkpoints: none.
  EXPECT_TRUE(world.store().complete_steps().empty()) << Name(c);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FaultTest, ::testing::Range(0, kSeeds));

}  // namespace
}  // namespace isthmus::worker
