#include "proto/failure_cause.h"

#include <utility>

#include "absl/strings/cord.h"
#include "base/utf8.h"

namespace isthmus {
namespace {

constexpr char kUrl[] = "isthmus.FailureCause";

}  // namespace

FailureCause MakeCause(FailureCause::Kind kind, int rank, const std::string& node, int64_t step) {
  FailureCause cause;
  cause.set_kind(kind);
  cause.set_rank(rank);
  cause.set_node(node);
  cause.set_step(step);
  return cause;
}

absl::Status WithCause(absl::Status error, FailureCause cause) {
  cause.set_story(ToUtf8(error.message()));
  error.SetPayload(kUrl, absl::Cord(cause.SerializeAsString()));
  return error;
}

absl::optional<FailureCause> CauseOf(const absl::Status& error) {
  const auto payload = error.GetPayload(kUrl);
  FailureCause cause;
  if (!payload.has_value() || !cause.ParseFromString(std::string(*payload))) return absl::nullopt;
  return cause;
}

FailureCause CauseBeside(const absl::Status& error) {
  FailureCause cause = CauseOf(error).value_or(FailureCause());
  cause.clear_story();
  return cause;
}

}  // namespace isthmus
