#include "coordinator/cli/exit_code.h"

#include "absl/strings/str_format.h"

namespace isthmus::cli {
namespace {

constexpr char kUnreachable[] = "isthmus/unreachable";

constexpr ExitMeaning kCodes[] = {
    {kExitOk, "done"},
    {kExitFailure, "failed at run time"},
    {kExitUsage, "wrong usage, or a job file, job or name that does not exist"},
    {kExitMachine,
     "this machine or the daemons lack something (root, TUN, memory, disk), or too few daemons are "
     "there"},
    {kExitUnreachable, "no coordinator answers at its address"},
    {kExitRefused, "refused by the other side"},
    {kExitJobNotDone,
     "the job waited for paused or failed, or stopped with steps no checkpoint holds"},
    {kExitNotNow,
     "not now: daemons away or busy, links unmeasured or unusable, coordinator busy, or time ran "
     "out"},
    {kExitInterrupted, "interrupted"},
};

}  // namespace

absl::Span<const ExitMeaning> ExitCodes() { return kCodes; }

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
      return status.GetPayload(kUnreachable).has_value() ? kExitUnreachable : kExitNotNow;
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

absl::Status Unreachable(absl::Status status) {
  status.SetPayload(kUnreachable, absl::Cord());
  return status;
}

std::string ExitCodeHelp() {
  std::string out = "Exit codes:\n";
  for (const ExitMeaning& each : kCodes)
    absl::StrAppendFormat(&out, "%5d  %s\n", each.code, each.meaning);
  return out;
}

}  // namespace isthmus::cli
