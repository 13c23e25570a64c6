#include "coordinator/core/fetch_line.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kStart = absl::UnixEpoch();

TEST(FetchLine, ServesByArrivalAndSaysHowManyAreBefore) {
  FetchLine line(absl::Minutes(2));
  std::vector<uint64_t> tickets;
  for (int i = 0; i < kMaxExports + 3; ++i)
    tickets.push_back(line.Enter(FetchLine::kExport).value());
  for (int i = 0; i < kMaxExports; ++i) EXPECT_EQ(line.Before(tickets[i], kStart), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(line.Before(tickets[kMaxExports + i], kStart), i + 1);
  const uint64_t daemon = line.Enter(FetchLine::kDaemon).value();
  EXPECT_EQ(line.Before(daemon, kStart), 0) << "exports hold up no daemon";
  line.Leave(tickets[3]);
  EXPECT_EQ(line.Before(tickets[kMaxExports + 2], kStart), 2) << "not its turn";
  EXPECT_EQ(line.Before(tickets[kMaxExports], kStart), 0);
  EXPECT_EQ(line.Before(tickets[kMaxExports + 1], kStart), 1);
  line.Leave(tickets[kMaxExports + 1]);  // gone while it waited
  EXPECT_EQ(line.Before(tickets[kMaxExports + 2], kStart), 1);
}

TEST(FetchLine, AFullLineRefusesByName) {
  FetchLine line(absl::Minutes(2));
  for (int i = 0; i < kMaxExports + kMaxFetchesWaiting; ++i)
    ASSERT_TRUE(line.Enter(FetchLine::kExport).ok());
  const absl::Status refused = line.Enter(FetchLine::kExport).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("serves 8 exports at once, and 64 more"));
  for (int i = 0; i < kMaxFetches + kMaxFetchesWaiting; ++i)
    ASSERT_TRUE(line.Enter(FetchLine::kDaemon).ok());
  EXPECT_FALSE(line.Enter(FetchLine::kDaemon).ok());
}

TEST(FetchLine, WhoMovesNothingIsNamed) {
  FetchLine line(absl::Seconds(10));
  const uint64_t slow = line.Enter(FetchLine::kExport).value();
  const uint64_t stuck = line.Enter(FetchLine::kExport).value();
  const uint64_t waits = line.Enter(FetchLine::kExport).value();
  line.Before(slow, kStart);
  line.Before(stuck, kStart);
  line.Progress(slow, kStart + absl::Seconds(9));
  EXPECT_THAT(line.Stalled(kStart + absl::Seconds(10)), IsEmpty());
  EXPECT_THAT(line.Stalled(kStart + absl::Seconds(11)), ElementsAre(stuck)) << waits;
  line.Leave(stuck);
  EXPECT_THAT(line.Stalled(kStart + absl::Seconds(11)), IsEmpty());
}

}  // namespace
}  // namespace isthmus::coordinator
