// How the two ends of a link come to go on with the same codec states after a resume: each loads
// what it has of checkpoint plan.start_step and tells the other its hashes, in the first frame of
// the link; a direction whose hashes are equal goes on, any other begins with new codecs at both
// ends.
//
// Only links whose codecs keep state, resumed after step 0, exchange anything. Thread: the compute
// thread, before inlet and outlet start.
#ifndef ISTHMUS_WORKER_LINK_STATE_EXCHANGE_H_
#define ISTHMUS_WORKER_LINK_STATE_EXCHANGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/link/link.h"
#include "worker/link/resumable_codec.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

class StateExchange {
 public:
  // All pointers and references outlive the exchange.
  StateExchange(const SessionPlan& plan, const LinkPlan& link, Link* wire,
                ResumableCodec<compress::Encoder>* encoder,
                ResumableCodec<compress::Decoder>* decoder);

  // First on all links of a stage: loads, and tells the peer.
  absl::Status Offer();
  // Then: hears the peer, and forgets what the two do not have alike. The result is in words what
  // came of it; empty: there was nothing to take up. Waits plan.timeout of the first step at most.
  absl::StatusOr<std::string> Settle();

 private:
  bool due() const;

  const SessionPlan& plan_;
  const LinkPlan& link_;
  Link* const wire_;
  ResumableCodec<compress::Encoder>* const encoder_;
  ResumableCodec<compress::Decoder>* const decoder_;
  const bool lower_;       // this end
  uint64_t sent_ = 0;      // agreement of the encoder; 0: a new one
  uint64_t received_ = 0;  // of the decoder
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_STATE_EXCHANGE_H_
