// `isthmusd --doctor`: whether a daemon with these flags could train on this host, before it is
// started. How others reach a daemon that runs, `isthmus doctor` tells. Thread: one owner.
#ifndef ISTHMUS_DAEMON_DOCTOR_H_
#define ISTHMUS_DAEMON_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/machine_check.h"
#include "daemon/daemon.h"

namespace isthmus::daemon {

// Ports, limits, clock, disk, --data-dir, the coordinator (waits for it `patience` at most), and
// the address that others will be told. Opens nothing for longer than the look.
std::vector<Finding> Examine(const DaemonOptions& options, absl::Duration patience);

// Of a measured host: `warning` is engine::ReferenceBlock's, empty where all is well.
Finding JudgeBlas(double product_flops_per_s, int threads, const std::string& device,
                  const std::string& warning);

// Of the address that others are told.
Finding JudgeAdvertised(const std::string& address, bool loopback, bool asked_for);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_DOCTOR_H_
