// What a session says, as Prometheus metrics. Names and labels: deploy/prometheus and the README.
// Thread: any.
#ifndef ISTHMUS_DAEMON_SESSION_METRICS_H_
#define ISTHMUS_DAEMON_SESSION_METRICS_H_

#include <set>
#include <string>

#include "base/mutex.h"
#include "daemon/session_runner.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::daemon {

// Counters start at 0 with the object, so that a first step is seen as a growth. Gauges of a
// session carry its job and go with it.
class SessionMetrics {
 public:
  SessionMetrics();

  void ReportStep(const StepRecord& record);
  // Before each scrape.
  void ReportRunning(const SessionRunner::Running& running, absl::Duration heartbeat_age);

 private:
  static constexpr size_t kMostLazyLinks = 8;  // a stage has one boundary below
  void ShowJob(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowGroups(const StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowLazyErrors(const StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::string job_ ABSL_GUARDED_BY(mutex_);               // whose gauges are out; empty: none's
  std::set<std::string> groups_ ABSL_GUARDED_BY(mutex_);  // of it
  std::set<std::string> lazy_links_ ABSL_GUARDED_BY(mutex_);
};

void ReportMeasurement(const std::string& peer, const LinkMeasurement& measurement);
void ReportBuild(const std::string& version, const std::string& device);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_SESSION_METRICS_H_
