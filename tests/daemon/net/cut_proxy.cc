#include "tests/daemon/net/cut_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace isthmus::daemon {
namespace {

constexpr int kPollMs = 5;
constexpr int64_t kNever = int64_t{1} << 60;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void Reset(int fd) {
  const linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(fd);
}

// What came from `from` goes to `to`; how much, or -1 where one of them has ended.
int64_t Relay(int from, int to) {
  char bytes[64 << 10];
  const ssize_t got = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got <= 0) return -1;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t now = send(to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (now <= 0) return -1;
    sent += now;
  }
  return got;
}

// A socket of that port, which another one of this process may have as well.
int Bound(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  ISTHMUS_CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0);
  const sockaddr_in address = Loopback(port);
  ISTHMUS_CHECK(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

}  // namespace

CutProxy::CutProxy(int to_port) : to_port_(to_port), listening_(Bound(0)) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ISTHMUS_CHECK(listen(listening_, 16) == 0);
  ISTHMUS_CHECK(getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  kept_ = Bound(port_);
  thread_ = std::thread([this] { Loop(); });
}

CutProxy::~CutProxy() {
  Go();
  close(kept_);
}

void CutProxy::Go() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  if (listening_ >= 0) close(std::exchange(listening_, -1));
}

std::string CutProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void CutProxy::Loop() {
  std::vector<std::pair<int, int>> pairs;
  std::vector<int> swallowed;
  const auto reset = [&](size_t i) {
    Reset(pairs[i].second);
    if (server_alone_) {
      swallowed.push_back(pairs[i].first);
    } else {
      Reset(pairs[i].first);
    }
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(i));
  };
  while (!stop_) {
    ++turns_;
    if (left_ <= 0) {
      while (!pairs.empty()) reset(0);
      server_alone_ = false;
      left_ = --times_ > 0 ? every_.load() : kNever;
      ++cuts_;
    }
    std::vector<pollfd> polled;
    if (!hold_) {
      polled.push_back({listening_, POLLIN, 0});
      for (const auto& [client, server] : pairs) {
        polled.push_back({client, POLLIN, 0});
        polled.push_back({server, POLLIN, 0});
      }
    }
    poll(polled.data(), polled.size(), kPollMs);
    if (polled.empty()) continue;
    for (size_t i = pairs.size(); i-- > 0;) {
      const auto [client, server] = pairs[i];
      const int64_t up = polled[1 + 2 * i].revents != 0 ? Relay(client, server) : 0;
      const int64_t down = polled[2 + 2 * i].revents != 0 ? Relay(server, client) : 0;
      left_ -= std::max<int64_t>(up, 0) + std::max<int64_t>(down, 0);
      if (up < 0 || down < 0) reset(i);
    }
    if (polled[0].revents == 0) continue;
    const int client = accept(listening_, nullptr, nullptr);
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    for (const int fd : {client, server}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const sockaddr_in to = Loopback(to_port_);
    if (connect(server, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
      pairs.emplace_back(client, server);
      ++accepted_;
    } else {
      Reset(client);
      close(server);
    }
  }
  while (!pairs.empty()) reset(0);
  for (const int fd : swallowed) Reset(fd);
}

}  // namespace isthmus::daemon
