// The exchange of the tied embedding's gradient between the first and the last stage. Each end
// sends its own part; both add first part + last part, each using the decoded value of its own, so
// the sums are bit-identical whatever the codec. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_TIED_H_
#define ISTHMUS_WORKER_TIED_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "worker/link/outlet.h"
#include "worker/link/resumable_codec.h"
#include "worker/session_plan.h"
#include "worker/tensor.h"

namespace isthmus::worker {

class TiedExchange {
 public:
  // `states`: where the encoder's state goes with checkpoints; null: nowhere.
  static absl::StatusOr<std::unique_ptr<TiedExchange>> Make(const SessionPlan& plan,
                                                            CodecStateStore* states = nullptr);

  // Encodes this end's part into `frame` (payload, version, shape) and keeps its decoded value.
  absl::Status Offer(Tensor mine, int64_t step, Outbound* frame);

  // The sum of both parts.
  absl::StatusOr<Tensor> Add(Tensor theirs);

  ResumableCodec<compress::Encoder>* encoder() { return &encoder_; }

 private:
  explicit TiedExchange(const SessionPlan& plan) : plan_(plan) {}

  const SessionPlan& plan_;
  ResumableCodec<compress::Encoder> encoder_;
  std::unique_ptr<compress::Decoder> decoder_;  // of what encoder_ makes; keeps no state
  Tensor mine_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_TIED_H_
