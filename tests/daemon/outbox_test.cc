#include "daemon/outbox.h"

#include <vector>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

const absl::Time kStart = absl::UnixEpoch();

DaemonMessage Record(int64_t step) {
  DaemonMessage message;
  message.mutable_step()->set_step(step);
  return message;
}

DaemonMessage Event(int64_t step) {
  DaemonMessage message;
  message.mutable_session()->set_step(step);
  return message;
}

std::vector<int64_t> All(Outbox* outbox, absl::Time now) {
  std::vector<int64_t> steps;
  while (auto message = outbox->Next(now))
    steps.push_back(message->has_step() ? message->step().step() : -message->session().step());
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(Outbox, GivesEachMessageOnceInOrder) {
  Outbox outbox;
  outbox.Push(Record(1));
  outbox.Push(Event(2));
  EXPECT_EQ(All(&outbox, kStart), (Steps{1, -2}));
  EXPECT_FALSE(outbox.HasNext());
  outbox.Push(Record(3));
  EXPECT_EQ(All(&outbox, kStart), (Steps{3}));
}

TEST(Outbox, ANewConnectionGetsAgainWhatMayHaveBeenLost) {
  Outbox outbox;
  outbox.Push(Record(1));
  outbox.Push(Record(2));
  EXPECT_EQ(All(&outbox, kStart), (Steps{1, 2}));
  outbox.Rewind();
  outbox.Push(Record(3));
  EXPECT_EQ(All(&outbox, kStart + absl::Seconds(1)), (Steps{1, 2, 3}));
}

TEST(Outbox, ForgetsWhatWasSentLongAgoAndNothingElse) {
  Outbox outbox;
  outbox.Push(Record(1));
  EXPECT_EQ(All(&outbox, kStart), (Steps{1}));
  outbox.Push(Record(2));
  outbox.Trim(kStart + Outbox::kKeepSent - absl::Seconds(1));
  EXPECT_EQ(outbox.size(), 2u);
  outbox.Trim(kStart + Outbox::kKeepSent);
  EXPECT_EQ(outbox.size(), 1u);
  outbox.Rewind();
  outbox.Trim(kStart + absl::Hours(100));
  EXPECT_EQ(All(&outbox, kStart + absl::Hours(100)), (Steps{2})) << "never sent, never forgotten";
}

TEST(Outbox, RecordsAreBoundedAndEventsSurviveThem) {
  Outbox outbox;
  outbox.Push(Event(7));
  for (size_t i = 1; i <= Outbox::kMaxRecords + 10; ++i)
    outbox.Push(Record(static_cast<int64_t>(i)));
  EXPECT_EQ(outbox.size(), Outbox::kMaxRecords + 1);
  EXPECT_EQ(outbox.dropped(), 10);
  EXPECT_EQ(outbox.Next(kStart)->session().step(), 7);
  EXPECT_EQ(outbox.Next(kStart)->step().step(), 11);
}

TEST(Outbox, EventsAreBoundedToo) {
  Outbox outbox;
  for (size_t i = 0; i < Outbox::kMaxEvents + 3; ++i) outbox.Push(Event(static_cast<int64_t>(i)));
  EXPECT_EQ(outbox.size(), Outbox::kMaxEvents);
  EXPECT_EQ(outbox.Next(kStart)->session().step(), 3);
}

TEST(Outbox, DroppingWhatThisConnectionHasCarriedKeepsThePlace) {
  Outbox outbox;
  for (size_t i = 0; i < Outbox::kMaxRecords; ++i) outbox.Push(Record(static_cast<int64_t>(i)));
  for (int i = 0; i < 5; ++i) outbox.Next(kStart);
  outbox.Push(Record(-1));  // drops record 0, which was sent
  EXPECT_EQ(outbox.dropped(), 0);
  EXPECT_EQ(outbox.Next(kStart)->step().step(), 5);
}

}  // namespace
}  // namespace isthmus::daemon
