// What the coordinator takes at most: one more is refused in words that name the limit, and taken
// once another one has ended.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/watches.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

class LimitsTest : public ServiceTest {
 protected:
  static bool Never() { return false; }
};

TEST_F(LimitsTest, StreamsOfDaemons) {
  std::vector<std::unique_ptr<DaemonStream>> streams;
  for (int i = 0; i < kMaxDaemonStreams; ++i) {
    streams.push_back(std::make_unique<DaemonStream>([] {}));
    ASSERT_TRUE(coordinator_->daemons()->Open(streams.back().get()).ok()) << i;
  }
  DaemonStream next([] {});
  const absl::Status refused = coordinator_->daemons()->Open(&next);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr(absl::StrCat("serves ", kMaxDaemonStreams, " streams of daemons, its limit")));
  coordinator_->daemons()->Close(streams.back().get());
  streams.pop_back();
  EXPECT_TRUE(coordinator_->daemons()->Open(&next).ok());
  coordinator_->daemons()->Close(&next);
  for (const auto& stream : streams) coordinator_->daemons()->Close(stream.get());
}

TEST_F(LimitsTest, Watchers) {
  auto a = Daemon("a"), b = Daemon("b");
  StartTwo(a.get(), b.get(), TwoStages());
  WatchRequest request;
  request.set_job("bible");
  request.set_follow(true);
  int begun = 0;
  absl::Status refused;
  // Each watches while those before it do.
  const std::function<bool(const WatchReply&)> send = [&](const WatchReply&) {
    ++begun;
    const absl::Status status = coordinator_->watches()->Watch(request, send, Never);
    if (absl::IsResourceExhausted(status)) refused = status;
    return false;
  };
  coordinator_->watches()->Watch(request, send, Never).IgnoreError();
  EXPECT_EQ(begun, kMaxWatches);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat(kMaxWatches, " watchers already, the coordinator's limit")));
  request.set_follow(false);
  EXPECT_TRUE(coordinator_->watches()
                  ->Watch(
                      request, [](const WatchReply&) { return true; }, Never)
                  .ok());
}

TEST_F(LimitsTest, PartsOfCheckpoints) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const PutCheckpointHeader header = Header(plan, 2, 0, "state.json", "{}");
  std::vector<std::unique_ptr<CheckpointStore::Part>> parts;
  for (int i = 0; i < kMaxPuts; ++i) {
    auto part = coordinator_->checkpoints()->BeginPart(header);
    ASSERT_TRUE(part.ok()) << i << ": " << part.status();
    parts.push_back(*std::move(part));
  }
  const absl::Status refused = coordinator_->checkpoints()->BeginPart(header).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << "a daemon tries again";
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("takes ", kMaxPuts, " checkpoint parts at once")));
  const auto end = [&](CheckpointStore::Part* part) {
    EXPECT_FALSE(
        coordinator_->checkpoints()->FinishPart(header, part, absl::CancelledError("gone")).ok());
  };
  end(parts.back().get());
  parts.pop_back();
  auto next = coordinator_->checkpoints()->BeginPart(header);
  ASSERT_TRUE(next.ok()) << next.status();
  end(next->get());
  for (const auto& part : parts) end(part.get());
}

// Those beyond kMaxFetches wait, and are told behind how many; the line itself has an end.
TEST_F(LimitsTest, FetchesOfDaemons) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  ASSERT_TRUE(PutAll(plan, 2));
  FetchCheckpointRequest request = Export(plan.job_id());
  request.add_tensors("w0");  // a stage names what it wants
  int before = 0;
  bool gone = false;
  const auto fetch = [&] {
    before = 0;
    return coordinator_->fetches()->Open(
        request, [&] { return gone; }, [&](int waits) { before = waits; }, [] {});
  };
  std::vector<std::unique_ptr<Fetches::Fetch>> fetches;
  for (int i = 0; i < kMaxFetches; ++i) {
    auto opened = fetch();
    ASSERT_TRUE(opened.ok()) << i << ": " << opened.status();
    EXPECT_EQ(before, 0) << i;
    fetches.push_back(*std::move(opened));
  }
  gone = true;  // it does not wait for long
  EXPECT_EQ(fetch().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(before, 1);
  gone = false;
  fetches.pop_back();
  EXPECT_TRUE(fetch().ok());
  EXPECT_EQ(before, 0);
}

}  // namespace
}  // namespace isthmus::coordinator
