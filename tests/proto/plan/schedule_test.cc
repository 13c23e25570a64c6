#include "proto/plan/schedule.h"

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

std::string Names(const StageActions& actions) {
  return absl::StrJoin(actions, ", ",
                       [](std::string* out, const Action& a) { out->append(ActionName(a)); });
}

TEST(Schedule, GoldenOneFOneB) {
  const auto schedule = BuildSchedule("1f1b", 2, 3).value();
  EXPECT_EQ(Names(schedule[0]),
            "FWD 0, SEND_ACT 0, FWD 1, SEND_ACT 1, RECV_GRAD 0, BWD 0, FWD 2, SEND_ACT 2, "
            "RECV_GRAD 1, BWD 1, RECV_GRAD 2, BWD 2, SYNC, STEP");
  EXPECT_EQ(Names(schedule[1]),
            "RECV_ACT 0, FWD 0, BWD 0, SEND_GRAD 0, RECV_ACT 1, FWD 1, BWD 1, SEND_GRAD 1, "
            "RECV_ACT 2, FWD 2, BWD 2, SEND_GRAD 2, SYNC, STEP");
}

TEST(Schedule, GoldenGPipe) {
  const auto schedule = BuildSchedule("gpipe", 2, 2).value();
  EXPECT_EQ(
      Names(schedule[0]),
      "FWD 0, SEND_ACT 0, FWD 1, SEND_ACT 1, RECV_GRAD 0, BWD 0, RECV_GRAD 1, BWD 1, SYNC, STEP");
  EXPECT_EQ(
      Names(schedule[1]),
      "RECV_ACT 0, FWD 0, RECV_ACT 1, FWD 1, BWD 0, SEND_GRAD 0, BWD 1, SEND_GRAD 1, SYNC, STEP");
}

TEST(Schedule, GoldenPicture) {
  const auto schedule = BuildSchedule("1f1b", 3, 3).value();
  EXPECT_THAT(SchedulePicture(schedule, 4),
              testing::ElementsAre(
                  "stage 0  |F0 |F1 |F2 |.  |.  |.  |.  |B0 |B0 |.  |B1 |B1 |.  |B2 |B2 |",
                  "stage 1  |.  |F0 |F1 |.  |.  |B0 |B0 |F2 |B1 |B1 |.  |B2 |B2 |.  |.  |",
                  "stage 2  |.  |.  |F0 |B0 |B0 |F1 |B1 |B1 |F2 |B2 |B2 |.  |.  |.  |.  |"));
}

// Also micro-batches fewer than stages, one stage, one micro-batch.
TEST(Schedule, EveryShapePassesTheCheckAtEveryQueueLimit) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int micros : {1, 2, 3, 5, 8, 17}) {
        for (int limit : {1, 2, 4, 100}) {
          EXPECT_TRUE(
              CheckSchedule(BuildSchedule(name, stages, micros).value(), micros, limit).ok())
              << name << " stages " << stages << " micros " << micros << " limit " << limit << ": "
              << CheckSchedule(BuildSchedule(name, stages, micros).value(), micros, limit);
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
        const auto run = SimulateSchedule(BuildSchedule(name, stages, micros).value(), 100,
                                          ScheduleCosts::Unit(stages));
        EXPECT_DOUBLE_EQ(run->makespan_s, 3 * (micros + stages - 1))
            << name << stages << "," << micros;
      }
    }
  }
}

TEST(Schedule, ASlowLinkBoundsTheStep) {
  ScheduleCosts costs = ScheduleCosts::Unit(2);
  costs.up_s[0] = 10;
  costs.latency_s[0] = 5;
  const auto run = SimulateSchedule(BuildSchedule("gpipe", 2, 8).value(), 100, costs);
  // 8 transfers one after the other, the latency once up and once down, first forward, last
  // forward, 8 backwards above, the last one below.
  EXPECT_DOUBLE_EQ(run->makespan_s, 1 + 80 + 5 + 1 + 16 + 5 + 2);
}

// With free links and equal stages the published schedule comes out.
TEST(Schedule, FreeLinksNeedNoMoreThanThePublishedWarmUps) {
  for (int stages = 1; stages <= 8; ++stages) {
    std::vector<int> published;
    for (int s = 0; s < stages; ++s) published.push_back(std::min(16, stages - 1 - s));
    EXPECT_EQ(WarmUpForwards(ScheduleCosts::Unit(stages), stages, 16, 4), published);
  }
}

// Whatever the costs, the schedule with these warm-ups takes the slowest part's time for each
// micro-batch, and one fill. Two stages that hold the same number of micro-batches would wait for
// each other: more under way would be slower.
TEST(Schedule, UnequalStagesAndShortLinksAreNeverSlowerThanPublished) {
  ScheduleCosts costs{
      {1.77, 1.77, 1.84}, {3.52, 3.52, 3.66}, {0.0042, 0.0042}, {0.0042, 0.0042}, {0.0005, 0.0005}};
  const std::vector<int> warmups = WarmUpForwards(costs, 3, 8, 4);
  const double published =
      SimulateSchedule(BuildSchedule("1f1b", 3, 8).value(), 8, costs)->makespan_s;
  EXPECT_LE(SimulateSchedule(BuildSchedule("1f1b", 3, 8, warmups).value(), 8, costs)->makespan_s,
            published);
}

TEST(Schedule, WarmUpsHideTheLinks) {
  for (double up : {0.0, 0.5, 3.0, 10.0}) {
    for (double latency : {0.0, 2.0, 20.0}) {
      for (int stages : {2, 3, 5}) {
        ScheduleCosts costs = ScheduleCosts::Unit(stages);
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
            SimulateSchedule(BuildSchedule("1f1b", stages, micros, warmups).value(), micros, costs);
        ASSERT_TRUE(run.ok()) << run.status();
        const double bound = micros * SlowestPart(costs, stages);
        EXPECT_LE(run->makespan_s, 1.05 * (bound + fill_s + 3 * stages))
            << "up " << up << " latency " << latency << " stages " << stages;
        const auto published =
            SimulateSchedule(BuildSchedule("1f1b", stages, micros).value(), micros, costs);
        EXPECT_LE(run->makespan_s, published->makespan_s * (1 + 1e-9));
        if (latency == 20) {
          EXPECT_LT(run->makespan_s, 0.7 * published->makespan_s) << "the published one idles";
        }
      }
    }
  }
}

// The bound by the queues is what the checker needs: no wish deadlocks.
TEST(Schedule, NoWarmUpsDeadlockAtTheirQueueLimit) {
  ScheduleCosts costs = ScheduleCosts::Unit(6);
  for (double& latency : costs.latency_s) latency = 1000;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micros : {1, 2, 7, 40}) {
      for (int limit : {1, 2, 4, 9}) {
        const std::vector<int> warmups = WarmUpForwards(costs, stages, micros, limit);
        const auto schedule = BuildSchedule("1f1b", stages, micros, warmups);
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        EXPECT_TRUE(CheckSchedule(*schedule, micros, limit).ok())
            << stages << " " << micros << " " << limit << CheckSchedule(*schedule, micros, limit);
      }
    }
  }
}

TEST(Schedule, TheCheckerFindsEveryKindOfFault) {
  auto broken = [](auto spoil) {
    auto schedule = BuildSchedule("1f1b", 2, 2).value();
    spoil(schedule);
    return std::string(CheckSchedule(schedule, 2, 4).message());
  };
  EXPECT_THAT(broken([](auto& s) { s[1].erase(s[1].begin()); }),
              testing::HasSubstr("before its RECV_ACT"));
  EXPECT_THAT(broken([](auto& s) { s[0].erase(s[0].begin() + 1); }),
              testing::HasSubstr("comes next"));
  EXPECT_THAT(broken([](auto& s) {
                std::swap(s[0][0], s[0][2]);
                std::swap(s[0][1], s[0][3]);
              }),
              testing::HasSubstr("comes next"));
  EXPECT_THAT(broken([](auto& s) { s[0].pop_back(); }), testing::HasSubstr("SYNC"));
  EXPECT_THAT(broken([](auto& s) { s[1][1].set_micro(7); }),
              testing::HasSubstr("there are 2 micro-batches"));
  EXPECT_THAT(broken([](auto& s) { s[1][4] = s[1][0]; }), testing::HasSubstr("second time"));
  EXPECT_THAT(broken([](auto& s) { s[1].insert(s[1].begin() + 2, Action(s[1][6])); }),
              testing::HasSubstr("before its FWD"));
}

// Both ends send before they receive: fine with room in the queue, a deadlock without.
TEST(Schedule, DeadlockDependsOnTheQueueLimit) {
  auto action = [](Action::Op op, int micro) {
    Action a;
    a.set_op(op);
    a.set_micro(micro);
    return a;
  };
  std::vector<StageActions> schedule(2);
  for (int m : {0, 1}) {
    schedule[0].push_back(action(Action::FWD, m));
  }
  for (int m : {0, 1}) {
    schedule[0].push_back(action(Action::SEND_ACT, m));
  }
  for (int m : {0, 1}) {
    schedule[1].push_back(action(Action::SEND_GRAD, m));
  }
  for (int m : {0, 1}) {
    schedule[0].push_back(action(Action::RECV_GRAD, m));
  }
  for (int m : {0, 1}) {
    schedule[1].push_back(action(Action::RECV_ACT, m));
  }
  EXPECT_TRUE(SimulateSchedule(schedule, 2, ScheduleCosts::Unit(2)).ok());
  EXPECT_THAT(std::string(SimulateSchedule(schedule, 1, ScheduleCosts::Unit(2)).status().message()),
              testing::HasSubstr("deadlock at queue limit 1"));
}

TEST(Schedule, EvalIsForwardOnly) {
  const auto schedule = BuildEvalSchedule(3, 2);
  EXPECT_EQ(Names(schedule[1]), "RECV_ACT 0, FWD 0, SEND_ACT 0, RECV_ACT 1, FWD 1, SEND_ACT 1");
  EXPECT_TRUE(SimulateSchedule(schedule, 1, ScheduleCosts::Unit(3)).ok());
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
