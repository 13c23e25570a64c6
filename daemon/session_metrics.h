// What a session says, as Prometheus metrics. Names and labels: deploy/prometheus and the README.
// Thread: any.
#ifndef ISTHMUS_DAEMON_SESSION_METRICS_H_
#define ISTHMUS_DAEMON_SESSION_METRICS_H_

#include "daemon/session_runner.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::daemon {

void ReportStep(const StepRecord& record);
void ReportMeasurement(const std::string& peer, const LinkMeasurement& measurement);
// Before each scrape.
void ReportRunning(const SessionRunner::Running& running, absl::Duration heartbeat_age);
void ReportBuild(const std::string& version, const std::string& device);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_SESSION_METRICS_H_
