// From what a user asked for to the factors and schemes of an operator. Thread: pure functions.
#ifndef ISTHMUS_WORKER_MULTILEVEL_MAPPING_CHOICE_H_
#define ISTHMUS_WORKER_MULTILEVEL_MAPPING_CHOICE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "worker/multilevel/operators.h"
#include "worker/multilevel/record.h"

namespace isthmus::multilevel {

struct Asked {
  int64_t width_factor = 0;  // 0: not named, as with the numbers below
  int64_t depth_factor = 0;
  int64_t hidden = 0;  // of the result
  int64_t heads = 0;
  int64_t layers = 0;
  std::optional<Shape> like;  // of another model: the result gets its width and depth
  std::optional<Groups> width, depth;
  std::optional<Tied> tied;
};

// Both factors are 2 where none is named, or those of `recorded` (a coalesce to undo, of which the
// schemes are taken, too); where one axis is named the other stays. InvalidArgument: a size that is
// no multiple of the other (both are named), or sizes that contradict one another.
absl::StatusOr<Mapping> ChooseMapping(Operator kind, const Shape& source, const Asked& asked,
                                      const std::optional<Mapping>& recorded);

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_WORKER_MULTILEVEL_MAPPING_CHOICE_H_
