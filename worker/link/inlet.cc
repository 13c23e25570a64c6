#include "worker/link/inlet.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "worker/link/codec_options.h"
#include "worker/sync/device_reduction.h"

namespace isthmus::worker {
namespace {

// A link may be silent while the whole pipeline computes; the compute thread's own waits have the
// deadlines, and its end wakes the inlet.
constexpr absl::Duration kSilence = absl::Hours(24);

bool IsOrderlyEnd(const absl::Status& status) {
  return absl::IsOutOfRange(status) || absl::IsCancelled(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Inlet>> Inlet::Make(const SessionPlan& plan, const LinkPlan& link,
                                                   const std::string& spill_directory,
                                                   CodecStateStore* states, IndicesBoard* indices,
                                                   std::unique_ptr<DeviceLane> lane) {
  std::unique_ptr<Inlet> inlet(new Inlet(plan, link));
  inlet->lane_ = std::move(lane);
  if (inlet->lane_ != nullptr) inlet->lane_->Enter();
  if (link.kind() == LinkPlan::GROUP) {
    RETURN_IF_ERROR(inlet->MakeGroupDecoders());
    return inlet;
  }
  const bool from_below = inlet->from_below_;
  const CodecSpec& spec = from_below ? link.forward() : link.backward();
  const compress::CodecOptions codec =
      BoundaryCodecOptions(plan, link, spec, from_below, spill_directory);
  ASSIGN_OR_RETURN(inlet->decoder_,
                   MakeOnLane(plan, link, inlet->lane_.get(), codec, &inlet->on_lane_,
                              [&](const compress::CodecOptions& o) {
                                return ResumableCodec<compress::Decoder>::Make(
                                    plan, CodecPlace::Boundary(plan, link, from_below), spec, o,
                                    states);
                              }));
  inlet->prefetch_order_ = PrefetchOrder::Make(
      plan, from_below ? FrameHeader::ACTIVATION : FrameHeader::GRADIENT, spec, codec);
  inlet->indices_ = NeedsIndices(spec) ? indices : nullptr;
  // The session makes a board for the line.
  ISTHMUS_CHECK(!NeedsIndices(spec) || indices != nullptr);
  if (from_below) {
    const compress::CodecOptions options =
        BoundaryCodecOptions(plan, link, link.evaluation(), from_below, "");
    ASSIGN_OR_RETURN(inlet->eval_decoder_,
                     MakeOnLane(plan, link, inlet->lane_.get(), options, &inlet->eval_on_lane_,
                                [&](const compress::CodecOptions& o) {
                                  return compress::MakeDecoder(link.evaluation(), o);
                                }));
  }
  if (!from_below && link.epilogue()) {
    ASSIGN_OR_RETURN(inlet->raw_decoder_,
                     MakeOnLane(plan, link, inlet->lane_.get(), codec, &inlet->raw_on_lane_,
                                [&](const compress::CodecOptions& o) {
                                  return compress::MakeDecoder(CodecSpec(), o);
                                }));
  }
  return inlet;
}

Inlet::Inlet(const SessionPlan& plan, const LinkPlan& link)
    : plan_(plan),
      link_plan_(link),
      from_below_(link.kind() == LinkPlan::BOUNDARY && link.upper() == plan.rank()),
      sequence_(plan, link),
      queue_(plan.queue_limit(link)) {
  if (!sequence_.asks()) return;
  sequence_.Ask([this](int64_t) -> std::optional<bool> {
    const absl::StatusOr<bool> drained = drains_.Pop(absl::InfiniteDuration());
    return drained.ok() ? std::optional<bool>(*drained) : std::nullopt;
  });
}

absl::Status Inlet::MakeGroupDecoders() {
  for (const ExpectedFrame& frame : sequence_.Each()) {
    if (!OfGroup(frame.kind) || FrameDims(plan_, link_plan_, frame).positions == 0) continue;
    GroupDecoder& made = group_decoders_[{frame.kind, frame.group}];
    const GroupPlan& group = plan_.plan().groups(frame.group);
    const DeviceLane* const lane = ReducesOnDevice(group) ? lane_.get() : nullptr;
    const compress::CodecOptions options =
        GroupCodecOptions(plan_, frame.group, frame.kind, plan_.peer(link_plan_), plan_.rank());
    const CodecSpec& codec = frame.kind == FrameHeader::SUM ? group.sum() : group.contribution();
    ASSIGN_OR_RETURN(made.decoder, MakeOnLane(plan_, link_plan_, lane, options, &made.on_lane,
                                              [&](const compress::CodecOptions& o) {
                                                return compress::MakeDecoder(codec, o);
                                              }));
    if (group.value() != GroupPlan::MOMENTUM) continue;
    ASSIGN_OR_RETURN(made.exact, compress::MakeDecoder(CodecSpec(), options));
  }
  return absl::OkStatus();
}

Inlet::~Inlet() { Join(); }

void Inlet::Start(Link* link, FailSession fail, StepTracer* tracer) {
  link_ = link;
  tracer_ = tracer;
  fail_ = std::move(fail);
  thread_ = std::thread([this] {
    Run();
    MutexLock lock(&mutex_);
    done_ = true;
    done_changed_.SignalAll();
  });
}

absl::StatusOr<Inbound> Inlet::Pop(absl::Duration timeout) {
  absl::StatusOr<Inbound> item = queue_.Pop(timeout);
  if (absl::IsDeadlineExceeded(item.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat(Name(), ": nothing came for ", absl::FormatDuration(timeout)));
  }
  return item;
}

bool Inlet::WaitDone(absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  while (!done_ && thread_.joinable()) {
    if (!done_changed_.WaitUntil(&mutex_, deadline)) return done_;
  }
  return true;
}

void Inlet::Join() {
  if (thread_.joinable()) thread_.join();
}

void Inlet::Run() {
  if (lane_ != nullptr) lane_->Enter();
  if (prefetch_order_ != nullptr) decoder_->Prefetch(prefetch_order_->First());
  while (std::optional<ExpectedFrame> expected = sequence_.Next()) {
    absl::StatusOr<Frame> frame =
        link_->Receive(MaxPayloadBytes(plan_, link_plan_, *expected), kSilence);
    if (!frame.ok()) return Lost(frame.status());
    if (ending_)
      return fail_(absl::DataLossError(absl::StrCat(Name(), ": a frame came after the last one")));
    Trace(*expected, *frame);
    meter_.AddTrain(frame->train_bytes, frame->train_time);
    if (absl::Status s = Take(*expected, *std::move(frame)); !s.ok()) {
      return fail_(Annotate(
          s,
          absl::StrCat(Name(), ", ", FrameName(expected->kind, expected->step, expected->micro))));
    }
  }
  queue_.Close(absl::FailedPreconditionError(absl::StrCat(Name(), ": nothing more is due")));
  AwaitEnd();
}

SpanOf Inlet::Span(TraceSpan::Kind kind, const ExpectedFrame& of) const {
  return {kind, of.micro, &link_plan_, OfGroup(of.kind) ? of.group : -1, of.kind};
}

void Inlet::Trace(const ExpectedFrame& expected, const Frame& frame) {
  if (tracer_ == nullptr || !tracer_->Wants(expected.step)) return;
  tracer_->Add(expected.step, Span(TraceSpan::RECEIVE, expected), frame.begun, tracer_->Now(),
               FrameBytes(frame));
}

void Inlet::Lost(const absl::Status& status) {
  if (ending_) return queue_.Close(absl::CancelledError("the session ends"));
  const absl::Status lost = Annotate(status, Name());
  // An orderly end may overtake the decision that makes it right (it comes along another chain of
  // links): an error only if the compute thread still wants a frame.
  if (!IsOrderlyEnd(status)) fail_(lost);
  queue_.Close(
      absl::AbortedError(absl::StrCat(Name(), ": the peer ended early: ", status.message())));
}

void Inlet::AwaitEnd() {
  int64_t max_payload = 0;
  for (const ExpectedFrame& each : sequence_.Each())
    max_payload = std::max(max_payload, MaxPayloadBytes(plan_, link_plan_, each));
  if (link_->Receive(max_payload, kSilence).ok()) {
    fail_(absl::DataLossError(absl::StrCat(Name(), ": a frame came after the last one")));
  }
}

absl::Status Inlet::Take(const ExpectedFrame& expected, Frame frame) {
  RETURN_IF_ERROR(CheckFrame(plan_, link_plan_, expected, frame));
  if (expected.kind == FrameHeader::BUFFER_HASH) RETURN_IF_ERROR(CompareHash(frame.header));
  Inbound item;
  if (HasTensor(expected.kind)) {
    RETURN_IF_ERROR(CheckIds(expected, frame.header));
    RETURN_IF_ERROR(Decode(expected, frame, &item));
  }
  if (expected.kind == FrameHeader::DECISION) sequence_.Decided(frame.header.vote());
  if (expected.kind == FrameHeader::EVAL_ACTIVATION && frame.header.vote().stop())
    sequence_.LeaveEval();
  const bool checkpoint = frame.header.vote().checkpoint();
  item.header = std::move(frame.header);
  queue_.Push(std::move(item), absl::InfiniteDuration())
      .IgnoreError();  // it fails only once the session has ended
  SaveState(expected, checkpoint);
  const bool trained =
      expected.kind == FrameHeader::ACTIVATION || expected.kind == FrameHeader::GRADIENT;
  if (prefetch_order_ != nullptr && trained)
    decoder_->Prefetch(prefetch_order_->After(expected.step, expected.micro));
  return absl::OkStatus();
}

void Inlet::StepBegins(bool drained) {
  if (sequence_.asks())
    drains_.Push(drained, absl::ZeroDuration())
        .IgnoreError();  // the thread took that of the step before the last one long ago
}

void Inlet::Agreed(bool all_next) {
  if (sequence_.asks())
    drains_.Push(all_next, absl::InfiniteDuration())
        .IgnoreError();  // it fails only once the session has ended
}

void Inlet::StepDecided(int64_t step, bool checkpoint) {
  if (sequence_.decides() || !decoder_.keeps()) return;
  decisions_.Push({step, checkpoint}, absl::ZeroDuration())
      .IgnoreError();  // the thread took the last one before the frames of this step
}

// `checkpoint` is of a decision that came.
void Inlet::SaveState(const ExpectedFrame& expected, bool checkpoint) {
  if (!expected.last_of_step || !decoder_.keeps()) return;
  if (!sequence_.decides()) {
    const absl::StatusOr<StepDecision> decision = decisions_.Pop(absl::InfiniteDuration());
    if (!decision.ok()) return;  // the session ends
    checkpoint = decision->checkpoint && decision->step == expected.step;
  }
  if (checkpoint) decoder_.Save(expected.step + 1);
}

// No sample twice in a step: the delta buffers of the two ends would part.
absl::Status Inlet::CheckIds(const ExpectedFrame& expected, const FrameHeader& header) {
  const int64_t step = 2 * expected.step + (expected.kind == FrameHeader::EVAL_ACTIVATION);
  if (step != ids_step_) ids_of_step_.clear();
  ids_step_ = step;
  for (uint32_t id : header.sample_ids()) {
    if (!ids_of_step_.insert(id).second)
      return absl::DataLossError(absl::StrCat("sample ", id, " came twice in one step"));
  }
  return absl::OkStatus();
}

compress::Decoder* Inlet::DecoderOf(const ExpectedFrame& expected) {
  if (OfGroup(expected.kind)) {
    const GroupDecoder& of = group_decoders_[{expected.kind, expected.group}];
    const bool exact = GoesExact(plan_.plan(), plan_.plan().groups(expected.group), expected.step);
    return (exact ? of.exact : of.decoder).get();
  }
  if (expected.kind == FrameHeader::EVAL_ACTIVATION) return eval_decoder_.get();
  if (expected.kind == FrameHeader::GRADIENT && !plan_.CodesGradient(link_plan_, expected.micro))
    return raw_decoder_.get();
  return decoder_.get();
}

bool Inlet::OnLane(const ExpectedFrame& expected) {
  if (OfGroup(expected.kind)) return group_decoders_[{expected.kind, expected.group}].on_lane;
  const compress::Decoder* decoder = DecoderOf(expected);
  return decoder == decoder_.get()        ? on_lane_
         : decoder == eval_decoder_.get() ? eval_on_lane_
                                          : raw_on_lane_;
}

absl::Status Inlet::Decode(const ExpectedFrame& expected, const Frame& frame, Inbound* out) {
  const FrameHeader& h = frame.header;
  Tensor& tensor = out->tensor;
  tensor.dims = {h.shape(0), h.shape(1), h.shape(2)};
  if (tensor.dims.elements() == 0)
    return absl::OkStatus();  // a validation micro-batch beyond the last sample, a part of no rows
  ScopedTimer timer(&meter_.codec_ns);
  TraceScope span(tracer_, expected.step, Span(TraceSpan::DECODE, expected));
  compress::Decoder* decoder = DecoderOf(expected);
  const bool on_lane = OnLane(expected);
  if (on_lane) {
    ASSIGN_OR_RETURN(tensor, lane_->New(tensor.dims));
  } else {
    tensor.data.resize(tensor.dims.elements());
  }
  compress::FrameContext context;
  context.sample_ids = {h.sample_ids().data(), static_cast<size_t>(h.sample_ids_size())};
  context.step = h.step();
  context.micro = h.micro();
  std::vector<uint32_t> indices;
  if (indices_ != nullptr) {
    ASSIGN_OR_RETURN(indices, indices_->Take(h.step(), h.micro()));
    context.indices = indices;
  }
  const compress::MutableTensorView view{
      on_lane ? tensor.device->data() : tensor.data.data(), compress::DType::kF32,
      on_lane ? lane_->device() : compress::Device::kCpu, tensor.dims};
  RETURN_IF_ERROR(decoder->Decode(frame.payload, h.state_version(), context, view));
  if (on_lane) RETURN_IF_ERROR(lane_->Written(&tensor));
  if (OfGroup(expected.kind)) return absl::OkStatus();
  if (lazy_watch_ != nullptr && expected.kind == FrameHeader::ACTIVATION)
    lazy_watch_->Activation(h.step(), h.micro(), tensor);
  const absl::Span<const uint32_t> tokens = decoder->token_ids();
  out->token_ids.assign(tokens.begin(), tokens.end());
  if (expected.kind == FrameHeader::ACTIVATION && NeedsIndices(link_plan_.backward()))
    out->indices.assign(decoder->indices().begin(), decoder->indices().end());
  if (decoder == decoder_.get()) meter_.Publish(decoder_->stats());
  return absl::OkStatus();
}

absl::Status Inlet::CompareHash(const FrameHeader& header) {
  ASSIGN_OR_RETURN(const uint64_t mine, decoder_->StateHash());
  if (mine == header.buffer_hash()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the delta buffers of the two ends differ after step ",
                                          header.step(), " (", absl::Hex(mine), " here, ",
                                          absl::Hex(header.buffer_hash()), " there)"));
}

}  // namespace isthmus::worker
