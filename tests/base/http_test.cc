#include "base/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

std::string Ask(int port, const std::string& request, int patience_seconds = 30) {
  const int fd = Connect(port);
  const timeval patience{patience_seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  // A server that has read enough closes, and the rest is not taken.
  EXPECT_GT(send(fd, request.data(), request.size(), MSG_NOSIGNAL), 0);
  std::string reply;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(fd, buffer, sizeof(buffer))) > 0)
    reply.append(buffer, static_cast<size_t>(got));
  close(fd);
  return reply;
}

std::unique_ptr<HttpServer> MakeServer() {
  auto server = HttpServer::Start("127.0.0.1:0", {{"/metrics",
                                                   [] {
                                                     return HttpReply{200, "text/plain", "x 1\n"};
                                                   }},
                                                  {"/healthz", [] {
                                                     return HttpReply{503, "text/plain", "sick"};
                                                   }}});
  EXPECT_TRUE(server.ok()) << server.status();
  return std::move(server).value();
}

TEST(HttpServer, ServesItsPathsAndListsThemWhenAskedForAnother) {
  const auto server = MakeServer();
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find("x 1\n"), std::string::npos);
  EXPECT_NE(Ask(server->port(), "GET /healthz HTTP/1.0\r\n\r\n").find(" 503 "), std::string::npos);
  const std::string missing = Ask(server->port(), "GET /nothing HTTP/1.0\r\n\r\n");
  EXPECT_NE(missing.find(" 404 "), std::string::npos);
  EXPECT_NE(missing.find("/healthz /metrics"), std::string::npos);
  EXPECT_NE(
      Ask(server->port(), "POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n").find(" 405 "),
      std::string::npos);
}

TEST(HttpServer, SurvivesGarbage) {
  const auto server = MakeServer();
  Ask(server->port(), std::string("\0\xff\r\n\r\n", 6));
  Ask(server->port(), absl::StrCat("GET /", std::string(70000, 'a'), " HTTP/1.0\r\n\r\n"));
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find(" 200 "), std::string::npos);
}

TEST(HttpServer, RefusesAPortInUseAndABadAddress) {
  const auto server = MakeServer();
  const auto second = HttpServer::Start(absl::StrCat("127.0.0.1:", server->port()), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(HttpServer::Start("nonsense", {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HttpServer, ClientsThatSayNothingDoNotKeepOthersOut) {
  const auto server = MakeServer();
  std::vector<int> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(Connect(server->port()));
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find("x 1\n"), std::string::npos);
  for (int fd : silent) close(fd);
}

// 28 seconds while each of them held one of the 16 threads for a second of its own.
TEST(HttpServer, ClientsThatSayHalfARequestDoNotKeepOthersOut) {
  const auto server = MakeServer();
  std::vector<int> slow;
  for (int i = 0; i < 450; ++i) {
    slow.push_back(Connect(server->port()));
    EXPECT_EQ(send(slow.back(), "GET /met", 8, MSG_NOSIGNAL), 8);
  }
  const int patience_seconds = 15;
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n", patience_seconds).find("x 1\n"),
            std::string::npos);
  for (int fd : slow) close(fd);
}

// Past what may wait, the one that has waited longest is closed: the newest are answered.
TEST(HttpServer, AFloodClosesTheOldestThatWaits) {
  const auto server = MakeServer();
  std::vector<int> asking;
  for (int i = 0; i < 440; ++i) {
    asking.push_back(Connect(server->port()));
    if (i < 40) continue;  // these hold every thread
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    send(asking.back(), request.data(), request.size(), MSG_NOSIGNAL);
  }
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find("x 1\n"), std::string::npos);
  for (int fd : asking) close(fd);
}

// The library takes header lines without end and keeps them all.
TEST(HttpServer, HeadersWithoutEndAreRefused) {
  const auto server = MakeServer();
  constexpr size_t kMany = 32 << 20;
  const int fd = Connect(server->port());
  const std::string start = "GET /metrics HTTP/1.1\r\n";
  EXPECT_EQ(send(fd, start.data(), start.size(), MSG_NOSIGNAL), static_cast<ssize_t>(start.size()));
  const std::string line = absl::StrCat("X-Filler: ", std::string(1000, 'a'), "\r\n");
  size_t taken = 0;
  while (taken < kMany) {
    const ssize_t sent = send(fd, line.data(), line.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    taken += static_cast<size_t>(sent);
  }
  EXPECT_LT(taken, kMany) << "the server read all of it";
  close(fd);
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find(" 200 "), std::string::npos);
}

TEST(HttpServer, SixteenKibibytesOfHeadersAreTheMost) {
  const auto server = MakeServer();
  const auto with = [&](int lines) {
    std::string request = "GET /metrics HTTP/1.0\r\n";
    for (int i = 0; i < lines; ++i) request += "A: b\r\n";
    return Ask(server->port(), request + "\r\n");
  };
  EXPECT_NE(with(2000).find(" 200 "), std::string::npos);
  EXPECT_EQ(with(3000).find(" 200 "), std::string::npos);
}

TEST(HttpServer, ManyClientsAtOnce) {
  const auto server = MakeServer();
  std::vector<std::thread> clients;
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([&] {
      EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find("x 1\n"),
                std::string::npos);
    });
  }
  for (auto& client : clients) client.join();
}

}  // namespace
}  // namespace isthmus
