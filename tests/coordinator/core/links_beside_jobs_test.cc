// Links that carry less or more while a job runs over them.
#include <algorithm>
#include <optional>

#include "coordinator/core/measured_links.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class LinksBesideJobsTest : public ::testing::Test {
 protected:
  LinksBesideJobsTest() {
    for (const char* id : {"a", "b"}) {
      isthmus::Register r;
      r.mutable_node()->set_id(id);
      r.mutable_node()->set_name(id);
      r.mutable_node()->set_address(std::string(id) + ":1");
      r.set_instance(id);
      EXPECT_EQ(members_.Register(r, ++stream_, At(0), At(0)).kind, RegisterDecision::kAccepted);
      EXPECT_TRUE(members_.OnHeartbeat(id, stream_, Heartbeat(), At(0)).ok());
      table_->OnJoin(id, true, At(0));
    }
    while (const auto task = table_->Next(members_, {}, At(0))) Answer(*task, 0, 100);
  }
  static absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  void Answer(const ProbeTask& task, double s, double mbit, const std::string& error = "") {
    ProbeResult result;
    for (const bool back : {false, true}) {
      if (back && !task.both_ways) break;
      LinkMeasurement* link = result.add_links();
      link->set_from_id(back ? task.to_id : task.from_id);
      link->set_to_id(back ? task.from_id : task.to_id);
      link->set_rate_bits_per_s(mbit * 1e6);
      link->set_error(error);
    }
    result.set_bytes(1 << 20);
    ASSERT_TRUE(table_->OnResult(task.from_id, result, At(s)).ok());
  }
  std::optional<ProbeTask> Beside(double s) {
    return table_->NextBeside(members_, {{"a", "b"}}, At(s));
  }
  double Mbit() const { return table_->RateOf({"a", "b"}) / 1e6; }

  Membership members_;
  std::optional<MeasuredLinks> table_{MeasuredLinksOptions()};
  uint64_t stream_ = 0;
};

TEST_F(LinksBesideJobsTest, WhatFramesShowCountsAndIsToldOnce) {
  table_->TakeChanged();
  table_->Carries({"a", "b"}, 9.6e6, At(10));
  EXPECT_DOUBLE_EQ(Mbit(), 9.6);
  const std::vector<LinkNews> news = table_->TakeNews();
  ASSERT_THAT(news, SizeIs(1));
  EXPECT_EQ(news[0].from_id, "a");
  EXPECT_DOUBLE_EQ(news[0].before_bits_per_s, 100e6);
  EXPECT_DOUBLE_EQ(news[0].now_bits_per_s, 9.6e6);
  EXPECT_DOUBLE_EQ(news[0].measured_bits_per_s, 100e6);
  EXPECT_THAT(table_->TakeChanged(), IsEmpty()) << "what is stored is what was measured";
  table_->Carries({"a", "b"}, 9e6, At(11));
  EXPECT_THAT(table_->TakeNews(), IsEmpty()) << "nearly the same";
  table_->Carries({"a", "b"}, 300e6, At(12));
  EXPECT_DOUBLE_EQ(Mbit(), 100) << "no more than was measured";
  EXPECT_THAT(table_->TakeNews(), SizeIs(1));
  table_->Carries({"a", "x"}, 1e6, At(13));
  EXPECT_THAT(table_->TakeNews(), IsEmpty()) << "no such link";
}

TEST_F(LinksBesideJobsTest, ASlowerLinkIsLookedAtSoonAndRisesWithWhatIsShown) {
  EXPECT_FALSE(Beside(60).has_value()) << "nothing says that it changed";
  table_->Carries({"a", "b"}, 10e6, At(60));
  EXPECT_FALSE(Beside(80).has_value());
  auto look = Beside(90);
  ASSERT_TRUE(look.has_value());
  EXPECT_LE(look->max_bytes, 4 << 20);
  EXPECT_EQ(look->budget, absl::Seconds(1));
  EXPECT_FALSE(Beside(90).has_value()) << "it is under way";
  Answer(*look, 91, 6);  // the job had the rest
  EXPECT_DOUBLE_EQ(Mbit(), 10) << "it shares the line: no reason to think less of it";
  EXPECT_FALSE(Beside(149).has_value()) << "nothing came of it: twice as long";
  look = Beside(150);
  ASSERT_TRUE(look.has_value());
  Answer(*look, 151, 40);
  EXPECT_DOUBLE_EQ(Mbit(), 40);
  look = Beside(180);
  ASSERT_TRUE(look.has_value()) << "it carries less than was measured still";
  Answer(*look, 181, 80);
  EXPECT_DOUBLE_EQ(Mbit(), 100) << "as measured: the job has its share";
  EXPECT_FALSE(Beside(300).has_value());
  EXPECT_TRUE(Beside(780).has_value()) << "any link now and then";
}

TEST_F(LinksBesideJobsTest, ALookThatFailsSaysNothing) {
  table_->Carries({"a", "b"}, 10e6, At(10));
  auto look = Beside(40);
  ASSERT_TRUE(look.has_value());
  Answer(*look, 41, 0, "no route");
  EXPECT_DOUBLE_EQ(Mbit(), 10);
  look = Beside(100);
  ASSERT_TRUE(look.has_value());
  EXPECT_FALSE(table_->Next(members_, {"a", "b"}, At(300)).has_value());  // it is late
  EXPECT_DOUBLE_EQ(Mbit(), 10);
  EXPECT_THAT(table_->Among({"a", "b"})[0].error(), IsEmpty());
}

TEST_F(LinksBesideJobsTest, OnceNoJobRunsItIsMeasuredAgainAndThatCounts) {
  table_->Carries({"a", "b"}, 10e6, At(10));
  const auto task = table_->Next(members_, {}, At(11));
  ASSERT_TRUE(task.has_value());
  EXPECT_EQ(task->from_id, "a");
  Answer(*task, 12, 50);
  EXPECT_DOUBLE_EQ(Mbit(), 50);
  EXPECT_FALSE(Beside(300).has_value()) << "that is its measure now";
}

TEST_F(LinksBesideJobsTest, LooksCountAsBytesOfTheDay) {
  MeasuredLinksOptions options;
  options.day_bytes = 6 << 20;
  table_.emplace(options);
  while (const auto task = table_->Next(members_, {}, At(0))) Answer(*task, 0, 100);
  table_->Carries({"a", "b"}, 10e6, At(10));
  EXPECT_FALSE(Beside(100).has_value());
}

TEST_F(LinksBesideJobsTest, WhereOneCannotDialTheOtherLooksBothWays) {
  table_.emplace();
  for (int i = 0; i < 4; ++i) {
    const auto task = table_->Next(members_, {}, At(i));
    if (!task.has_value()) break;
    task->from_id == "a" ? Answer(*task, i, 0, "a can't dial b") : Answer(*task, i, 100);
  }
  ASSERT_DOUBLE_EQ(Mbit(), 100);
  table_->Carries({"a", "b"}, 10e6, At(10));
  const auto look = Beside(50);
  ASSERT_TRUE(look.has_value());
  EXPECT_EQ(look->from_id, "b");
  EXPECT_TRUE(look->both_ways);
  Answer(*look, 51, 90);
  EXPECT_DOUBLE_EQ(Mbit(), 100);
}

}  // namespace
}  // namespace isthmus::coordinator
