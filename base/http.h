// A small HTTP server for /metrics, /healthz and service discovery. The only door to cpp-httplib.
// Thread: handlers run on the server's own threads (at most 16); the destructor stops and joins
// them.
#ifndef ISTHMUS_BASE_HTTP_H_
#define ISTHMUS_BASE_HTTP_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace isthmus {

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;
  virtual int port() const = 0;

  // Serves GET on each path. `address` is host:port, port 0 picks one. Unavailable names the
  // address if it is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& address, std::map<std::string, std::function<HttpReply()>> paths);
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_HTTP_H_
