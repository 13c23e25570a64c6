#include "proto/schedule.h"

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

std::string Names(const StageActions& actions) {
  return absl::StrJoin(actions, ", ", [](std::string* out, const Action& a) { out->append(ActionName(a)); });
}

TEST(Schedule, GoldenOneFOneB) {
  const auto schedule = BuildSchedule("1f1b", 2, 3).value();
  EXPECT_EQ(Names(schedule[0]),
            "FWD 0, SEND_ACT 0, FWD 1, SEND_ACT 1, RECV_GRAD 0, BWD 0, FWD 2, SEND_ACT 2, RECV_GRAD 1, BWD 1, RECV_GRAD 2, BWD 2, SYNC, STEP");
  EXPECT_EQ(Names(schedule[1]),
            "RECV_ACT 0, FWD 0, BWD 0, SEND_GRAD 0, RECV_ACT 1, FWD 1, BWD 1, SEND_GRAD 1, RECV_ACT 2, FWD 2, BWD 2, SEND_GRAD 2, SYNC, STEP");
}

TEST(Schedule, GoldenGPipe) {
  const auto schedule = BuildSchedule("gpipe", 2, 2).value();
  EXPECT_EQ(Names(schedule[0]), "FWD 0, SEND_ACT 0, FWD 1, SEND_ACT 1, RECV_GRAD 0, BWD 0, RECV_GRAD 1, BWD 1, SYNC, STEP");
  EXPECT_EQ(Names(schedule[1]), "RECV_ACT 0, FWD 0, RECV_ACT 1, FWD 1, BWD 0, SEND_GRAD 0, BWD 1, SEND_GRAD 1, SYNC, STEP");
}

TEST(Schedule, GoldenPicture) {
  const auto schedule = BuildSchedule("1f1b", 3, 3).value();
  EXPECT_THAT(SchedulePicture(schedule, 4),
              testing::ElementsAre("stage 0  |F0 |F1 |F2 |.  |.  |.  |.  |B0 |B0 |.  |B1 |B1 |.  |B2 |B2 |",
                                   "stage 1  |.  |F0 |F1 |.  |.  |B0 |B0 |F2 |B1 |B1 |.  |B2 |B2 |.  |.  |",
                                   "stage 2  |.  |.  |F0 |B0 |B0 |F1 |B1 |B1 |F2 |B2 |B2 |.  |.  |.  |.  |"));
}

// Also micro-batches fewer than stages, one stage, one micro-batch.
TEST(Schedule, EveryShapePassesTheCheckAtEveryQueueLimit) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int micros : {1, 2, 3, 5, 8, 17}) {
        for (int limit : {1, 2, 4, 100}) {
          EXPECT_TRUE(CheckSchedule(BuildSchedule(name, stages, micros).value(), micros, limit).ok())
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
        const auto run = SimulateSchedule(BuildSchedule(name, stages, micros).value(), 100, ScheduleCosts::Unit(stages));
        EXPECT_DOUBLE_EQ(run->makespan_s, 3 * (micros + stages - 1)) << name << stages << "," << micros;
      }
    }
  }
}

TEST(Schedule, ASlowLinkBoundsTheStep) {
  ScheduleCosts costs = ScheduleCosts::Unit(2);
  costs.up_s[0] = 10;
  costs.latency_s[0] = 5;
  const auto run = SimulateSchedule(BuildSchedule("gpipe", 2, 8).value(), 100, costs);
  // 8 transfers one after the other, the latency once up and once down, first forward, last forward, 8 backwards above, the last one below.
  EXPECT_DOUBLE_EQ(run->makespan_s, 1 + 80 + 5 + 1 + 16 + 5 + 2);
}

TEST(Schedule, TheCheckerFindsEveryKindOfFault) {
  auto broken = [](auto spoil) {
    auto schedule = BuildSchedule("1f1b", 2, 2).value();
    spoil(schedule);
    return std::string(CheckSchedule(schedule, 2, 4).message());
  };
  EXPECT_THAT(broken([](auto& s) { s[1].erase(s[1].begin()); }), testing::HasSubstr("before its RECV_ACT"));
  EXPECT_THAT(broken([](auto& s) { s[0].erase(s[0].begin() + 1); }), testing::HasSubstr("comes next"));
  EXPECT_THAT(broken([](auto& s) { std::swap(s[0][0], s[0][2]); std::swap(s[0][1], s[0][3]); }), testing::HasSubstr("comes next"));
  EXPECT_THAT(broken([](auto& s) { s[0].pop_back(); }), testing::HasSubstr("SYNC"));
  EXPECT_THAT(broken([](auto& s) { s[1][1].set_micro(7); }), testing::HasSubstr("there are 2 micro-batches"));
  EXPECT_THAT(broken([](auto& s) { s[1][4] = s[1][0]; }), testing::HasSubstr("second time"));
  EXPECT_THAT(broken([](auto& s) { s[1].insert(s[1].begin() + 2, Action(s[1][6])); }), testing::HasSubstr("before its FWD"));
}

// Both ends send before they receive: fine with room in the queue, a deadlock without.
TEST(Schedule, DeadlockDependsOnTheQueueLimit) {
  auto action = [](Action::Op op, int micro) { Action a; a.set_op(op); a.set_micro(micro); return a; };
  std::vector<StageActions> schedule(2);
  for (int m : {0, 1}) { schedule[0].push_back(action(Action::FWD, m)); }
  for (int m : {0, 1}) { schedule[0].push_back(action(Action::SEND_ACT, m)); }
  for (int m : {0, 1}) { schedule[1].push_back(action(Action::SEND_GRAD, m)); }
  for (int m : {0, 1}) { schedule[0].push_back(action(Action::RECV_GRAD, m)); }
  for (int m : {0, 1}) { schedule[1].push_back(action(Action::RECV_ACT, m)); }
  EXPECT_TRUE(SimulateSchedule(schedule, 2, ScheduleCosts::Unit(2)).ok());
  EXPECT_THAT(std::string(SimulateSchedule(schedule, 1, ScheduleCosts::Unit(2)).status().message()), testing::HasSubstr("deadlock at queue limit 1"));
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
}

}  // namespace
}  // namespace isthmus
