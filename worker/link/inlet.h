// Inlet: the thread that takes frames off one link, checks and decodes them, and hands tensors to
// the compute thread through a bounded queue.
//
// It knows which frame must come next (FrameSequence); any other one ends the session. It owns the
// decoders of its direction. After the last frame it reads on to the peer's orderly end, so that a
// surplus frame is an error as well. Thread: Make, Start, Pop, ExpectEnd, WaitDone and Join on the
// compute thread; Abort from any.
#ifndef ISTHMUS_WORKER_LINK_INLET_H_
#define ISTHMUS_WORKER_LINK_INLET_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "compress/codec.h"
#include "worker/device_lane.h"
#include "worker/indices_board.h"
#include "worker/link/frames.h"
#include "worker/link/lazy_watch.h"
#include "worker/link/link.h"
#include "worker/link/prefetch_order.h"
#include "worker/link/resumable_codec.h"
#include "worker/meter.h"
#include "worker/session_plan.h"
#include "worker/step_tracer.h"
#include "worker/tensor.h"

namespace isthmus::worker {

struct Inbound {
  FrameHeader header;
  Tensor tensor;                    // decoded; empty for votes and decisions
  std::vector<uint32_t> token_ids;  // that the codec brought along (predict); else empty
  std::vector<uint32_t> indices;    // of an activation whose gradient goes by `kept`; else empty
};

class Inlet {
 public:
  // `plan` and `link` outlive the inlet. Unimplemented, ResourceExhausted: from the codecs.
  // `states`: where the decoder's state goes with checkpoints; null: nowhere. It outlives the
  // inlet, and so does `indices`: of the link's outlet, where gradients come by `kept`. `lane`: of
  // a stage on a GPU, which then gets its tensors there.
  static absl::StatusOr<std::unique_ptr<Inlet>> Make(const SessionPlan& plan, const LinkPlan& link,
                                                     const std::string& spill_directory,
                                                     CodecStateStore* states = nullptr,
                                                     IndicesBoard* indices = nullptr,
                                                     std::unique_ptr<DeviceLane> lane = nullptr);
  ~Inlet();

  // `tracer` outlives the inlet; null: none.
  void Start(Link* link, FailSession fail, StepTracer* tracer = nullptr);

  // The next frame that carries something for the compute thread, in order.
  // DeadlineExceeded: nothing for `timeout`; the message names the peer.
  absl::StatusOr<Inbound> Pop(absl::Duration timeout);

  // Where steps overlap, at the beginning of each: whether it is drained.
  void StepBegins(bool drained);

  // Where fragments have agreements of their own, after each: whether the next one is of all.
  void Agreed(bool all_next);

  // What was decided at the end of `step`. After the last frame of each step on a link over which
  // no decisions come, the thread waits for it, so that a state is saved before any frame of the
  // next step is decoded; none comes from a peer that follows the plan.
  void StepDecided(int64_t step, bool checkpoint);

  void ExpectEnd() {
    ending_ = true;
  }  // the session stops: whatever the link says from now on is no error
  bool WaitDone(absl::Duration timeout);  // true: the peer's end was seen, or the link failed
  void Abort(absl::Status why) {
    decisions_.Abort(why);
    drains_.Abort(why);
    queue_.Abort(std::move(why));
  }
  void Join();

  // Before Start alone: it hears of each activation. It outlives the inlet.
  void set_lazy_watch(LazyWatch* watch) { lazy_watch_ = watch; }
  // Before Start alone. A group's link has none.
  ResumableCodec<compress::Decoder>* decoder() { return &decoder_; }

  const Meter& meter() const { return meter_; }

 private:
  struct StepDecision {
    int64_t step = 0;
    bool checkpoint = false;
  };
  Inlet(const SessionPlan& plan, const LinkPlan& link);
  absl::Status MakeGroupDecoders();
  void Run();
  SpanOf Span(TraceSpan::Kind kind, const ExpectedFrame& of) const;
  void Trace(const ExpectedFrame& expected, const Frame& frame);
  absl::Status Take(const ExpectedFrame& expected, Frame frame);
  absl::Status CheckIds(const ExpectedFrame& expected, const FrameHeader& header);
  compress::Decoder* DecoderOf(const ExpectedFrame& expected);
  bool OnLane(const ExpectedFrame& expected);
  absl::Status Decode(const ExpectedFrame& expected, const Frame& frame, Inbound* out);
  void SaveState(const ExpectedFrame& expected, bool checkpoint);
  absl::Status CompareHash(const FrameHeader& header);
  void AwaitEnd();
  void Lost(const absl::Status& status);
  std::string Name() const { return plan_.DescribeLink(link_plan_); }

  const SessionPlan& plan_;
  const LinkPlan& link_plan_;
  const bool from_below_;   // of a boundary
  FrameSequence sequence_;  // inlet thread, as all below but the queue
  ResumableCodec<compress::Decoder> decoder_;
  std::unique_ptr<compress::Decoder> eval_decoder_;  // from below alone
  std::unique_ptr<compress::Decoder> raw_decoder_;   // of gradients beside the epilogue's
  // Of a group's frames, by kind and group; they keep no state.
  struct GroupDecoder {
    std::unique_ptr<compress::Decoder> decoder;
    bool on_lane = false;
    std::unique_ptr<compress::Decoder> exact;  // of steps in which nothing is coded (GoesExact)
  };
  std::map<std::pair<FrameHeader::Kind, int>, GroupDecoder> group_decoders_;
  std::unique_ptr<PrefetchOrder> prefetch_order_;  // null: nothing to read ahead
  IndicesBoard* indices_ = nullptr;                // of a boundary, from above, by `kept`
  LazyWatch* lazy_watch_ = nullptr;                // of a boundary, from below
  std::unique_ptr<DeviceLane> lane_;               // null: the stage is on the CPU
  bool on_lane_ = false, eval_on_lane_ = false, raw_on_lane_ = false;  // which decoders are
  std::unordered_set<uint32_t> ids_of_step_;
  int64_t ids_step_ = -1;
  Link* link_ = nullptr;
  StepTracer* tracer_ = nullptr;
  FailSession fail_;
  BoundedQueue<Inbound> queue_;
  BoundedQueue<bool> drains_{2};             // of each step
  BoundedQueue<StepDecision> decisions_{2};  // that of the last step may be untaken yet
  Meter meter_;
  std::atomic<bool> ending_{false};
  Mutex mutex_;
  CondVar done_changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_INLET_H_
