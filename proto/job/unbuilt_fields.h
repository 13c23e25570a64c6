// Fields of a job whose work is not built yet: `isthmus help job` and the template leave them out,
// and a job that sets one is refused. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_UNBUILT_FIELDS_H_
#define ISTHMUS_PROTO_JOB_UNBUILT_FIELDS_H_

#include "absl/strings/string_view.h"

namespace isthmus {

inline constexpr char kOptimizerField[] = "recipe.optimizer";
inline constexpr char kOptimizerWarmupField[] = "recipe.optimizer_warmup";

inline bool IsBuilt(absl::string_view field) {
  return field != kOptimizerField && field != kOptimizerWarmupField;
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_UNBUILT_FIELDS_H_
