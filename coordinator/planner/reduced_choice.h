// The codec of what ranks reduce: replicas' gradients, momentum or differences, and the gradient of
// a tied embedding. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_REDUCED_CHOICE_H_
#define ISTHMUS_COORDINATOR_PLANNER_REDUCED_CHOICE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/codec.pb.h"
#include "proto/job.pb.h"

namespace isthmus::coordinator {

// What the loss of a run rises by with 4 bits, as a share of it: of the gradients of replicas
// (coordinator/REPLICAS.md) and of a tied embedding (coordinator/TIED.md).
constexpr double kFourBitGradientLoss = 0.001;
constexpr double kFourBitTiedLoss = 0.0026;

// Do the replicas of the job reduce momentum, from the end of the optimiser's warm-up on?
bool Freezes(const JobSpec& job);

// `wanted`, a codec; or where it is auto the one of the least seconds + price x step_s, out of
// bf16, none and 8 and 4 bits (compression.min_bits). *why then says what each takes.
absl::StatusOr<CodecSpec> ChooseReduced(const JobSpec& job, const std::string& wanted,
                                        double four_bit_loss, double step_s,
                                        const std::function<double(const CodecSpec&)>& seconds_of,
                                        std::string* why);

// PowerSGD is made of both: a low rank without error feedback gets it, since what it leaves out
// would be lost. *why then says so; else it is left alone.
void WithFeedback(CodecSpec* codec, std::string* why);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_REDUCED_CHOICE_H_
