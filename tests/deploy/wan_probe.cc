#include "tests/deploy/wan_probe.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "deploy/testnet/control.h"
#include "deploy/testnet/ipv4.h"

namespace isthmus::testnet {
namespace {

constexpr int kPort = 7700;
constexpr int kHeaders = 28;  // IPv4 and UDP
constexpr absl::Duration kOrderlyEnd = absl::Seconds(10);
constexpr int kSocketBuffer = 32 << 20;

int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void RaiseThreadPriority() {
  sched_param priority{};
  priority.sched_priority = 5;
  sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &priority);
}

sockaddr_in AddressOf(const std::string& address) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(kPort);
  inet_pton(AF_INET, address.c_str(), &in.sin_addr);
  return in;
}

absl::Status Bind(int fd, const std::string& address) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in in = AddressOf(address);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&in), sizeof(in)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("bind ", address));
  }
  return absl::OkStatus();
}

absl::Status Connect(int fd, const std::string& address) {
  const sockaddr_in in = AddressOf(address);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&in), sizeof(in)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("connect ", address));
  }
  return absl::OkStatus();
}

void SetReceiveTimeout(int fd, absl::Duration timeout) {
  const timeval wait = absl::ToTimeval(timeout);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
}

void SetBuffers(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBuffer, sizeof(kSocketBuffer));
  setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kSocketBuffer, sizeof(kSocketBuffer));
}

// When the kernel got the message, not when this process had time for it.
int64_t ArrivalNs(const msghdr& message) {
  for (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(c))) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec t;
    std::memcpy(&t, CMSG_DATA(c), sizeof(t));
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
  return absl::GetCurrentTimeNanos();
}

void CountArrivals(int fd, UdpResult* result) {
  RaiseThreadPriority();
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on));
  int64_t first_ns = 0, last_ns = 0, bytes = 0, next = 0;
  std::vector<char> packet(kMaxMtu);
  alignas(cmsghdr) char control[128];
  while (true) {
    iovec part{packet.data(), packet.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = recvmsg(fd, &message, 0);
    if (size < 8) break;
    last_ns = ArrivalNs(message);
    if (first_ns == 0) {
      first_ns = last_ns;
    } else {
      bytes += size + kHeaders;
    }
    int64_t number;
    std::memcpy(&number, packet.data(), sizeof(number));
    if (number < next) ++result->out_of_order;
    next = number + 1;
    ++result->received;
  }
  if (last_ns > first_ns) {
    result->bits_per_s = static_cast<double>(bytes) * 8e9 / static_cast<double>(last_ns - first_ns);
  }
}

void SendNumbered(int fd, int packet_bytes, double bits_per_s, int64_t count, UdpResult* result) {
  RaiseThreadPriority();
  std::vector<char> packet(static_cast<size_t>(packet_bytes - kHeaders));
  const double ns_per_packet = packet_bytes * 8e9 / bits_per_s;
  const int64_t start = NowNs();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t due = start + static_cast<int64_t>(static_cast<double>(i) * ns_per_packet);
    if (due - NowNs() > 500'000) {  // closer ones go out together
      const timespec wake{due / 1'000'000'000, due % 1'000'000'000};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
    }
    std::memcpy(packet.data(), &i, sizeof(i));
    if (send(fd, packet.data(), packet.size(), 0) > 0) ++result->sent;
  }
}

}  // namespace

absl::Status CanEmulate() { return MakeNodeNet({NodeAddress(0), kPrefixLength, 1500}).status(); }

void Child::PidDeleter::operator()(pid_t* pid) const {
  const absl::Time deadline = absl::Now() + kOrderlyEnd;
  if (*pid > 0) kill(*pid, SIGTERM);
  while (*pid > 0) {
    if (absl::Now() > deadline) kill(*pid, SIGKILL);
    if (waitpid(*pid, nullptr, WNOHANG) != 0) break;
    poll(nullptr, 0, 1);
  }
  delete pid;
}

Child::~Child() = default;

absl::StatusOr<Child> Child::Start(const std::string& program,
                                   const std::vector<std::string>& arguments,
                                   const std::function<void()>& before_exec) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  Child child;
  child.pipe_ = UniqueFd(ends[0]);
  UniqueFd write_end(ends[1]);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid == 0) {
    dup2(write_end.get(), STDOUT_FILENO);
    dup2(write_end.get(), STDERR_FILENO);
    if (before_exec) before_exec();
    execvp(argv[0], argv.data());
    _exit(127);
  }
  child.pid_.reset(new pid_t(pid));
  return child;
}

void Child::Signal(int signal) const {
  if (*pid_ > 0) kill(*pid_, signal);
}

absl::Status Child::Fill(absl::Time deadline) {
  pollfd ready{pipe_.get(), POLLIN, 0};
  const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
  if (left_ms <= 0 || poll(&ready, 1, static_cast<int>(left_ms)) <= 0) {
    return absl::DeadlineExceededError(absl::StrCat("no more output; so far: ", output_));
  }
  char buffer[4096];
  const ssize_t size = read(pipe_.get(), buffer, sizeof(buffer));
  if (size <= 0) return absl::OutOfRangeError(absl::StrCat("ended; its output: ", output_));
  output_.append(buffer, static_cast<size_t>(size));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Child::ReadLine(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  size_t end;
  while ((end = output_.find('\n')) == std::string::npos) RETURN_IF_ERROR(Fill(deadline));
  std::string line = output_.substr(0, end);
  output_.erase(0, end + 1);
  return line;
}

absl::StatusOr<int> Child::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(*pid_, &status, WNOHANG);
    if (ended == *pid_) {
      *pid_ = 0;
      while (Fill(absl::Now() + absl::Milliseconds(10)).ok()) {  // what is left in the pipe
      }
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    const absl::Status filled = Fill(std::min(deadline, absl::Now() + absl::Milliseconds(20)));
    if (absl::IsOutOfRange(filled)) poll(nullptr, 0, 1);  // its output has ended, it has not
    if (absl::Now() > deadline) return absl::DeadlineExceededError("still running");
  }
}

const std::string& WanProgram() {
  static const std::string& path = *new std::string(ISTHMUS_WAN_PROGRAM);
  return path;
}

absl::StatusOr<Wan> StartWan(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(Child child, Child::Start(WanProgram(), arguments));
  ASSIGN_OR_RETURN(std::string line, child.ReadLine(absl::Seconds(20)));
  if (!absl::StartsWith(line, "ready ")) return absl::InternalError(line);
  std::string run_dir = line.substr(6);
  ASSIGN_OR_RETURN(WanInfo info, ReadWanInfo(run_dir));
  return Wan{std::move(child), std::move(run_dir), std::move(info)};
}

absl::StatusOr<UniqueFd> SocketOn(const WanNode& node, int type) {
  absl::StatusOr<UniqueFd> result = absl::UnknownError("not run");
  std::thread inside([&] {
    absl::Status entered = EnterNetns(node.ns_path);
    if (!entered.ok()) {
      result = entered;
      return;
    }
    UniqueFd fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
    if (fd.ok()) {
      result = std::move(fd);
    } else {
      result = absl::ErrnoToStatus(errno, "socket");
    }
  });
  inside.join();
  return result;
}

absl::StatusOr<RoundTrips> PingPong(const WanNode& a, const WanNode& b, int count,
                                    absl::Duration timeout) {
  ASSIGN_OR_RETURN(UniqueFd near, SocketOn(a, SOCK_DGRAM));
  ASSIGN_OR_RETURN(UniqueFd far, SocketOn(b, SOCK_DGRAM));
  RETURN_IF_ERROR(Bind(far.get(), b.address));
  RETURN_IF_ERROR(Connect(near.get(), b.address));
  SetReceiveTimeout(near.get(), timeout);
  SetReceiveTimeout(far.get(), absl::Milliseconds(20));
  std::atomic<bool> stop{false};
  std::thread echo([&] {
    RaiseThreadPriority();
    char packet[64];
    sockaddr_in from{};
    while (!stop) {
      socklen_t length = sizeof(from);
      auto* address = reinterpret_cast<sockaddr*>(&from);
      const ssize_t n = recvfrom(far.get(), packet, sizeof(packet), 0, address, &length);
      if (n > 0) (void)!sendto(far.get(), packet, static_cast<size_t>(n), 0, address, length);
    }
  });
  RoundTrips trips;
  std::thread ping([&] {
    RaiseThreadPriority();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t start = NowNs();
      int64_t answer = -1;
      ++trips.sent;
      if (send(near.get(), &i, sizeof(i), 0) != sizeof(i)) continue;
      // An answer to an earlier one that came late is not this one's.
      while (recv(near.get(), &answer, sizeof(answer), 0) == sizeof(answer) && answer != i) {
      }
      if (answer == i) trips.ms.push_back(static_cast<double>(NowNs() - start) / 1e6);
    }
  });
  ping.join();
  stop = true;
  echo.join();
  std::sort(trips.ms.begin(), trips.ms.end());
  return trips;
}

absl::StatusOr<UdpResult> UdpSend(const WanNode& from, const WanNode& to, int packet_bytes,
                                  double offered_bits_per_s, int64_t count, absl::Duration quiet) {
  ASSIGN_OR_RETURN(UniqueFd near, SocketOn(from, SOCK_DGRAM));
  ASSIGN_OR_RETURN(UniqueFd far, SocketOn(to, SOCK_DGRAM));
  SetBuffers(near.get());
  SetBuffers(far.get());
  RETURN_IF_ERROR(Bind(far.get(), to.address));
  RETURN_IF_ERROR(Connect(near.get(), to.address));
  SetReceiveTimeout(far.get(), quiet);
  UdpResult result;
  std::thread receiver([&] { CountArrivals(far.get(), &result); });
  std::thread sender(
      [&] { SendNumbered(near.get(), packet_bytes, offered_bits_per_s, count, &result); });
  sender.join();
  receiver.join();
  return result;
}

absl::StatusOr<double> TcpGoodput(const WanNode& from, const WanNode& to, absl::Duration warm_up,
                                  absl::Duration measured) {
  ASSIGN_OR_RETURN(UniqueFd near, SocketOn(from, SOCK_STREAM));
  ASSIGN_OR_RETURN(UniqueFd listener, SocketOn(to, SOCK_STREAM));
  RETURN_IF_ERROR(Bind(listener.get(), to.address));
  if (listen(listener.get(), 1) != 0) return absl::ErrnoToStatus(errno, "listen");
  RETURN_IF_ERROR(Connect(near.get(), to.address));
  UniqueFd far(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!far.ok()) return absl::ErrnoToStatus(errno, "accept");
  std::thread sender([&] {
    RaiseThreadPriority();
    const std::vector<char> block(256 << 10, 'x');
    while (send(near.get(), block.data(), block.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  SetReceiveTimeout(far.get(), absl::Seconds(5));
  int64_t first_ns = 0, last_ns = 0, bytes = 0;
  const int64_t start = NowNs() + absl::ToInt64Nanoseconds(warm_up);
  const int64_t end = start + absl::ToInt64Nanoseconds(measured);
  std::thread receiver([&] {
    RaiseThreadPriority();
    std::vector<char> buffer(256 << 10);
    while (last_ns < end) {
      const ssize_t n = recv(far.get(), buffer.data(), buffer.size(), 0);
      if (n <= 0) break;
      last_ns = NowNs();
      if (last_ns < start) continue;
      if (first_ns == 0) {
        first_ns = last_ns;
      } else {
        bytes += n;
      }
    }
  });
  receiver.join();
  shutdown(near.get(), SHUT_RDWR);
  shutdown(far.get(), SHUT_RDWR);
  sender.join();
  if (last_ns < end || last_ns <= first_ns) return absl::UnavailableError("the stream stalled");
  return static_cast<double>(bytes) * 8e9 / static_cast<double>(last_ns - first_ns);
}

absl::StatusOr<double> EmulatorCpuSeconds(const Wan& wan) {
  ASSIGN_OR_RETURN(const std::string path, SendControl(wan.run_dir, "stats"));
  std::ifstream in(path);
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (json.is_discarded()) return absl::DataLossError(path);
  return json.value("cpu_s", 0.0);
}

}  // namespace isthmus::testnet
