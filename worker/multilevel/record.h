// What was done to a model, kept with it: `isthmus_multilevel` in config.json, a list of
// operations, the oldest first, each with its factors and schemes. Thread: pure functions.
#ifndef ISTHMUS_WORKER_MULTILEVEL_RECORD_H_
#define ISTHMUS_WORKER_MULTILEVEL_RECORD_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/multilevel/operators.h"

namespace isthmus::multilevel {

inline constexpr char kRecordKey[] = "isthmus_multilevel";

enum class Operator { kCoalesce, kDecoalesce, kInterpolate };

struct Operation {
  Operator kind = Operator::kCoalesce;
  Mapping mapping;   // of the first two
  double alpha = 0;  // of kInterpolate: the weight of the other model
};

std::string OperatorName(Operator kind);
std::string GroupsName(Groups groups);
std::string TiedName(Tied tied);
// Nothing: no such name.
std::optional<Groups> GroupsOf(absl::string_view name);
std::optional<Tied> TiedOf(absl::string_view name);

struct Recorded {
  std::string config;   // a config.json for `shape` with the operation added to its record
  std::string history;  // the record alone, as JSON
};

// `config` is a JSON object; other keys stay. InvalidArgument: its record is none of ours.
absl::StatusOr<Recorded> RecordOperation(const std::string& config, const Shape& shape,
                                         const Operation& operation);

// The mapping of the last coalesce that no de-coalesce has undone; nothing without one.
absl::StatusOr<std::optional<Mapping>> CoalesceToUndo(const std::string& config);

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_WORKER_MULTILEVEL_RECORD_H_
