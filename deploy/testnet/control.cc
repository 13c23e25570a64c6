#include "deploy/testnet/control.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/bit_rate.h"
#include "base/status.h"

namespace isthmus::testnet {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);

// A socket's path has at most 107 bytes; through /proc/self/fd any directory fits.
struct SocketPath {
  UniqueFd dir;
  sockaddr_un address{};
};

absl::StatusOr<SocketPath> PathIn(const std::string& run_dir) {
  SocketPath path;
  path.dir = UniqueFd(open(run_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!path.dir.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("open ", run_dir));
  path.address.sun_family = AF_UNIX;
  const std::string text = absl::StrCat("/proc/self/fd/", path.dir.get(), "/control.sock");
  std::memcpy(path.address.sun_path, text.c_str(), text.size() + 1);
  return path;
}

void SetTimeouts(int fd, absl::Duration timeout) {
  const timeval wait = absl::ToTimeval(timeout);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

bool AddTo(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

absl::Status ApplyWord(absl::string_view word, LinkChange* change) {
  if (word == "down" || word == "up") {
    change->down = word == "down";
  } else if (word == "one-way") {
    change->one_way = true;
  } else if (absl::ConsumePrefix(&word, "rate=")) {
    ASSIGN_OR_RETURN(int64_t rate, ParseBitRate(word));
    change->rate_bits_per_s = rate;
  } else if (absl::ConsumePrefix(&word, "loss=")) {
    ASSIGN_OR_RETURN(double loss, ParseLoss(word));
    change->loss = loss;
  } else if (absl::ConsumePrefix(&word, "drop-over=")) {
    int64_t bytes = 0;
    if (!absl::SimpleAtoi(word, &bytes) || bytes < 0 || bytes > kMaxMtu)
      return absl::InvalidArgumentError(
          absl::StrCat("drop-over '", word, "' is not a packet's size: 0 (none) to ", kMaxMtu));
    change->drop_over_bytes = bytes;
  } else if (absl::StartsWith(word, "delay=") || absl::StartsWith(word, "jitter=")) {
    const bool is_delay = absl::ConsumePrefix(&word, "delay=");
    absl::ConsumePrefix(&word, "jitter=");
    ASSIGN_OR_RETURN(absl::Duration value, ParseDelay(word));
    (is_delay ? change->delay : change->jitter) = value;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown word '", word, "' in a set request"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string FormatLinkChange(const LinkChange& change) {
  std::string out = absl::StrCat("set ", change.from, " ", change.to);
  if (change.rate_bits_per_s)
    absl::StrAppend(&out, " rate=", FormatBitRate(*change.rate_bits_per_s));
  if (change.delay) absl::StrAppend(&out, " delay=", absl::FormatDuration(*change.delay));
  if (change.jitter) absl::StrAppend(&out, " jitter=", absl::FormatDuration(*change.jitter));
  if (change.loss) absl::StrAppend(&out, " loss=", FormatLoss(*change.loss));
  if (change.drop_over_bytes) absl::StrAppend(&out, " drop-over=", *change.drop_over_bytes);
  if (change.down) absl::StrAppend(&out, *change.down ? " down" : " up");
  if (change.one_way) absl::StrAppend(&out, " one-way");
  return out;
}

absl::StatusOr<LinkChange> ParseLinkChange(absl::string_view request) {
  const std::vector<absl::string_view> words = absl::StrSplit(request, ' ', absl::SkipWhitespace());
  if (words.size() < 4 || words[0] != "set") {
    return absl::InvalidArgumentError("a request is: set FROM TO and at least one change");
  }
  LinkChange change;
  change.from = std::string(words[1]);
  change.to = std::string(words[2]);
  for (size_t i = 3; i < words.size(); ++i) {
    RETURN_IF_ERROR(ApplyWord(words[i], &change));
  }
  if (SideOf(change.to) && (!change.rate_bits_per_s || words.size() > 4)) {
    return absl::InvalidArgumentError(absl::StrCat(change.from, " ", change.to,
                                                   " is what all links of a node share: it has a "
                                                   "rate alone (--rate)"));
  }
  return change;
}

absl::StatusOr<std::vector<int>> NodesOf(const std::string& pattern,
                                         const std::vector<std::string>& nodes) {
  std::vector<int> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (pattern == "*" || pattern == nodes[i]) found.push_back(static_cast<int>(i));
  }
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no node '", pattern, "'; there are: ", absl::StrJoin(nodes, ", ")));
  }
  return found;
}

absl::StatusOr<std::vector<int>> PairsOf(const LinkChange& change,
                                         const std::vector<std::string>& nodes) {
  ASSIGN_OR_RETURN(std::vector<int> from, NodesOf(change.from, nodes));
  ASSIGN_OR_RETURN(std::vector<int> to, NodesOf(change.to, nodes));
  const int n = static_cast<int>(nodes.size());
  std::set<int> pairs;
  for (int a : from) {
    for (int b : to) {
      if (a == b) continue;
      pairs.insert(a * n + b);
      if (!change.one_way) pairs.insert(b * n + a);
    }
  }
  if (pairs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(change.from, " and ", change.to, " are one node: it has no link to itself"));
  }
  return std::vector<int>(pairs.begin(), pairs.end());
}

LinkSpec Changed(LinkSpec spec, const LinkChange& change) {
  spec.rate_bits_per_s = change.rate_bits_per_s.value_or(spec.rate_bits_per_s);
  spec.delay = change.delay.value_or(spec.delay);
  spec.jitter = change.jitter.value_or(spec.jitter);
  spec.loss = change.loss.value_or(spec.loss);
  spec.drop_over_bytes = change.drop_over_bytes.value_or(spec.drop_over_bytes);
  return spec;
}

absl::StatusOr<ControlServer> ControlServer::Listen(const std::string& run_dir) {
  ControlServer server;
  server.listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!server.listener_.ok()) return absl::ErrnoToStatus(errno, "socket(AF_UNIX)");
  ASSIGN_OR_RETURN(SocketPath path, PathIn(run_dir));
  const auto* address = reinterpret_cast<const sockaddr*>(&path.address);
  const mode_t old_mask = umask(0177);
  const int bound = bind(server.listener_.get(), address, sizeof(path.address));
  umask(old_mask);
  if (bound != 0 || listen(server.listener_.get(), 16) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("bind ", run_dir, "/control.sock"));
  }
  server.epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!server.epoll_.ok() || !AddTo(server.epoll_.get(), server.listener_.get())) {
    return absl::ErrnoToStatus(errno, "epoll of the control socket");
  }
  return server;
}

void ControlServer::Accept() {
  UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client.ok() || !AddTo(epoll_.get(), client.get())) return;
  if (clients_.size() == kMaxControlClients) clients_.pop_front();
  clients_.push_back(std::move(client));
}

void ControlServer::Serve(const std::function<std::string(const std::string&)>& answer) {
  epoll_event events[16];
  const int count = epoll_wait(epoll_.get(), events, 16, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == listener_.get()) {
      Accept();
      continue;
    }
    const auto client = std::find_if(clients_.begin(), clients_.end(), [&](const UniqueFd& c) {
      return c.get() == events[i].data.fd;
    });
    if (client == clients_.end()) continue;  // it gave way in this very turn
    std::string request(kMaxControlBytes, '\0');
    const ssize_t size = recv(client->get(), request.data(), request.size(), 0);
    if (size > 0) {
      request.resize(static_cast<size_t>(size));
      const std::string reply = answer(request);
      // A client that went away needs no answer.
      (void)!send(client->get(), reply.data(), std::min(reply.size(), kMaxControlBytes),
                  MSG_NOSIGNAL);
    }
    clients_.erase(client);
  }
}

absl::StatusOr<std::string> SendControl(const std::string& run_dir, const std::string& request) {
  if (request.size() > kMaxControlBytes)
    return absl::InvalidArgumentError("the request is too long");
  ASSIGN_OR_RETURN(SocketPath path, PathIn(run_dir));
  UniqueFd client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!client.ok()) return absl::ErrnoToStatus(errno, "socket(AF_UNIX)");
  SetTimeouts(client.get(), kAnswerTimeout);
  if (connect(client.get(), reinterpret_cast<const sockaddr*>(&path.address),
              sizeof(path.address)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no emulator answers at ", run_dir, "/control.sock: ", std::strerror(errno)));
  }
  std::string reply(kMaxControlBytes, '\0');
  ssize_t size = send(client.get(), request.data(), request.size(), MSG_NOSIGNAL);
  if (size >= 0) size = recv(client.get(), reply.data(), reply.size(), 0);
  if (size <= 0) {
    return absl::UnavailableError(absl::StrCat("the emulator of ", run_dir, " did not answer"));
  }
  absl::string_view text(reply.data(), static_cast<size_t>(size));
  if (absl::ConsumePrefix(&text, "ok ")) return std::string(text);
  absl::ConsumePrefix(&text, "error: ");
  return absl::InvalidArgumentError(text);
}

}  // namespace isthmus::testnet
