#include "deploy/testnet/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
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
  c.drop_over_bytes = 1280;
  c.down = false;
  c.one_way = true;
  EXPECT_EQ(FormatLinkChange(c),
            "set a * rate=5Mbit delay=7ms jitter=20us loss=25% drop-over=1280 up one-way");
  absl::StatusOr<LinkChange> back = ParseLinkChange(FormatLinkChange(c));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FormatLinkChange(*back), FormatLinkChange(c));
}

TEST(LinkChange, RefusesWhatItDoesNotKnow) {
  for (const char* bad : {"", "set", "set a b", "get a b down", "set a b rate=5", "set a b delay=x",
                          "set a b loss=2", "set a b drop-over=big", "set a b sideways"}) {
    EXPECT_FALSE(ParseLinkChange(bad).ok()) << bad;
  }
}

TEST(LinkChange, WhatAllLinksOfANodeShareHasARateAlone) {
  absl::StatusOr<LinkChange> change = ParseLinkChange("set a @up rate=5Mbit");
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(SideOf(change->to), Side::kUp);
  EXPECT_EQ(FormatLinkChange(*change), "set a @up rate=5Mbit");
  EXPECT_THAT(*NodesOf("*", {"a", "b"}), ElementsAre(0, 1));
  EXPECT_THAT(std::string(NodesOf("x", {"a", "b"}).status().message()), HasSubstr("a, b"));
  for (const char* bad : {"set a @up down", "set a @down rate=5Mbit delay=1ms", "set a @up loss=1%",
                          "set a @up rate=5Mbit one-way"}) {
    EXPECT_THAT(std::string(ParseLinkChange(bad).status().message()), HasSubstr("a rate alone"))
        << bad;
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
    bool answered = false;
    while (!answered) {  // one turn for the connection, one for the request
      pollfd ready{server->fd(), POLLIN, 0};
      ASSERT_EQ(poll(&ready, 1, 10'000), 1);
      server->Serve([&](const std::string& request) {
        EXPECT_EQ(request, "a question");
        answered = true;
        return reply;
      });
    }
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

// A client that the machine has no time for must not cost the network any.
TEST(ControlSocket, SilentClientsHoldUpNobodyAndAreBounded) {
  const std::string dir = ::testing::TempDir() + "wan-silent-" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  absl::StatusOr<ControlServer> server = ControlServer::Listen(dir);
  ASSERT_TRUE(server.ok()) << server.status();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir + "/control.sock";
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, path.c_str());
  std::vector<UniqueFd> clients;
  for (size_t i = 0; i < kMaxControlClients + 1; ++i) {
    clients.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(clients.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
    server->Serve([](const std::string&) { return "ok"; });
  }
  char byte;
  EXPECT_EQ(recv(clients[0].get(), &byte, 1, MSG_DONTWAIT), 0);   // the oldest gave way
  EXPECT_EQ(recv(clients[1].get(), &byte, 1, MSG_DONTWAIT), -1);  // the others wait on
  ASSERT_EQ(send(clients[1].get(), "q", 1, 0), 1);
  server->Serve([](const std::string&) { return "ok late"; });
  std::string reply(10, ' ');
  EXPECT_EQ(recv(clients[1].get(), reply.data(), reply.size(), MSG_DONTWAIT), 7);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace isthmus::testnet
