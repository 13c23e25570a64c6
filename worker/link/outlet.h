// Outlet: the thread that encodes what the compute thread hands over and puts it on one link,
// through a bounded queue. It owns the encoders of its direction. Thread: Make, Start, Push, Close
// and Join on the compute thread; Abort from any.
#ifndef ISTHMUS_WORKER_LINK_OUTLET_H_
#define ISTHMUS_WORKER_LINK_OUTLET_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "compress/codec.h"
#include "worker/device_lane.h"
#include "worker/indices_board.h"
#include "worker/link/lazy_watch.h"
#include "worker/link/link.h"
#include "worker/link/prefetch_order.h"
#include "worker/link/resumable_codec.h"
#include "worker/meter.h"
#include "worker/session_plan.h"
#include "worker/step_tracer.h"
#include "worker/tensor.h"

namespace isthmus::worker {

struct Outbound {
  FrameHeader header;  // kind, step, micro, sample_ids, vote; the outlet fills the rest
  Tensor tensor;
  std::vector<uint32_t> token_ids;  // samples x positions, for codecs that need them (predict)
  std::vector<uint32_t> indices;    // of the activation that this is the gradient of (kept)
  bool encoded = false;             // payload and state_version are there already (of a group)
  std::string payload;
  absl::Duration timeout;  // of the send
  int64_t save_state = 0;  // nothing is sent: the encoder's state is saved as of this step
};

class Outlet {
 public:
  // `states`: where the encoder's state goes with checkpoints; null: nowhere. It outlives the
  // outlet, and so does `indices`: of the link's inlet, where gradients come by `kept`. `lane`: of
  // a stage on a GPU.
  static absl::StatusOr<std::unique_ptr<Outlet>> Make(const SessionPlan& plan, const LinkPlan& link,
                                                      const std::string& spill_directory,
                                                      CodecStateStore* states = nullptr,
                                                      IndicesBoard* indices = nullptr,
                                                      std::unique_ptr<DeviceLane> lane = nullptr);
  ~Outlet();

  // `sent` is called on the outlet's thread after each frame; it may be empty. `tracer` outlives
  // the outlet; null: none.
  void Start(Link* link, FailSession fail, std::function<void()> sent = nullptr,
             StepTracer* tracer = nullptr);

  // Blocks while the queue is full. DeadlineExceeded after item.timeout; the message names the
  // peer.
  absl::Status Push(Outbound item);

  // The encoder's state after what was pushed so far, as of `step` committed steps, is saved by the
  // thread. Blocks and fails as Push does.
  absl::Status SaveState(int64_t step, absl::Duration timeout);

  // Nothing more will be pushed: the thread sends what is queued, finishes the link in order and
  // ends.
  void Close() { queue_.Close(absl::CancelledError("done")); }
  void Abort(absl::Status why) { queue_.Abort(std::move(why)); }
  void Join();

  // Before Start alone: it hears of each gradient. It outlives the outlet.
  void set_lazy_watch(LazyWatch* watch) { lazy_watch_ = watch; }
  // Of a boundary whose gradients go by lep, what their errors were in `step`; asked for once. Any
  // thread.
  std::optional<LazyError> TakeLazyError(int64_t step);
  // Before Start alone. A group's link has none: its frames come encoded.
  ResumableCodec<compress::Encoder>* encoder() { return &encoder_; }

  const Meter& meter() const { return meter_; }
  int64_t frames_pushed() const { return pushed_; }  // compute thread
  int64_t frames_sent() const { return sent_; }      // any thread
  // What the frames of `step` came to that were sent since it was last asked for; of those, what
  // the frames of each group did, by index in plan.groups. Any thread.
  Reading TakeSent(int64_t step);
  struct GroupBytes {
    int64_t raw = 0, wire = 0;
  };
  std::map<int, GroupBytes> TakeGroups(int64_t step);
  const LinkPlan& link_plan() const { return link_plan_; }
  bool up() const { return up_; }

 private:
  Outlet(const SessionPlan& plan, const LinkPlan& link);
  void Run();
  absl::Status SendOne(Outbound item);
  absl::Status Encode(Outbound* item);
  absl::StatusOr<compress::TensorView> View(bool on_lane, Tensor* tensor);
  std::string Name() const { return plan_.DescribeLink(link_plan_); }

  const SessionPlan& plan_;
  const LinkPlan& link_plan_;
  const bool up_;                                    // lower -> upper
  ResumableCodec<compress::Encoder> encoder_;        // outlet thread
  std::unique_ptr<compress::Encoder> eval_encoder_;  // outlet thread; upwards alone
  std::unique_ptr<compress::Encoder> raw_encoder_;   // of gradients beside the epilogue's
  std::unique_ptr<PrefetchOrder> prefetch_order_;    // outlet thread; null: nothing to read ahead
  IndicesBoard* indices_ = nullptr;                  // upwards alone, where gradients are `kept`
  LazyWatch* lazy_watch_ = nullptr;                  // downwards alone
  std::unique_ptr<DeviceLane> lane_;                 // null: the stage is on the CPU
  bool on_lane_ = false, eval_on_lane_ = false, raw_on_lane_ = false;  // which encoders are
  Link* link_ = nullptr;
  StepTracer* tracer_ = nullptr;
  int64_t bytes_before_ = 0;  // sent on the link before Start
  FailSession fail_;
  BoundedQueue<Outbound> queue_;
  Meter meter_;
  std::function<void()> after_send_;
  int64_t pushed_ = 0;
  std::atomic<int64_t> sent_{0};
  Mutex mutex_;
  std::map<int64_t, Reading> sent_of_step_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::map<int, GroupBytes>> groups_of_step_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_OUTLET_H_
