// Which samples cross a link next, known beforehand at both ends: the order of samples is a
// function of (seed, epoch), and the order of micro-batches is the plan's. For codecs that can read
// ahead (delta buffers in a spill file). Thread: one owner.
#ifndef ISTHMUS_WORKER_LINK_PREFETCH_ORDER_H_
#define ISTHMUS_WORKER_LINK_PREFETCH_ORDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "compress/codec.h"
#include "proto/peer.pb.h"
#include "worker/data/corpus.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

class PrefetchOrder {
 public:
  static constexpr size_t kMostSamples = 64;  // that are foretold at a time

  // Of the frames of `kind` (ACTIVATION or GRADIENT) on a link of this stage, whose codec is `spec`
  // with `options`. Null: there is nothing to read ahead, or the plan does not say how many samples
  // the text has.
  static std::unique_ptr<PrefetchOrder> Make(const SessionPlan& plan, FrameHeader::Kind kind,
                                             const CodecSpec& spec,
                                             const compress::CodecOptions& options);

  // The ids of the frames after that of `micro` in `step`, also of the steps to come; valid until
  // the next call. Steps do not go back.
  absl::Span<const uint32_t> After(int64_t step, int32_t micro);
  // From the first frame of the session on.
  absl::Span<const uint32_t> First();

 private:
  PrefetchOrder(const SessionPlan& plan, FrameHeader::Kind kind);
  void Append(int64_t step, size_t from);  // the micro-batches at `from` and after it
  const std::vector<uint32_t>& Step(int64_t step);

  const SessionPlan& plan_;
  std::vector<int32_t> micros_;  // in the order of their frames
  SampleOrder order_;
  struct {
    int64_t step = -1;
    std::vector<uint32_t> ids;
  } known_[2];  // two steps: the order of an epoch is made once
  std::vector<uint32_t> ids_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_PREFETCH_ORDER_H_
