// A connection that OpenSSL shakes hands over, with an end to every wait. For the .cc files of
// base/tls alone. Thread: one owner.
#ifndef ISTHMUS_BASE_TLS_SOCKET_H_
#define ISTHMUS_BASE_TLS_SOCKET_H_

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

namespace isthmus::tls {

inline constexpr unsigned char kHttp2[] = {2, 'h', '2'};  // ALPN

struct SslFree {
  void operator()(SSL* p) const { SSL_free(p); }
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
};

class Socket {
 public:
  Socket(absl::Time until, const std::function<bool()>& stop) : until_(until), stop_(stop) {}
  ~Socket() { Close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // To the first address that answers.
  bool Connect(const std::string& address) {
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0)
      return false;
    bool connected = false;
    for (const addrinfo* each = found; each != nullptr && !connected; each = each->ai_next) {
      Close();
      fd_ = ::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (fd_ < 0) continue;
      connected = ::connect(fd_, each->ai_addr, each->ai_addrlen) == 0 ||
                  (errno == EINPROGRESS && Wait(POLLOUT) && Error() == 0);
    }
    ::freeaddrinfo(found);
    return connected;
  }

  // False: too late, or told to stop.
  bool Wait(short events) const {
    while (SteadyNow() < until_ && !(stop_ && stop_())) {
      pollfd each = {fd_, events, 0};
      if (::poll(&each, 1, kLookAgainMs) > 0) return true;
    }
    return false;
  }

  int fd() const { return fd_; }

 private:
  static constexpr int kLookAgainMs = 100;  // whether to stop

  int Error() const {
    int code = 0;
    socklen_t bytes = sizeof(code);
    return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &code, &bytes) == 0 ? code : errno;
  }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  const absl::Time until_;
  const std::function<bool()>& stop_;
  int fd_ = -1;
};

// OpenSSL writes to sockets whose other end may be closed: that must not end a program.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec at_once = {};
    if (sigismember(&before_, SIGPIPE) == 0) {
      while (sigtimedwait(&pipe_, nullptr, &at_once) > 0) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
};

enum class Step { kDone, kFailed, kLate };

// Repeats one of OpenSSL's calls until it has an outcome.
template <typename Call>
Step Until(const Socket& socket, SSL* ssl, Call call) {
  for (;;) {
    ERR_clear_error();
    const int result = call();
    if (result > 0) return Step::kDone;
    const int error = SSL_get_error(ssl, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return Step::kFailed;
    if (!socket.Wait(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) return Step::kLate;
  }
}

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_SOCKET_H_
