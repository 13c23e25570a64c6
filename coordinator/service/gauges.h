// The gauges of daemons and jobs. Owns which are out, so that those of what has gone are taken
// back. Thread: any. Its mutex is taken before that of Cores. Bounds: kGaugedJobs; a daemon has one
// label.
#ifndef ISTHMUS_COORDINATOR_SERVICE_GAUGES_H_
#define ISTHMUS_COORDINATOR_SERVICE_GAUGES_H_

#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "coordinator/service/cores.h"

namespace isthmus::coordinator {

constexpr int kGaugedJobs = 20;  // with metrics of their own: the newest ones, and active ones

class Gauges {
 public:
  Gauges(Cores* cores, bool insecure) : cores_(cores), insecure_(insecure) {}
  void Update();

 private:
  using Gauge = std::pair<std::string, MetricLabels>;
  void Set(const char* name, const char* help, const MetricLabels& labels, double value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetNodes(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_, cores_->mutex);
  void SetJobs(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_, cores_->mutex);

  Cores* const cores_;
  const bool insecure_;
  Mutex mutex_;
  std::set<Gauge> set_ ABSL_GUARDED_BY(mutex_);  // by this Update
  std::set<Gauge> out_ ABSL_GUARDED_BY(mutex_);  // by the one before
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_GAUGES_H_
