// What the flags of isthmus-generate may be: also `isthmus generate` judges them by it, before it
// fetches a model. Thread: constants.
#ifndef ISTHMUS_PROTO_MODEL_SAMPLING_LIMITS_H_
#define ISTHMUS_PROTO_MODEL_SAMPLING_LIMITS_H_

#include <cstdint>

namespace isthmus {

constexpr int64_t kMaxNewTokens = int64_t{1} << 30;
constexpr int64_t kMaxTopK = int64_t{1} << 30;
constexpr double kMinTemperature = 0.001;
constexpr double kMaxTemperature = 1000;

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_SAMPLING_LIMITS_H_
