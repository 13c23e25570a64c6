// Measures what lies between this daemon and another one: round trip and rate, this one -> that
// one.
//
// Round trip: the smallest of several Echos. Rate: base/link_rate.h. Thread: Measure on one thread,
// Cancel from any.
#ifndef ISTHMUS_DAEMON_PROBE_H_
#define ISTHMUS_DAEMON_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/plan.pb.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace isthmus::daemon {

struct ProbeOptions {
  absl::Duration budget = absl::Seconds(10);  // all of one peer
  absl::Duration connect = absl::Seconds(5);
  int echos = 5;
  bool use_proxy = false;
};

class Prober {
 public:
  // A peer that can't be measured gives `error` in the result, within the budget.
  LinkMeasurement Measure(const std::string& my_id, const NodeInfo& peer,
                          const ProbeOptions& options);

  // A measurement that runs ends with an error, and every later one.
  void Cancel();

 private:
  struct Deadline;
  class Call;  // makes a running call known to Cancel
  bool cancelled() const;

  mutable Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_PROBE_H_
