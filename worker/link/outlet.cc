#include "worker/link/outlet.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "worker/link/codec_options.h"
#include "worker/link/frames.h"

namespace isthmus::worker {

absl::StatusOr<std::unique_ptr<Outlet>> Outlet::Make(const SessionPlan& plan, const LinkPlan& link,
                                                     const std::string& spill_directory,
                                                     CodecStateStore* states, IndicesBoard* indices,
                                                     std::unique_ptr<DeviceLane> lane) {
  std::unique_ptr<Outlet> outlet(new Outlet(plan, link));
  if (link.kind() == LinkPlan::GROUP) return outlet;  // its frames come encoded
  outlet->lane_ = std::move(lane);
  if (outlet->lane_ != nullptr) outlet->lane_->Enter();
  const CodecSpec& spec = outlet->up_ ? link.forward() : link.backward();
  const compress::CodecOptions options =
      BoundaryCodecOptions(plan, link, spec, outlet->up_, spill_directory);
  ASSIGN_OR_RETURN(outlet->encoder_,
                   MakeOnLane(plan, link, outlet->lane_.get(), options, &outlet->on_lane_,
                              [&](const compress::CodecOptions& o) {
                                return ResumableCodec<compress::Encoder>::Make(
                                    plan, CodecPlace::Boundary(plan, link, outlet->up_), spec, o,
                                    states);
                              }));
  outlet->prefetch_order_ = PrefetchOrder::Make(
      plan, outlet->up_ ? FrameHeader::ACTIVATION : FrameHeader::GRADIENT, spec, options);
  if (outlet->up_ && NeedsIndices(link.backward())) {
    ISTHMUS_CHECK(indices != nullptr);  // the session makes a board for the line
    outlet->indices_ = indices;
  }
  if (outlet->up_) {
    const compress::CodecOptions eval =
        BoundaryCodecOptions(plan, link, link.evaluation(), true, "");
    ASSIGN_OR_RETURN(outlet->eval_encoder_,
                     MakeOnLane(plan, link, outlet->lane_.get(), eval, &outlet->eval_on_lane_,
                                [&](const compress::CodecOptions& o) {
                                  return compress::MakeEncoder(link.evaluation(), o);
                                }));
  }
  if (!outlet->up_ && link.epilogue()) {
    ASSIGN_OR_RETURN(outlet->raw_encoder_,
                     MakeOnLane(plan, link, outlet->lane_.get(), options, &outlet->raw_on_lane_,
                                [&](const compress::CodecOptions& o) {
                                  return compress::MakeEncoder(CodecSpec(), o);
                                }));
  }
  return outlet;
}

Outlet::Outlet(const SessionPlan& plan, const LinkPlan& link)
    : plan_(plan),
      link_plan_(link),
      up_(link.lower() == plan.rank()),
      queue_(plan.queue_limit(link)) {}

Outlet::~Outlet() { Join(); }

void Outlet::Start(Link* link, FailSession fail, std::function<void()> sent, StepTracer* tracer) {
  link_ = link;
  tracer_ = tracer;
  bytes_before_ = link->wire_bytes_sent();
  fail_ = std::move(fail);
  after_send_ = std::move(sent);
  thread_ = std::thread([this] { Run(); });
}

absl::Status Outlet::Push(Outbound item) {
  const absl::Duration timeout = item.timeout;
  const int frames = item.save_state > 0 ? 0 : 1;
  absl::Status status = queue_.Push(std::move(item), timeout);
  if (status.ok()) pushed_ += frames;
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(Name(), ": nothing could be sent for ", absl::FormatDuration(timeout)));
}

absl::Status Outlet::SaveState(int64_t step, absl::Duration timeout) {
  if (!encoder_.keeps()) return absl::OkStatus();
  Outbound item;
  item.timeout = timeout;
  item.save_state = step;
  return Push(std::move(item));
}

void Outlet::Join() {
  if (thread_.joinable()) thread_.join();
}

void Outlet::Run() {
  if (lane_ != nullptr) lane_->Enter();
  if (prefetch_order_ != nullptr) encoder_->Prefetch(prefetch_order_->First());
  for (;;) {
    absl::StatusOr<Outbound> item = queue_.Pop(absl::InfiniteDuration());
    if (!item.ok()) break;  // by Close or Abort
    if (item->save_state > 0) {
      encoder_.Save(item->save_state);
      continue;
    }
    const int64_t step = item->header.step();
    const std::string name = FrameName(item->header.kind(), step, item->header.micro());
    const int group = OfGroup(item->header.kind()) ? item->header.group() : -1;
    const Reading before(meter_);
    if (absl::Status s = SendOne(*std::move(item)); !s.ok()) {
      return fail_(Annotate(s, absl::StrCat(Name(), ", ", name)));
    }
    {
      const Reading after(meter_);
      MutexLock lock(&mutex_);
      sent_of_step_[step].Add(after, before);
      if (group >= 0) {
        GroupBytes& bytes = groups_of_step_[step][group];
        bytes.raw += after.raw_bytes - before.raw_bytes;
        bytes.wire += after.wire_bytes - before.wire_bytes;
      }
    }
    ++sent_;
    if (after_send_) after_send_();
  }
  if (absl::Status s = link_->Finish(plan_.drain_timeout()); !s.ok()) {
    LogDebug(Name(), ": not finished in order: ",
             s.message());  // the session has ended already, well or badly
  }
}

Reading Outlet::TakeSent(int64_t step) {
  MutexLock lock(&mutex_);
  const auto found = sent_of_step_.find(step);
  if (found == sent_of_step_.end()) return Reading();
  const Reading sent = found->second;
  sent_of_step_.erase(found);
  return sent;
}

std::map<int, Outlet::GroupBytes> Outlet::TakeGroups(int64_t step) {
  MutexLock lock(&mutex_);
  const auto found = groups_of_step_.find(step);
  if (found == groups_of_step_.end()) return {};
  std::map<int, GroupBytes> bytes = std::move(found->second);
  groups_of_step_.erase(found);
  return bytes;
}

std::optional<LazyError> Outlet::TakeLazyError(int64_t step) {
  std::optional<LazyError> error =
      lazy_watch_ != nullptr ? lazy_watch_->Take(step) : std::optional<LazyError>();
  if (error.has_value()) error->set_link_id(link_plan_.id());
  return error;
}

absl::Status Outlet::SendOne(Outbound item) {
  FrameHeader& h = item.header;
  if (h.kind() == FrameHeader::BUFFER_HASH) {
    ASSIGN_OR_RETURN(const uint64_t hash, encoder_->StateHash());
    h.set_buffer_hash(hash);
  }
  // What an uncompressed boundary would carry: an autoencoder's channels count as compressed.
  const TensorDims& d = item.tensor.dims;
  const int64_t raw_bytes =
      4 * (link_plan_.kind() == LinkPlan::GROUP ? d : plan_.model_dims(d.samples)).elements();
  if (HasTensor(h.kind())) {
    h.set_codec(CodecId(FrameCodec(plan_, link_plan_, h.kind(), h.step(), h.micro(), h.group())));
    for (int64_t n :
         {item.tensor.dims.samples, item.tensor.dims.positions, item.tensor.dims.hidden})
      h.add_shape(n);
    if (!item.encoded) RETURN_IF_ERROR(Encode(&item));
  }
  Frame frame;
  frame.header = std::move(h);
  frame.payload = std::move(item.payload);
  SealFrame(plan_.plan(), &frame);
  {
    const FrameHeader& sent = frame.header;
    TraceScope span(tracer_, sent.step(),
                    {TraceSpan::SEND, sent.micro(), &link_plan_,
                     OfGroup(sent.kind()) ? sent.group() : -1, sent.kind()});
    if (span.on()) span.set_bytes(FrameBytes(frame));
    RETURN_IF_ERROR(link_->Send(std::move(frame), item.timeout));
  }
  meter_.raw_bytes += raw_bytes;
  meter_.wire_bytes = link_->wire_bytes_sent() - bytes_before_;
  return absl::OkStatus();
}

// What an encoder on the lane, or on the host, reads of the tensor.
absl::StatusOr<compress::TensorView> Outlet::View(bool on_lane, Tensor* tensor) {
  if (on_lane && tensor->device != nullptr) {
    RETURN_IF_ERROR(lane_->Read(*tensor));
    return compress::TensorView{tensor->device->data(), compress::DType::kF32, lane_->device(),
                                tensor->dims};
  }
  ISTHMUS_CHECK(!on_lane);  // a tensor of the host
  if (tensor->device != nullptr) {
    ASSIGN_OR_RETURN(tensor->data, tensor->device->ToHost());
  }
  return compress::TensorView{tensor->data.data(), compress::DType::kF32, compress::Device::kCpu,
                              tensor->dims};
}

absl::Status Outlet::Encode(Outbound* item) {
  if (item->tensor.dims.samples == 0)
    return absl::OkStatus();  // a validation micro-batch beyond the last sample
  ScopedTimer timer(&meter_.codec_ns);
  FrameHeader& h = item->header;
  TraceScope span(tracer_, h.step(), {TraceSpan::ENCODE, h.micro(), &link_plan_, -1, h.kind()});
  const bool eval = h.kind() == FrameHeader::EVAL_ACTIVATION;
  const bool raw = h.kind() == FrameHeader::GRADIENT && !plan_.CodesGradient(link_plan_, h.micro());
  compress::Encoder* encoder = eval  ? eval_encoder_.get()
                               : raw ? raw_encoder_.get()
                                     : encoder_.get();
  compress::FrameContext context;
  context.sample_ids = {h.sample_ids().data(), static_cast<size_t>(h.sample_ids_size())};
  context.step = h.step();
  context.micro = h.micro();
  context.token_ids = item->token_ids;
  context.indices = item->indices;
  ASSIGN_OR_RETURN(const compress::TensorView view, View(eval  ? eval_on_lane_
                                                         : raw ? raw_on_lane_
                                                               : on_lane_,
                                                         &item->tensor));
  const bool watched = lazy_watch_ != nullptr && h.kind() == FrameHeader::GRADIENT;
  if (watched) lazy_watch_->Before(h.step(), h.micro(), !raw, view, *encoder);
  RETURN_IF_ERROR(encoder->Encode(view, context, &item->payload));
  if (watched && !raw) lazy_watch_->After(h.step(), *encoder);
  h.set_state_version(encoder->version());
  if (indices_ != nullptr && h.kind() == FrameHeader::ACTIVATION)
    indices_->Put(h.step(), h.micro(), encoder->indices());
  item->tensor.data = {};
  item->tensor.device.reset();
  if (encoder != encoder_.get()) return absl::OkStatus();
  meter_.Publish(encoder_->stats());
  // Read while the frame is sent and the next one computed.
  if (prefetch_order_ != nullptr) encoder_->Prefetch(prefetch_order_->After(h.step(), h.micro()));
  return absl::OkStatus();
}

}  // namespace isthmus::worker
