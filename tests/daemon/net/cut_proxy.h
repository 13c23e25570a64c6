// A TCP relay in front of a server on loopback whose connections a test can cut, as a router does
// that forgets them: both ends see a reset. Thread: every method from any; one thread of its own
// that relays all connections.
#ifndef ISTHMUS_TESTS_DAEMON_NET_CUT_PROXY_H_
#define ISTHMUS_TESTS_DAEMON_NET_CUT_PROXY_H_

#include <atomic>
#include <string>
#include <thread>

namespace isthmus::daemon {

class CutProxy {
 public:
  explicit CutProxy(int to_port);  // on loopback
  ~CutProxy();
  CutProxy(const CutProxy&) = delete;
  CutProxy& operator=(const CutProxy&) = delete;

  std::string address() const;
  // Resets every connection when `bytes` have passed in all, and again after each `every`, `times`
  // times; from now on.
  void CutEvery(int64_t bytes, int64_t every, int times) {
    every_ = every;
    times_ = times;
    left_ = bytes;
  }
  // Once; from its return: what is sent before has come, or goes with the connection.
  void Cut() {
    const int before = cuts_;
    CutEvery(0, 0, 1);
    while (cuts_ == before) std::this_thread::yield();
  }
  // The next cut is seen by the server alone: what the other end sends then is swallowed.
  void CutServerAlone() {
    server_alone_ = true;
    Cut();
  }
  // While held, connections are neither accepted nor relayed, so that dials wait; from its return.
  void Hold(bool hold) {
    hold_ = hold;
    const int turn = turns_;
    while (hold && turns_ < turn + 2) std::this_thread::yield();
  }
  // Nobody listens there from now on, and nobody else can.
  void Go();
  int cuts() const { return cuts_; }
  int accepted() const { return accepted_; }

 private:
  void Loop();

  const int to_port_;
  int listening_ = -1;
  int kept_ = -1;  // of the same port, and never listens
  int port_ = 0;
  std::atomic<int64_t> left_{int64_t{1} << 60};
  std::atomic<int64_t> every_{0};
  std::atomic<int> times_{0};
  std::atomic<bool> server_alone_{false};
  std::atomic<bool> hold_{false};
  std::atomic<int> cuts_{0};
  std::atomic<int> accepted_{0};
  std::atomic<int> turns_{0};  // of the loop
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_TESTS_DAEMON_NET_CUT_PROXY_H_
