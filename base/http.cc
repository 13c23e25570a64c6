#include "base/http.h"

#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "httplib.h"

namespace isthmus {
namespace {

// A client that says nothing holds a thread for kReadSeconds: 60 of them hold all of them for four.
constexpr int kThreads = 16;
constexpr int kReadSeconds = 1;
constexpr int kWriteSeconds = 5;
constexpr size_t kMaxRequestBytes = 64 << 10;

// The library's default sets SO_REUSEPORT, with which two programs would share a port unnoticed.
void SocketOptions(int socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

class HttplibServer : public HttpServer {
 public:
  explicit HttplibServer(std::map<std::string, std::function<HttpReply()>> paths)
      : paths_(std::move(paths)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_socket_options(SocketOptions);
    server_.set_keep_alive_max_count(1);
    server_.set_keep_alive_timeout(kReadSeconds);  // until the first byte
    server_.set_read_timeout(kReadSeconds);
    server_.set_write_timeout(kWriteSeconds);
    server_.set_payload_max_length(kMaxRequestBytes);
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
    HttpReply reply = found->second();
    response->status = reply.code;
    response->set_content(std::move(reply.body), reply.content_type);
  }

  const std::map<std::string, std::function<HttpReply()>> paths_;
  httplib::Server server_;
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
