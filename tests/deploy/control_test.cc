#include "deploy/testnet/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace isthmus::testnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LinkChange, FormatReadsBackToTheSame) {
  LinkChange c;
  c.from = "a";
  c.to = "*";
  c.rate_bits_per_s = 5'000'000;
  c.delay = absl::Milliseconds(7);
  c.jitter = absl::Microseconds(20);
  c.loss = 0.25;
  c.down = false;
  c.one_way = true;
  EXPECT_EQ(FormatLinkChange(c), "set a * rate=5Mbit delay=7ms jitter=20us loss=25% up one-way");
  absl::StatusOr<LinkChange> back = ParseLinkChange(FormatLinkChange(c));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FormatLinkChange(*back), FormatLinkChange(c));
}

TEST(LinkChange, RefusesWhatItDoesNotKnow) {
  for (const char* bad : {"", "set", "set a b", "get a b down", "set a b rate=5", "set a b delay=x",
                          "set a b loss=2", "set a b sideways"}) {
    EXPECT_FALSE(ParseLinkChange(bad).ok()) << bad;
  }
}

LinkChange Change(const std::string& request) { return *ParseLinkChange(request); }

TEST(LinkChange, PairsAreBothDirectionsUnlessOneWay) {
  const std::vector<std::string> nodes = {"a", "b", "c"};
  EXPECT_THAT(*PairsOf(Change("set a b down"), nodes), ElementsAre(1, 3));
  EXPECT_THAT(*PairsOf(Change("set a b down one-way"), nodes), ElementsAre(1));
  EXPECT_THAT(*PairsOf(Change("set a * down"), nodes), ElementsAre(1, 2, 3, 6));
  EXPECT_EQ(PairsOf(Change("set * * down"), nodes)->size(), 6u);
  EXPECT_THAT(std::string(PairsOf(Change("set a x down"), nodes).status().message()),
              HasSubstr("a, b, c"));
  EXPECT_FALSE(PairsOf(Change("set a a down"), nodes).ok());
}

TEST(LinkChange, ChangesOnlyWhatIsSaid) {
  const LinkSpec old{1000, absl::Milliseconds(1), absl::Milliseconds(2), 0.5};
  const LinkSpec changed = Changed(old, Change("set a b delay=9ms"));
  EXPECT_EQ(changed.rate_bits_per_s, 1000);
  EXPECT_EQ(changed.delay, absl::Milliseconds(9));
  EXPECT_EQ(changed.jitter, absl::Milliseconds(2));
  EXPECT_EQ(changed.loss, 0.5);
}

TEST(ControlSocket, CarriesARequestAndItsAnswerAlsoInADeepDirectory) {
  // Longer than the 107 bytes that a socket's path may have.
  const std::string root = ::testing::TempDir() + "wan-control-" + std::to_string(getpid());
  const std::string dir = root + "/" + std::string(150, 'd');
  std::filesystem::create_directories(dir);
  EXPECT_EQ(SendControl(dir, "stats").status().code(), absl::StatusCode::kUnavailable);
  absl::StatusOr<ControlServer> server = ControlServer::Listen(dir);
  ASSERT_TRUE(server.ok()) << server.status();
  for (const std::string reply : {"ok yes", "error: no"}) {
    absl::StatusOr<std::string> answer = absl::UnknownError("");
    std::thread client([&] { answer = SendControl(dir, "a question"); });
    pollfd ready{server->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 10'000), 1);
    server->ServeOne([&](const std::string& request) {
      EXPECT_EQ(request, "a question");
      return reply;
    });
    client.join();
    if (reply == "ok yes") {
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(*answer, "yes");
    } else {
      EXPECT_EQ(answer.status().message(), "no");
    }
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace isthmus::testnet
