#include "coordinator/cli/exit_code.h"

namespace isthmus::cli {

const char kExitCodeHelp[] =
    "Exit codes: 0 done; 1 failed at run time; 2 wrong usage or job file; 3 this machine or the "
    "daemons lack something (root, TUN,\n"
    "memory, disk); 4 coordinator not reachable; 5 refused by the other side; 6 the watched job "
    "paused or failed; 130 interrupted.";

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kExitUsage;
    case absl::StatusCode::kResourceExhausted:
      return kExitMachine;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAborted:
      return kExitRefused;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailure;
  }
}

}  // namespace isthmus::cli
