// Macros for absl::Status at the edges. Thread: none.
#ifndef ISTHMUS_BASE_STATUS_H_
#define ISTHMUS_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define ISTHMUS_CONCAT_INNER(a, b) a##b
#define ISTHMUS_CONCAT(a, b) ISTHMUS_CONCAT_INNER(a, b)

// Returns from the enclosing function if `expr` is not OK.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    ::absl::Status isthmus_status_ = (expr);           \
    if (!isthmus_status_.ok()) return isthmus_status_; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, F()): x = value, or returns the error.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ISTHMUS_ASSIGN_OR_RETURN(ISTHMUS_CONCAT(isthmus_or_, __LINE__), lhs, expr)
#define ISTHMUS_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()

namespace isthmus {

// The same error, payloads included, in other words.
inline absl::Status Reword(const absl::Status& status, absl::string_view message) {
  absl::Status out(status.code(), message);
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

// The same error with `context: ` in front of its message; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  return status.ok() ? status : Reword(status, absl::StrCat(context, ": ", status.message()));
}

}  // namespace isthmus

#endif  // ISTHMUS_BASE_STATUS_H_
