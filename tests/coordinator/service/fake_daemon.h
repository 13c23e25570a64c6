// A daemon as the coordinator sees one, over loopback: registers, sends heartbeats, answers probes
// at once, keeps what it is told. Thread: one owner; it has threads of its own.
#ifndef ISTHMUS_TESTS_COORDINATOR_SERVICE_FAKE_DAEMON_H_
#define ISTHMUS_TESTS_COORDINATOR_SERVICE_FAKE_DAEMON_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "base/rpc/channel.h"
#include "proto/control.pb.h"

namespace isthmus::coordinator {

class FakeDaemon {
 public:
  struct Options {
    std::string address;     // of the coordinator
    rpc::ChannelOptions to;  // how it is dialled
    NodeInfo node;
    std::string instance = "first";
    uint64_t running_generation = 0;
    std::string running_job_id;
    uint64_t newest_generation = 0;
    bool answer_probes = true;
    bool traces = true;  // answers readings of its clock, and tells of steps from first_step on
    int64_t first_step = 0;
    int64_t clock_ahead_ns = 0;
    double faster_when_idle = 1;  // what it answers when it is asked to measure its compute
    bool heartbeats = true;
    KeptParts kept;
  };
  explicit FakeDaemon(Options options);
  ~FakeDaemon();  // Vanish

  // The answer to the registration; an error if it was refused.
  absl::StatusOr<Registered> registered() const;
  void Vanish();  // the stream breaks off
  void Send(const DaemonMessage& message);
  void Event(const Plan& plan, SessionEvent::State state, int64_t step = 0,
             const std::string& text = "");
  void Step(const Plan& plan, int64_t step, double loss, double compute_s = 0,
            std::optional<double> validation_loss = {});  // its record
  void SetGeneration(uint64_t generation) { generation_ = generation; }

  absl::StatusOr<Plan> NextStart(absl::Duration timeout = absl::Seconds(20));
  absl::StatusOr<StopSession> NextStop(absl::Duration timeout = absl::Seconds(20));
  absl::StatusOr<KeptPart> NextPutKept(absl::Duration timeout = absl::Seconds(20));
  absl::StatusOr<std::string> NextRemoved(absl::Duration timeout = absl::Seconds(20));
  int probes() const { return probes_; }
  int measures() const { return measures_; }
  int clocks() const { return clocks_; }  // readings it was asked for

 private:
  struct Stream;
  void ReadLoop();
  void BeatLoop();
  int StageOf(const Plan& plan) const;
  void Trace(const CoordinatorMessage& message);

  const Options options_;
  std::unique_ptr<Stream> stream_;
  absl::StatusOr<Registered> registered_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> probes_{0};
  std::atomic<int> measures_{0};
  std::atomic<int> clocks_{0};
  std::atomic<int> rank_{-1};  // in the plan that it was sent last
  BoundedQueue<Plan> starts_{16};
  BoundedQueue<StopSession> stops_{16};
  BoundedQueue<KeptPart> put_kept_{16};
  BoundedQueue<std::string> removed_{16};
  Mutex mutex_;
  CondVar ended_;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
  std::thread beater_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_SERVICE_FAKE_DAEMON_H_
