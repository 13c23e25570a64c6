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

std::string Ask(int port, const std::string& request) {
  const int fd = Connect(port);
  const timeval patience{30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
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
  // Each of them may hold a thread for a second; Ask gives up after 30.
  EXPECT_NE(Ask(server->port(), "GET /metrics HTTP/1.0\r\n\r\n").find("x 1\n"), std::string::npos);
  for (int fd : silent) close(fd);
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
