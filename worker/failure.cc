#include "worker/failure.h"

#include "absl/strings/str_cat.h"
#include "base/cure.h"
#include "base/status.h"
#include "proto/failure_cause.h"

namespace isthmus::worker {
namespace {

constexpr size_t kLongestMessage = 2000;  // it travels in a control message

// How the job goes on then is the coordinator's to say: it knows the checkpoints.
const char* Advice(const absl::Status& cause) {
  if (TellsCure(cause)) return "";
  switch (cause.code()) {
    case absl::StatusCode::kCancelled:
      return "";
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return ". Check that the node runs and its network is up";
    case absl::StatusCode::kDataLoss:
      return ". Nothing of this step was applied here; look at the network between the two if it "
             "comes again";
    case absl::StatusCode::kResourceExhausted:
      return ". Free what is short on this node, or give it a smaller part";
    default:
      return ". Correct the cause before the job goes on";
  }
}

}  // namespace

absl::Status DescribeFailure(const SessionPlan& plan, int64_t step, const absl::Status& cause) {
  if (const auto told = CauseOf(cause); told.has_value())
    return Reword(cause, told->story().substr(0, kLongestMessage));
  const std::string text = absl::StrCat(plan.Describe(plan.rank()), " failed at step ", step, ": ",
                                        cause.message(), Advice(cause));
  return WithCause(
      absl::Status(cause.code(), text.substr(0, kLongestMessage)),
      MakeCause(FailureCause::SESSION_FAILED, plan.rank(), plan.mine().node_id(), step));
}

}  // namespace isthmus::worker
