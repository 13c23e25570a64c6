// Deaths and faults inside reductions: three replicas of one or two stages, gradients in two
// buckets by 4 bits with error feedback. Whatever tears a reduction, no rank applies that step, and
// ranks that came as far hold the same weights. A failing seed is replayed with
// --gtest_filter=Seeds/ReductionFaultTest.TearsNothing/SEED.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "proto/plan/groups.h"
#include "tests/worker/faulty_link.h"
#include "tests/worker/passing_link.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"
#include "worker/link/frames.h"

namespace isthmus::worker {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

WorldShape Shape(int stages) {
  WorldShape shape;
  shape.stages = stages;
  shape.replicas = {3, 3, 1};
  shape.hidden = 256;  // two layers a row
  shape.buckets = 2;
  shape.gradients = "ef(quant(4))";
  return shape;
}

// The stages of a world, to be looked at after its end.
class Watched {
 public:
  Watched(const WorldShape& shape, LinkOpener* links, const StageHook& hook = nullptr)
      : stages_(MakePlan(shape).ranks_size()), world_(MakePlan(shape), Options(links, hook)) {}

  std::vector<absl::Status> Run() { return world_.Run(); }
  const World& world() const { return world_; }

  // Step `torn` was applied by none, and the one before at the most its decision was on its way to.
  void ExpectNothingOf(int64_t torn, const std::string& what) {
    const int stages = StagesOf(world_.plan());
    for (int r = 0; r < static_cast<int>(stages_.size()); ++r) {
      EXPECT_LE(world_.session(r).step(), torn) << what << ", rank " << r;
      EXPECT_GE(world_.session(r).step() + 1, torn) << what << ", rank " << r;
      for (int other = r % stages; other < r; other += stages) {
        if (world_.session(other).step() != world_.session(r).step()) continue;
        EXPECT_EQ(WeightsOf(*stages_[r]), WeightsOf(*stages_[other]))
            << what << ", ranks " << other << " and " << r;
      }
    }
    EXPECT_TRUE(world_.store().complete_steps().empty()) << what;
  }

 private:
  World::Options Options(LinkOpener* links, const StageHook& hook) {
    World::Options options;
    options.links = links;
    options.make_stage = [this, fakes = FakeStages(hook)](const Plan& plan, int rank) {
      auto stage = fakes(plan, rank);
      if (stage.ok()) stages_[rank] = stage->get();
      return stage;
    };
    return options;
  }

  std::vector<Stage*> stages_;  // by rank; the sessions own them
  World world_;
};

class ReductionFaultTest : public ::testing::TestWithParam<int> {};

TEST_P(ReductionFaultTest, TearsNothing) {
  const uint64_t seed = GetParam();
  const auto pick = [&](uint64_t stream, uint64_t n) { return RandomBelow(seed, stream, 0, n); };
  WorldShape shape = Shape(1 + static_cast<int>(pick(1, 2)));
  shape.queue_limit = 1 + static_cast<int>(pick(2, 3));
  shape.seed = seed;
  Fault fault;
  const Fault::Kind kinds[] = {Fault::kDrop,    Fault::kRepeat, Fault::kCorrupt,
                               Fault::kReorder, Fault::kStall,  Fault::kCut};
  fault.kind = kinds[seed % 6];
  fault.seed = seed;
  // Of two replicas of a stage, a frame of the first four of six steps: each has four and more.
  const int stage = static_cast<int>(pick(3, shape.stages));
  const int low = static_cast<int>(pick(4, 2)), high = low + 1 + (low == 0 ? pick(5, 2) : 0);
  const int ends[] = {low * shape.stages + stage, high * shape.stages + stage};
  fault.link_id = absl::StrCat("g", ends[0], "-", ends[1]);
  fault.sender_stage = ends[pick(6, 2)];
  fault.frame = static_cast<int64_t>(pick(7, 16));
  const bool silent =
      fault.kind == Fault::kDrop || fault.kind == Fault::kStall || fault.kind == Fault::kReorder;
  shape.step_ms = silent ? 1000 : 30000;
  const std::string what =
      absl::StrCat(FaultName(fault.kind), " of frame ", fault.frame, " of rank ",
                   fault.sender_stage, " on ", fault.link_id, ", ", shape.stages, " stages");
  MemoryLinkHub hub;
  FaultyLinkOpener faulty(&hub, fault);
  Watched watched(shape, &faulty);
  for (const absl::Status& status : watched.Run()) {
    EXPECT_THAT(status.code(),
                AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kDeadlineExceeded,
                      absl::StatusCode::kUnavailable))
        << what << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(" failed at step ")) << what;
  }
  ASSERT_TRUE(faulty.struck()) << what;
  // A frame that came twice shows at the next one; a vote or a decision is no part of a reduction.
  if (fault.kind == Fault::kRepeat || !OfGroup(faulty.struck_kind())) return;
  watched.ExpectNothingOf(faulty.struck_step(), what);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReductionFaultTest, ::testing::Range(0, 24));

// Each rank, while it offers and while it takes up a sum.
TEST(ReductionKillTest, OneThatDiesTearsNothing) {
  for (const int stages : {1, 2}) {
    for (int victim = 0; victim < 3 * stages; ++victim) {
      for (const char* operation : {"read_gradient", "write_gradient"}) {
        for (const int call : {0, 1}) {  // of the step: one bucket, then the next
          const std::string what =
              absl::StrCat("rank ", victim, " of 3 x ", stages, " at ", operation, " ", call);
          constexpr int64_t kStep = 3;
          int calls = 0;  // on the victim's thread alone
          Watched watched(
              Shape(stages), nullptr,
              [&](int rank, int64_t step, const std::string& op) -> absl::StatusOr<StageFault> {
                if (rank == victim && step == kStep && op == operation && calls++ == call)
                  return absl::InternalError("the fan stopped");
                return StageFault{};
              });
          for (const absl::Status& status : watched.Run()) {
            EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << what << ": " << status;
            EXPECT_THAT(status.message(), HasSubstr("the fan stopped")) << what;
            EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("node-", victim, ","))) << what;
          }
          watched.ExpectNothingOf(kStep, what);
        }
      }
    }
  }
}

// Sends, of rank 0 to rank 1 and step kStep, the contribution of an earlier world.
class Replay : public LinkOpener {
 public:
  static constexpr int64_t kStep = 4;
  absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link, int my_stage,
                                             absl::Duration timeout) override;

 private:
  friend class ReplayLink;
  MemoryLinkHub hubs_[2];
  std::optional<Frame> old_;  // on the outlet's thread alone; the worlds run one after the other
};

class ReplayLink : public PassingLink {
 public:
  ReplayLink(std::unique_ptr<Link> link, Replay* of) : PassingLink(std::move(link)), of_(of) {}
  absl::Status Send(Frame frame, absl::Duration timeout) override {
    const bool it =
        frame.header.kind() == FrameHeader::CONTRIBUTION && frame.header.step() == Replay::kStep;
    if (!it) return PassingLink::Send(std::move(frame), timeout);
    if (frame.header.generation() == 1) {
      if (!of_->old_.has_value()) of_->old_ = frame;
      return PassingLink::Send(std::move(frame), timeout);
    }
    return PassingLink::Send(*of_->old_, timeout);
  }

 private:
  Replay* const of_;
};

absl::StatusOr<std::unique_ptr<Link>> Replay::Open(const Plan& plan, const LinkPlan& link,
                                                   int my_stage, absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<Link>> made =
      hubs_[plan.generation() - 1].Open(plan, link, my_stage, timeout);
  if (!made.ok() || link.id() != "g0-1" || my_stage != 0) return made;
  return std::make_unique<ReplayLink>(*std::move(made), this);
}

// The same step, group, shape and codec, with a checksum that fits: of the generation before.
TEST(ReductionReplayTest, AContributionOfAnotherGenerationIsRefused) {
  WorldShape shape = Shape(1);
  shape.gradients = "none";
  shape.checkpoint_every = Replay::kStep;
  Replay replay;
  MemoryStore store;
  World::Options options;
  options.links = &replay;
  options.store = &store;
  World first(MakePlan(shape), options);
  for (const absl::Status& status : first.Run()) ASSERT_TRUE(status.ok()) << status;
  int applied = 0;
  options.make_stage = FakeStages(
      [&](int rank, int64_t, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (rank == 0 && operation == "apply") ++applied;
        return StageFault{};
      });
  World second(MakePlan(shape, 2, Replay::kStep), options);
  for (const absl::Status& status : second.Run()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("generation"));
  }
  EXPECT_EQ(applied, 0);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(second.session(r).step(), Replay::kStep);
}

}  // namespace
}  // namespace isthmus::worker
