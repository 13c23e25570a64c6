#include "worker/failure.h"

#include "absl/strings/str_cat.h"

namespace isthmus::worker {
namespace {

constexpr absl::string_view kOrigin = "session failed at ";
constexpr size_t kLongestMessage = 2000;  // it travels in a control message

const char* Advice(const absl::Status& cause) {
  switch (cause.code()) {
    case absl::StatusCode::kCancelled:
      return "";
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return ". Check that the node runs and its network is up, then continue from the last "
             "checkpoint with `isthmus submit --resume`";
    case absl::StatusCode::kDataLoss:
      return ". Nothing of this step was applied here; continue from the last checkpoint with "
             "`isthmus submit --resume`, and look at the "
             "network between the two if it comes again";
    case absl::StatusCode::kResourceExhausted:
      return ". Free what is short on this node, or give it a smaller part, then `isthmus submit "
             "--resume`";
    default:
      return ". Correct the cause, then continue from the last checkpoint with `isthmus submit "
             "--resume`";
  }
}

}  // namespace

absl::Status DescribeFailure(const SessionPlan& plan, int64_t step, const absl::Status& cause) {
  const absl::string_view message = cause.message();
  const size_t origin = message.rfind(kOrigin);
  const std::string text = origin != absl::string_view::npos
                               ? std::string(message.substr(origin))
                               : absl::StrCat(kOrigin, plan.Describe(plan.stage()), ", step ", step,
                                              ": ", message, Advice(cause));
  return absl::Status(cause.code(), text.substr(0, kLongestMessage));
}

}  // namespace isthmus::worker
