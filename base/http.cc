#include "base/http.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "httplib.h"

namespace isthmus {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kThreads = 16;
// A connection has this long from its accept to send its whole request. What waited for a thread
// has used its time up by then and is read without a wait, so that clients that say nothing,
// however many they are, hold the others up for this long and no longer.
constexpr std::chrono::seconds kRequestTime(2);
constexpr std::chrono::seconds kReplyTime(10);
// The request line and its headers; a scraper sends less than 1 KiB.
constexpr size_t kMaxRequestBytes = 16 << 10;
// Connections that wait for a thread; past them, the one that has waited longest is closed.
constexpr size_t kMaxWaiting = 256;

// What the thread that works on a connection knows of it.
struct Turn {
  SteadyClock::time_point accepted;
  bool refused = false;
};
thread_local Turn this_turn;

// Waits until the socket can do what `events` asks for; at the deadline it looks once more.
bool Await(int socket, int16_t events, SteadyClock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    pollfd wanted{socket, events, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// A connection of which no more than kMaxRequestBytes are read. The library bounds a body and one
// header line, but not how many of them there are.
class BoundedStream : public httplib::Stream {
 public:
  BoundedStream(int socket, SteadyClock::time_point accepted)
      : socket_(socket),
        read_deadline_(accepted + kRequestTime),
        write_deadline_(SteadyClock::now() + kReplyTime) {}

  bool is_readable() const override {
    return taken_ < held_ || Await(socket_, POLLIN, read_deadline_);
  }
  bool is_writable() const override { return Await(socket_, POLLOUT, write_deadline_); }

  ssize_t read(char* to, size_t size) override {
    if (taken_ == held_) {
      const ssize_t got = Fill();
      if (got <= 0) return got;
    }
    const size_t count = std::min(size, held_ - taken_);
    std::copy_n(buffer_.data() + taken_, count, to);
    taken_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, size_t size) override {
    size_t sent = 0;
    while (sent < size) {
      if (!is_writable()) return -1;
      const ssize_t now = send(socket_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now < 0 && errno != EAGAIN && errno != EINTR) return -1;
      sent += static_cast<size_t>(std::max<ssize_t>(now, 0));
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return socket_; }

 private:
  ssize_t Fill() {
    if (left_ == 0 || !Await(socket_, POLLIN, read_deadline_)) return -1;
    const ssize_t got =
        recv(socket_, buffer_.data(), std::min(buffer_.size(), left_), MSG_DONTWAIT);
    taken_ = 0;
    held_ = got > 0 ? static_cast<size_t>(got) : 0;
    left_ -= held_;
    return got;
  }

  const int socket_;
  const SteadyClock::time_point read_deadline_;
  const SteadyClock::time_point write_deadline_;
  size_t left_ = kMaxRequestBytes;
  size_t taken_ = 0;
  size_t held_ = 0;
  std::array<char, 4096> buffer_;
};

// The library's server, each connection of which is one request through a BoundedStream.
class BoundedServer : public httplib::Server {
 public:
  // The library's backlog of 5 overflows in any burst, and who is dropped asks again after seconds.
  void WidenBacklog() { ::listen(svr_sock_, SOMAXCONN); }

 private:
  bool process_and_close_socket(socket_t socket) override {
    bool done = false;
    if (!this_turn.refused) {
      BoundedStream stream(socket, this_turn.accepted);
      bool closed = false;
      done = process_request(stream, /*close_connection=*/true, closed, nullptr);
    }
    shutdown(socket, SHUT_RDWR);
    close(socket);
    return done;
  }
};

// The library's pool, with an end to those that wait and a note of when each was accepted.
class BoundedQueue : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> job) override {
    Waiting oldest;
    {
      MutexLock lock(&mutex_);
      waiting_.push_back({SteadyClock::now(), std::move(job)});
      if (waiting_.size() > kMaxWaiting) oldest = PopLocked();
    }
    if (oldest.job) {
      Run(oldest, /*refused=*/true);  // the pool has a turn too many then, which finds nothing
    }
    pool_.enqueue([this] { RunOldest(); });
  }

  void shutdown() override { pool_.shutdown(); }

 private:
  struct Waiting {
    SteadyClock::time_point accepted;
    std::function<void()> job;
  };

  static void Run(const Waiting& what, bool refused) {
    this_turn = {what.accepted, refused};
    what.job();
  }

  Waiting PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Waiting oldest = std::move(waiting_.front());
    waiting_.pop_front();
    return oldest;
  }

  void RunOldest() {
    Waiting oldest;
    {
      MutexLock lock(&mutex_);
      if (waiting_.empty()) return;
      oldest = PopLocked();
    }
    Run(oldest, /*refused=*/false);
  }

  Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  httplib::ThreadPool pool_{kThreads};
};

// The library's default sets SO_REUSEPORT, with which two programs would share a port unnoticed.
void SocketOptions(int socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

class HttplibServer : public HttpServer {
 public:
  explicit HttplibServer(std::map<std::string, std::function<HttpReply()>> paths)
      : paths_(std::move(paths)) {
    server_.new_task_queue = [] { return new BoundedQueue; };
    server_.set_socket_options(SocketOptions);
    server_.set_keep_alive_max_count(1);
    server_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          Answer(request, &response);
          return httplib::Server::HandlerResponse::Handled;
        });
  }

  ~HttplibServer() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  bool Bind(const std::string& host, int port) {
    port_ =
        port == 0 ? server_.bind_to_any_port(host) : (server_.bind_to_port(host, port) ? port : -1);
    if (port_ > 0) server_.WidenBacklog();
    return port_ > 0;
  }

  void Serve() {
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before the loop runs would be lost.
    for (int i = 0; i < 5000 && !server_.is_running(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  int port() const override { return port_; }

 private:
  void Answer(const httplib::Request& request, httplib::Response* response) const {
    if (request.method != "GET" && request.method != "HEAD") {
      response->status = 405;
      return;
    }
    const auto found = paths_.find(request.path);
    if (found == paths_.end()) {
      response->status = 404;
      std::string known = "not found; there are:";
      for (const auto& [path, handler] : paths_) absl::StrAppend(&known, " ", path);
      response->set_content(known + "\n", "text/plain");
      return;
    }
    const HttpReply reply = found->second();
    response->status = reply.code;
    response->set_content(reply.body, reply.content_type);
  }

  const std::map<std::string, std::function<HttpReply()>> paths_;
  BoundedServer server_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& address, std::map<std::string, std::function<HttpReply()>> paths) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("http: '", address, "' is not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  auto server = std::make_unique<HttplibServer>(std::move(paths));
  if (!server->Bind(host, port)) {
    return absl::UnavailableError(absl::StrCat(
        "http: can't listen on ", address,
        ": the port is taken or the address is not of this host; give another with --http"));
  }
  server->Serve();
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace isthmus
