#include "proto/plan/schedule.h"

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

std::string Names(const ActionList& actions, int stages) {
  const Wiring wiring = Wiring::Chain(stages);
  return absl::StrJoin(actions, ", ", [&](std::string* out, const Action& a) {
    out->append(ActionName(a, wiring));
  });
}

absl::StatusOr<Simulation> Play(const std::vector<ActionList>& schedule, int limit,
                                const ScheduleCosts& costs) {
  return Simulate(schedule, Wiring::Chain(static_cast<int>(schedule.size())), limit, costs);
}

ScheduleCosts Unit(int stages) { return ScheduleCosts::Unit(Wiring::Chain(stages)); }

TEST(Schedule, GoldenOneFOneB) {
  const auto schedule = BuildSchedule("1f1b", 2, 3).value();
  EXPECT_EQ(Names(schedule[0], 2),
            "FWD 0, SEND activation 0 on b0, FWD 1, SEND activation 1 on b0, "
            "RECV gradient 0 on b0, BWD 0, FWD 2, SEND activation 2 on b0, "
            "RECV gradient 1 on b0, BWD 1, RECV gradient 2 on b0, BWD 2");
  EXPECT_EQ(Names(schedule[1], 2),
            "RECV activation 0 on b0, FWD 0, BWD 0, SEND gradient 0 on b0, "
            "RECV activation 1 on b0, FWD 1, BWD 1, SEND gradient 1 on b0, "
            "RECV activation 2 on b0, FWD 2, BWD 2, SEND gradient 2 on b0");
}

TEST(Schedule, GoldenGPipe) {
  const auto schedule = BuildSchedule("gpipe", 2, 2).value();
  EXPECT_EQ(Names(schedule[0], 2),
            "FWD 0, SEND activation 0 on b0, FWD 1, SEND activation 1 on b0, "
            "RECV gradient 0 on b0, BWD 0, RECV gradient 1 on b0, BWD 1");
  EXPECT_EQ(Names(schedule[1], 2),
            "RECV activation 0 on b0, FWD 0, RECV activation 1 on b0, FWD 1, "
            "BWD 0, SEND gradient 0 on b0, BWD 1, SEND gradient 1 on b0");
}

TEST(Schedule, GoldenPicture) {
  const auto schedule = BuildSchedule("1f1b", 3, 3).value();
  EXPECT_THAT(SchedulePicture(schedule, Wiring::Chain(3), 4),
              testing::ElementsAre(
                  "stage 0  |F0 |F1 |F2 |.  |.  |.  |.  |B0 |B0 |.  |B1 |B1 |.  |B2 |B2 |",
                  "stage 1  |.  |F0 |F1 |.  |.  |B0 |B0 |F2 |B1 |B1 |.  |B2 |B2 |.  |.  |",
                  "stage 2  |.  |.  |F0 |B0 |B0 |F1 |B1 |B1 |F2 |B2 |B2 |.  |.  |.  |.  |"));
}

// Also micro-batches fewer than stages, one stage, one micro-batch.
TEST(Schedule, EveryShapeComesToItsEndAtEveryQueueLimit) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int micros : {1, 2, 3, 5, 8, 17}) {
        for (int limit : {1, 2, 4, 100}) {
          const absl::Status run =
              Play(BuildSchedule(name, stages, micros).value(), limit, Unit(stages)).status();
          EXPECT_TRUE(run.ok()) << name << " stages " << stages << " micros " << micros << " limit "
                                << limit << ": " << run;
        }
      }
    }
  }
}

// 1F1B at unit costs: (micros + stages - 1) x (forward + backward), the published bubble.
TEST(Schedule, MakespanIsThePublishedOne) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micros = stages; micros <= 12; ++micros) {
      for (const char* name : {"gpipe", "1f1b"}) {
        const auto run = Play(BuildSchedule(name, stages, micros).value(), 100, Unit(stages));
        EXPECT_DOUBLE_EQ(run->makespan_s, 3 * (micros + stages - 1))
            << name << stages << "," << micros;
      }
    }
  }
}

TEST(Schedule, ASlowLinkBoundsTheStep) {
  ScheduleCosts costs = Unit(2);
  costs.up_s[0] = 10;
  costs.latency_s[0] = 5;
  const auto run = Play(BuildSchedule("gpipe", 2, 8).value(), 100, costs);
  // 8 transfers one after the other, the latency once up and once down, first forward, last
  // forward, 8 backwards above, the last one below.
  EXPECT_DOUBLE_EQ(run->makespan_s, 1 + 80 + 5 + 1 + 16 + 5 + 2);
}

// With free links and equal stages the published schedule comes out.
TEST(Schedule, FreeLinksNeedNoMoreThanThePublishedWarmUps) {
  for (int stages = 1; stages <= 8; ++stages) {
    std::vector<int> published;
    for (int s = 0; s < stages; ++s) published.push_back(std::min(16, stages - 1 - s));
    EXPECT_EQ(WarmUpForwards(Unit(stages), stages, 16, 4), published);
  }
}

// Whatever the costs, the schedule with these warm-ups takes the slowest part's time for each
// micro-batch, and one fill. Two stages that hold the same number of micro-batches would wait for
// each other: more under way would be slower.
TEST(Schedule, UnequalStagesAndShortLinksAreNeverSlowerThanPublished) {
  ScheduleCosts costs{
      {1.77, 1.77, 1.84}, {3.52, 3.52, 3.66}, {0.0042, 0.0042}, {0.0042, 0.0042}, {0.0005, 0.0005}};
  const std::vector<int> warmups = WarmUpForwards(costs, 3, 8, 4);
  const double published = Play(BuildSchedule("1f1b", 3, 8).value(), 8, costs)->makespan_s;
  EXPECT_LE(Play(BuildSchedule("1f1b", 3, 8, warmups).value(), 8, costs)->makespan_s, published);
}

TEST(Schedule, WarmUpsHideTheLinks) {
  for (double up : {0.0, 0.5, 3.0, 10.0}) {
    for (double latency : {0.0, 2.0, 20.0}) {
      for (int stages : {2, 3, 5}) {
        ScheduleCosts costs = Unit(stages);
        double fill_s = 0;
        for (int b = 0; b + 1 < stages; ++b) {
          costs.up_s[b] = up;
          costs.down_s[b] = 2 * up;
          costs.latency_s[b] = latency;
          fill_s += 3 * up + 2 * latency;
        }
        const int micros = 64;
        const std::vector<int> warmups = WarmUpForwards(costs, stages, micros, micros);
        const auto run =
            Play(BuildSchedule("1f1b", stages, micros, warmups).value(), micros, costs);
        ASSERT_TRUE(run.ok()) << run.status();
        const double bound = micros * SlowestPart(costs, stages);
        EXPECT_LE(run->makespan_s, 1.05 * (bound + fill_s + 3 * stages))
            << "up " << up << " latency " << latency << " stages " << stages;
        const auto published = Play(BuildSchedule("1f1b", stages, micros).value(), micros, costs);
        EXPECT_LE(run->makespan_s, published->makespan_s * (1 + 1e-9));
        if (latency == 20) {
          EXPECT_LT(run->makespan_s, 0.7 * published->makespan_s) << "the published one idles";
        }
      }
    }
  }
}

// The bound by the queues is what the simulation needs: no wish deadlocks.
TEST(Schedule, NoWarmUpsDeadlockAtTheirQueueLimit) {
  ScheduleCosts costs = Unit(6);
  for (double& latency : costs.latency_s) latency = 1000;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micros : {1, 2, 7, 40}) {
      for (int limit : {1, 2, 4, 9}) {
        const std::vector<int> warmups = WarmUpForwards(costs, stages, micros, limit);
        const auto schedule = BuildSchedule("1f1b", stages, micros, warmups);
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        const absl::Status run = Play(*schedule, limit, Unit(stages)).status();
        EXPECT_TRUE(run.ok()) << stages << " " << micros << " " << limit << run;
      }
    }
  }
}

// Both ends send before they receive: fine with room in the queue, a deadlock without.
TEST(Schedule, DeadlockDependsOnTheQueueLimit) {
  const auto add = [](ActionList* list, Action::Op op, FrameHeader::Kind what) {
    for (int m : {0, 1}) {
      Action& a = list->emplace_back();
      a.set_op(op);
      a.set_micro(m);
      a.set_what(what);
    }
  };
  std::vector<ActionList> schedule(2);
  add(&schedule[0], Action::FWD, FrameHeader::ACTIVATION);
  add(&schedule[0], Action::SEND, FrameHeader::ACTIVATION);
  add(&schedule[1], Action::SEND, FrameHeader::GRADIENT);
  add(&schedule[0], Action::RECV, FrameHeader::GRADIENT);
  add(&schedule[1], Action::RECV, FrameHeader::ACTIVATION);
  EXPECT_TRUE(Play(schedule, 2, Unit(2)).ok());
  EXPECT_THAT(std::string(Play(schedule, 1, Unit(2)).status().message()),
              testing::HasSubstr("deadlock: it waits forever with 1 frames a direction"));
}

TEST(Schedule, EvalIsForwardOnly) {
  const auto schedule = BuildEvalSchedule(3, 1);
  ASSERT_EQ(schedule[1].size(), 3u);
  EXPECT_EQ(schedule[1][0].what(), FrameHeader::EVAL_ACTIVATION);
  EXPECT_EQ(schedule[1][1].op(), Action::FWD);
  EXPECT_EQ(schedule[1][2].link(), 1);
  EXPECT_TRUE(Play(schedule, 1, Unit(3)).ok());
}

TEST(Schedule, BadRequestsAreRefused) {
  EXPECT_FALSE(BuildSchedule("zero-bubble", 2, 2).ok());
  EXPECT_FALSE(BuildSchedule("1f1b", 0, 2).ok());
  EXPECT_FALSE(BuildSchedule("1f1b", 2, 0).ok());
  EXPECT_FALSE(BuildSchedule("1f1b", 3, 4, {2, 1}).ok());
  EXPECT_FALSE(BuildSchedule("1f1b", 2, 4, {0, 1}).ok());
  EXPECT_FALSE(BuildSchedule("1f1b", 2, 4, {1, -1}).ok());
}

}  // namespace
}  // namespace isthmus
