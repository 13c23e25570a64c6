#include "proto/plan/epilogue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan/schedule.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> Sent(const ActionList& list, int link) {
  std::vector<int> micros;
  for (const Action& a : list) {
    if (a.op() == Action::SEND && a.link() == link && a.what() == FrameHeader::GRADIENT)
      micros.push_back(a.micro());
  }
  return micros;
}

// Algorithms, T2.4: on the boundary s + 1 -> s the last P - 1 - s gradients of a step, which the
// sender sends in its last steady step and its own cool-down.
TEST(Epilogue, ThePublishedSchedulesHasPMinusOneMinusS) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int micros = stages; micros <= 2 * stages + 3; ++micros) {
      const auto schedule = BuildSchedule("1f1b", stages, micros).value();
      for (int s = 0; s + 1 < stages; ++s) {
        const std::vector<int> epilogue = EpilogueMicros(schedule[s], s);
        const std::vector<int> sent = Sent(schedule[s + 1], s);
        ASSERT_EQ(static_cast<int>(sent.size()), micros);
        EXPECT_EQ(epilogue, std::vector<int>(sent.end() - (stages - 1 - s), sent.end()))
            << stages << " stages, " << micros << " micro-batches, boundary " << s;
        // The sender's rule: its last steady step, and all of its cool-down.
        const int cool_down = stages - 1 - (s + 1);
        EXPECT_EQ(static_cast<int>(epilogue.size()), 1 + cool_down);
      }
    }
  }
}

TEST(Epilogue, FollowsTheWarmUpsThatAPlanHas) {
  const auto schedule = BuildSchedule("1f1b", 3, 8, {5, 2, 0}).value();
  EXPECT_THAT(EpilogueMicros(schedule[0], 0), ElementsAre(3, 4, 5, 6, 7));
  EXPECT_THAT(EpilogueMicros(schedule[1], 1), ElementsAre(6, 7));
  // As many warm-ups as micro-batches: the first gradient is waited for, as in gpipe.
  const auto all = BuildSchedule("1f1b", 2, 3, {3, 0}).value();
  EXPECT_THAT(EpilogueMicros(all[0], 0), ElementsAre(1, 2));
}

TEST(Epilogue, OfGpipeAllButTheFirst) {
  const auto schedule = BuildSchedule("gpipe", 2, 4).value();
  EXPECT_THAT(EpilogueMicros(schedule[0], 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(EpilogueMicros(BuildSchedule("gpipe", 2, 1).value()[0], 0), IsEmpty());
}

TEST(Epilogue, OfAPlanWhereTheLinkSaysSo) {
  Plan plan;
  const auto schedule = BuildSchedule("1f1b", 2, 3).value();
  for (const ActionList& list : schedule)
    *plan.add_ranks()->mutable_train() = {list.begin(), list.end()};
  LinkPlan* link = plan.add_links();
  link->set_upper(1);
  EXPECT_THAT(EpilogueMicros(plan, *link), IsEmpty());
  link->set_epilogue(true);
  EXPECT_THAT(EpilogueMicros(plan, *link), ElementsAre(2));
}

}  // namespace
}  // namespace isthmus
