// A coordinator for tests: takes registrations and messages, says what the test tells it to say,
// stores checkpoints in memory. Thread: every method from any thread.
#ifndef ISTHMUS_TESTS_DAEMON_FAKE_COORDINATOR_H_
#define ISTHMUS_TESTS_DAEMON_FAKE_COORDINATOR_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "proto/control.pb.h"

namespace isthmus::daemon {

class FakeCoordinator {
 public:
  explicit FakeCoordinator(int port = 0);  // 0 picks one
  ~FakeCoordinator();                      // as if killed: connections break
  int port() const;
  std::string address() const;

  void set_refuse(const std::string& why);  // answer of every registration
  void set_heartbeat_ms(int64_t ms);
  void FailBulk(int times, absl::Status status);  // the next bulk calls end so
  int failures_left() const;                      // of those
  void BreakSessions();                           // drops the Session streams

  // Says it on the newest Session stream.
  void Say(const CoordinatorMessage& message);

  // Waits until `enough` holds for what came so far (all streams, in order); false after 30 s.
  bool WaitFor(const std::function<bool(const std::vector<DaemonMessage>&)>& enough);
  std::vector<DaemonMessage> messages() const;
  int registrations() const;

  int64_t probe_bytes() const;  // that measurements of the path moved, which shows 4 Mbit/s up

  std::map<std::string, std::string> files() const;                // "step/stage/file" -> bytes
  std::map<std::string, PutCheckpointHeader> headers() const;      // of those
  void PutAnswer(const std::string& bytes, bool damaged = false);  // of every Fetch

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether any message is an event of that state, or a record of that step.
bool HasEvent(const std::vector<DaemonMessage>& messages, SessionEvent::State state);
bool HasStep(const std::vector<DaemonMessage>& messages, int64_t step);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_TESTS_DAEMON_FAKE_COORDINATOR_H_
