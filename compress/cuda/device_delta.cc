#include "compress/cuda/device_delta.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/cuda/device_body.h"
#include "compress/cuda/device_store.h"
#include "compress/frame.h"

namespace isthmus::compress::cuda {
namespace {

enum Kind : uint8_t { kKey = 0, kDelta = 1, kForgotten = 2 };  // as compress/codecs/delta.cc
constexpr int64_t kHeaderBytes = 5;

int64_t FlagBytes(int64_t samples) { return (4 * samples + 15) / 16 * 16; }

// What the two ends have in common.
struct State {
  static absl::StatusOr<State> Make(const CodecSpec& spec, const CodecOptions& options,
                                    void* stream);
  const DeviceSampleCodec& CodecOf(uint8_t kind) const {
    return kind == kDelta ? *inner : kind == kKey ? *cold : *full;
  }
  // Of a body in device memory, whatever its kind.
  int64_t Stride() const {
    return std::max({inner->device_bytes(), cold->device_bytes(), full->device_bytes()});
  }
  int64_t LargestBody() const {  // on the wire
    return std::max(
        {inner->wire_bytes(), cold->MaxPrefixBytes() + cold->wire_bytes(), full->wire_bytes()});
  }
  absl::StatusOr<uint64_t> Hash() {
    ASSIGN_OR_RETURN(const uint64_t hash, store->Hash());
    ASSIGN_OR_RETURN(const uint64_t of_cold, cold->StateHash(queue.get()));
    return Mix64(hash ^ version) ^ of_cold;
  }
  CodecStats Stats() const {
    CodecStats out = stats;
    out.evicted_samples = store->evicted();
    out.buffer_device_bytes = store->device_bytes();
    out.buffer_memory_bytes = store->memory_bytes();
    out.buffer_disk_bytes = store->disk_bytes();
    out.late_buffer_reads = store->late_reads();
    return out;
  }

  // The buffers of a frame's samples, those that are known opened; put back by Close.
  absl::Status Begin(absl::Span<const uint32_t> ids, const std::vector<MessageStore::Slot>& plan);
  uint16_t* Opened(size_t i) const { return buffers.Opened(stored[i]); }
  absl::Status Close();
  absl::Status Save(StateWriter* to);
  absl::Status Load(StateReader* from);

  CodecOptions options;
  std::unique_ptr<DeviceSampleCodec> inner, cold, full;
  std::unique_ptr<Queue> queue;
  DeviceBuffers buffers;
  std::unique_ptr<MessageStore> store;
  std::vector<DeviceBuffers::Stored> stored;  // of the frame's samples; null: not kept
  DeviceMemory memory;                        // flags, then a body a sample
  PinnedMemory pinned;
  uint64_t version = 0;
  absl::Status failed;  // an error half-way: the state is not to be trusted any more
  CodecStats stats;
};

absl::StatusOr<State> State::Make(const CodecSpec& spec, const CodecOptions& options,
                                  void* stream) {
  const SampleShape shape{options.positions, options.hidden};
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> inner,
                   MakeDeviceSampleCodec(spec.inner(), shape, options, Role::kDelta));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> cold,
                   MakeDeviceSampleCodec(spec.cold(), shape, options, Role::kKey));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> full,
                   MakeDeviceSampleCodec(CodecSpec(), shape, options, Role::kDirect));
  ASSIGN_OR_RETURN(DeviceBuffers buffers, DeviceBuffers::Make(spec.buffer_bits(), shape, options));
  ASSIGN_OR_RETURN(Queue made, Queue::Make(stream));
  auto queue = std::make_unique<Queue>(std::move(made));
  ASSIGN_OR_RETURN(std::unique_ptr<MessageStore> store,
                   MakeDeviceStore(buffers, options, queue.get()));
  return State{options,
               std::move(inner),
               std::move(cold),
               std::move(full),
               std::move(queue),
               std::move(buffers),
               std::move(store),
               {},
               DeviceMemory(),
               PinnedMemory(),
               0,
               absl::OkStatus(),
               CodecStats()};
}

absl::Status State::Begin(absl::Span<const uint32_t> ids,
                          const std::vector<MessageStore::Slot>& plan) {
  RETURN_IF_ERROR(store->Begin(ids, plan));
  RETURN_IF_ERROR(buffers.Reserve(ids.size()));
  stored.assign(ids.size(), {});
  std::vector<DeviceBuffers::Stored> known;
  for (size_t i = 0; i < ids.size(); ++i) {
    stored[i].sample = i;
    if (!plan[i].keep) continue;
    ASSIGN_OR_RETURN(stored[i].at, store->Buffer(ids[i]));
    if (plan[i].known) known.push_back(stored[i]);
  }
  return buffers.Open(known, queue.get());
}

absl::Status State::Close() {
  std::vector<DeviceBuffers::Stored> kept;
  for (const DeviceBuffers::Stored& buffer : stored) {
    if (buffer.at != nullptr) kept.push_back(buffer);
  }
  return buffers.Close(kept, queue.get());
}

absl::Status State::Save(StateWriter* to) {
  RETURN_IF_ERROR(failed);
  to->Put(version);
  RETURN_IF_ERROR(inner->SaveState(to, queue.get()));
  RETURN_IF_ERROR(cold->SaveState(to, queue.get()));
  return store->Save(to);
}

absl::Status State::Load(StateReader* from) {
  version = from->Get<uint64_t>("number of frames");
  RETURN_IF_ERROR(inner->LoadState(from, queue.get()));
  RETURN_IF_ERROR(cold->LoadState(from, queue.get()));
  return store->Load(from);
}

class BufferedEncoder : public DeviceEncoder {
 public:
  explicit BufferedEncoder(State state) : s_(std::move(state)) {}
  absl::StatusOr<absl::string_view> EncodePinned(const TensorView& in,
                                                 const FrameContext& context) override;
  uint64_t version() const override { return s_.version; }
  absl::StatusOr<uint64_t> StateHash() const override { return s_.Hash(); }
  CodecStats stats() const override { return s_.Stats(); }
  absl::Status SaveState(StateWriter* to) override { return s_.Save(to); }
  absl::Status LoadState(StateReader* from) override { return s_.Load(from); }
  void Prefetch(absl::Span<const uint32_t> sample_ids) override { s_.store->Prefetch(sample_ids); }

 private:
  absl::Status Work(const TensorView& in, const FrameContext& context);
  // Queues the kernels of all samples of a kind.
  absl::Status Launch(uint8_t kind, const TensorView& in, const FrameContext& context);
  // Queues copies of all bodies to their places in the payload, and writes the headers.
  absl::Status Collect(const TensorDims& dims, const FrameContext& context);
  uint8_t* Body(size_t i) const {
    return s_.memory.data() + FlagBytes(static_cast<int64_t>(kinds_.size())) +
           static_cast<int64_t>(i) * s_.Stride();
  }

  mutable State s_;
  std::vector<MessageStore::Slot> plan_;
  std::vector<uint8_t> kinds_;
  int64_t payload_bytes_ = 0;
};

absl::StatusOr<absl::string_view> BufferedEncoder::EncodePinned(const TensorView& in,
                                                                const FrameContext& context) {
  RETURN_IF_ERROR(s_.failed);
  RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, s_.options));
  RETURN_IF_ERROR(CheckIds(context.sample_ids, in.dims.samples));
  if (s_.cold->NeedsTokens()) RETURN_IF_ERROR(CheckTokens(context.token_ids, in.dims));
  s_.store->Plan(context.sample_ids, &plan_);
  s_.failed = Work(in, context);
  RETURN_IF_ERROR(s_.failed);
  ++s_.version;
  CountFrame(in.dims, static_cast<size_t>(payload_bytes_), &s_.stats);
  for (uint8_t kind : kinds_)
    ++(kind == kDelta ? s_.stats.delta_samples : s_.stats.key_frame_samples);
  return absl::string_view(s_.pinned.data(), static_cast<size_t>(payload_bytes_));
}

absl::Status BufferedEncoder::Work(const TensorView& in, const FrameContext& context) {
  const absl::Span<const uint32_t> ids = context.sample_ids;
  const int64_t samples = in.dims.samples, flag_bytes = FlagBytes(samples);
  RETURN_IF_ERROR(s_.Begin(ids, plan_));
  RETURN_IF_ERROR(s_.memory.Reserve(flag_bytes + samples * s_.Stride() + 16));
  RETURN_IF_ERROR(s_.pinned.Reserve(flag_bytes + samples * (kHeaderBytes + s_.LargestBody())));
  kinds_.assign(ids.size(), kKey);
  for (size_t i = 0; i < ids.size(); ++i) kinds_[i] = plan_[i].known ? kDelta : kKey;
  RETURN_IF_ERROR(s_.queue->Zero(s_.memory.data(), flag_bytes));
  RETURN_IF_ERROR(Launch(kDelta, in, context));
  RETURN_IF_ERROR(Launch(kKey, in, context));
  RETURN_IF_ERROR(s_.Close());
  // As if all were finite, which nearly always is so.
  RETURN_IF_ERROR(Collect(in.dims, context));
  char* pinned_flags = s_.pinned.data() + samples * (kHeaderBytes + s_.LargestBody());
  RETURN_IF_ERROR(s_.queue->ToHost(pinned_flags, s_.memory.data(), flag_bytes));
  RETURN_IF_ERROR(s_.queue->Wait());
  std::vector<uint32_t> flags(static_cast<size_t>(flag_bytes / 4));
  std::memcpy(flags.data(), pinned_flags, static_cast<size_t>(flag_bytes));
  bool again = false;
  std::vector<uint8_t> used_keys;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (kinds_[i] == kKey) used_keys.push_back(flags[i] == 0 ? 1 : 0);
    if (flags[i] != 0) {
      kinds_[i] = kForgotten;
      s_.store->Forget(ids[i]);
      again = true;
    } else if (plan_[i].keep) {
      s_.store->Bump(ids[i]);
    }
  }
  if (!used_keys.empty()) RETURN_IF_ERROR(s_.cold->EndFrame(used_keys, s_.queue.get()));
  if (!again) return absl::OkStatus();
  RETURN_IF_ERROR(Launch(kForgotten, in, context));
  RETURN_IF_ERROR(Collect(in.dims, context));
  return s_.queue->Wait();
}

absl::Status BufferedEncoder::Launch(uint8_t kind, const TensorView& in,
                                     const FrameContext& context) {
  std::vector<EncodeJob> jobs;
  std::vector<SampleInfo> infos;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] != kind) continue;
    const int64_t sample = static_cast<int64_t>(i);
    EncodeJob job;
    job.a = SampleAt(in, sample);
    if (kind != kForgotten) job.m = s_.Opened(i);
    job.body = Body(i);
    if (kind != kForgotten) job.not_finite = reinterpret_cast<uint32_t*>(s_.memory.data()) + i;
    infos.push_back(InfoOf(s_.version, sample, in.dims, context));
    job.draw = infos.back().draw;
    jobs.push_back(job);
  }
  if (jobs.empty()) return absl::OkStatus();
  DeviceSampleCodec* codec = kind == kDelta ? s_.inner.get()
                             : kind == kKey ? s_.cold.get()
                                            : s_.full.get();
  return codec->Encode(in.dtype, jobs, infos, s_.queue.get());
}

absl::Status BufferedEncoder::Collect(const TensorDims& dims, const FrameContext& context) {
  char* to = s_.pinned.data();
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const uint32_t version = plan_[i].version + 1;
    *to = static_cast<char>(kinds_[i]);
    std::memcpy(to + 1, &version, 4);
    to += kHeaderBytes;
    const SampleInfo info = InfoOf(s_.version, static_cast<int64_t>(i), dims, context);
    RETURN_IF_ERROR(BodyToHost(s_.CodecOf(kinds_[i]), Body(i), info, s_.queue.get(), &to));
  }
  payload_bytes_ = to - s_.pinned.data();
  return absl::OkStatus();
}

class BufferedDecoder : public DeviceDecoder {
 public:
  // The checkers are the host's codecs of each kind: they know which bytes an encoder makes.
  BufferedDecoder(State state, std::vector<std::unique_ptr<SampleCodec>> checkers)
      : s_(std::move(state)), checkers_(std::move(checkers)) {}
  absl::StatusOr<char*> PinnedPayload(int64_t bytes) override {
    RETURN_IF_ERROR(s_.queue->WaitForMark());
    RETURN_IF_ERROR(s_.pinned.Reserve(bytes));
    return s_.pinned.data();
  }
  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override;
  uint64_t version() const override { return s_.version; }
  absl::StatusOr<uint64_t> StateHash() const override { return s_.Hash(); }
  CodecStats stats() const override { return s_.Stats(); }
  absl::Span<const uint32_t> token_ids() const override { return tokens_; }
  absl::Status SaveState(StateWriter* to) override { return s_.Save(to); }
  absl::Status LoadState(StateReader* from) override { return s_.Load(from); }
  void Prefetch(absl::Span<const uint32_t> sample_ids) override { s_.store->Prefetch(sample_ids); }

 private:
  struct Part {
    uint8_t kind;
    absl::string_view body;
  };
  // Checks the payload against the plan and cuts it into parts_; changes no state.
  absl::Status Parse(absl::string_view payload, absl::Span<const uint32_t> ids);
  absl::StatusOr<Part> ParseSample(absl::string_view payload, const MessageStore::Slot& slot) const;
  absl::Status Work(const FrameContext& context, const MutableTensorView& out);
  // Queues the copy of a part's body; tokens_ takes the ids it brings.
  absl::Status Send(size_t i, uint8_t* body);
  // Of each kind: jobs, and what belongs to them.
  struct Batch {
    std::vector<DecodeJob> jobs;
    std::vector<SampleInfo> infos;
  };
  absl::Status Launch(const Batch (&batches)[3], const MutableTensorView& out);

  mutable State s_;
  const std::vector<std::unique_ptr<SampleCodec>> checkers_;  // by kind
  std::vector<MessageStore::Slot> plan_;
  std::vector<Part> parts_;
  std::vector<uint32_t> tokens_;  // of the frame, where samples bring any
};

absl::StatusOr<BufferedDecoder::Part> BufferedDecoder::ParseSample(
    absl::string_view payload, const MessageStore::Slot& slot) const {
  if (static_cast<int64_t>(payload.size()) < kHeaderBytes)
    return absl::InvalidArgumentError("the frame ends in its header");
  const uint8_t kind = static_cast<uint8_t>(payload[0]);
  uint32_t version;
  std::memcpy(&version, payload.data() + 1, 4);
  payload.remove_prefix(kHeaderBytes);
  if (kind > kForgotten) return absl::InvalidArgumentError(absl::StrCat("unknown kind ", kind));
  if (kind == kDelta && !slot.known)
    return absl::DataLossError("a difference came, but this end has no buffer to add it to");
  if (version != slot.version + 1 || (kind == kKey && slot.known)) {
    return absl::DataLossError(
        absl::StrCat("buffer version ", version, " came, this end is at ", slot.version));
  }
  ASSIGN_OR_RETURN(const size_t bytes, checkers_[kind]->Check(payload));
  const Part part{kind, payload.substr(0, bytes)};
  if (kind != kForgotten && s_.CodecOf(kind).HasNan(part.body))
    return absl::InvalidArgumentError("not finite, which an encoder sends as such");
  return part;
}

absl::Status BufferedDecoder::Parse(absl::string_view payload, absl::Span<const uint32_t> ids) {
  parts_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    absl::StatusOr<Part> part = ParseSample(payload, plan_[i]);
    if (!part.ok()) return Annotate(part.status(), absl::StrCat("sample ", ids[i]));
    parts_.push_back(*part);
    payload.remove_prefix(static_cast<size_t>(kHeaderBytes) + part->body.size());
  }
  if (payload.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(payload.size(), " bytes after the last sample"));
}

absl::Status BufferedDecoder::Decode(absl::string_view payload, uint64_t version,
                                     const FrameContext& context, const MutableTensorView& out) {
  RETURN_IF_ERROR(s_.failed);
  RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, s_.options));
  RETURN_IF_ERROR(CheckIds(context.sample_ids, out.dims.samples));
  RETURN_IF_ERROR(CheckVersion(version, s_.version));
  s_.store->Plan(context.sample_ids, &plan_);
  if (!s_.pinned.Holds(payload) && !payload.empty()) {
    ASSIGN_OR_RETURN(char* pinned, PinnedPayload(static_cast<int64_t>(payload.size())));
    std::memcpy(pinned, payload.data(), payload.size());
    payload = absl::string_view(pinned, payload.size());
  }
  RETURN_IF_ERROR(Parse(payload, context.sample_ids));
  s_.failed = Work(context, out);
  RETURN_IF_ERROR(s_.failed);
  ++s_.version;
  CountFrame(out.dims, payload.size(), &s_.stats);
  for (const Part& part : parts_)
    ++(part.kind == kDelta ? s_.stats.delta_samples : s_.stats.key_frame_samples);
  return absl::OkStatus();
}

absl::Status BufferedDecoder::Send(size_t i, uint8_t* body) {
  std::vector<uint32_t> tokens;
  RETURN_IF_ERROR(
      BodyToDevice(s_.CodecOf(parts_[i].kind), parts_[i].body, body, &tokens, s_.queue.get()));
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(i * tokens.size()));
  return absl::OkStatus();
}

absl::Status BufferedDecoder::Work(const FrameContext& context, const MutableTensorView& out) {
  const absl::Span<const uint32_t> ids = context.sample_ids;
  const int64_t stride = s_.Stride(), flag_bytes = 16;
  RETURN_IF_ERROR(s_.Begin(ids, plan_));
  RETURN_IF_ERROR(s_.memory.Reserve(flag_bytes + out.dims.samples * stride + 16));
  RETURN_IF_ERROR(s_.queue->Zero(s_.memory.data(), flag_bytes));
  tokens_.clear();
  if (s_.cold->NeedsTokens())
    tokens_.assign(static_cast<size_t>(out.dims.samples * out.dims.positions), kNoToken);
  FrameContext with_tokens = context;
  with_tokens.token_ids = tokens_;
  Batch batches[3];
  for (size_t i = 0; i < ids.size(); ++i) {
    const Part& part = parts_[i];
    const int64_t sample = static_cast<int64_t>(i);
    DecodeJob job;
    uint8_t* body = s_.memory.data() + flag_bytes + sample * stride;
    RETURN_IF_ERROR(Send(i, body));
    if (part.kind != kForgotten) job.m = s_.Opened(i);
    job.body = body;
    job.out = SampleAt(out, sample);
    batches[part.kind].jobs.push_back(job);
    batches[part.kind].infos.push_back(InfoOf(s_.version, sample, out.dims, with_tokens));
  }
  RETURN_IF_ERROR(s_.queue->Mark());
  RETURN_IF_ERROR(Launch(batches, out));
  RETURN_IF_ERROR(s_.Close());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (parts_[i].kind == kForgotten) {
      s_.store->Forget(ids[i]);
    } else if (plan_[i].keep) {
      s_.store->Bump(ids[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status BufferedDecoder::Launch(const Batch (&batches)[3], const MutableTensorView& out) {
  uint32_t* not_finite = reinterpret_cast<uint32_t*>(s_.memory.data());
  const Batch &deltas = batches[kDelta], &keys = batches[kKey], &full = batches[kForgotten];
  RETURN_IF_ERROR(
      s_.inner->Decode(out.dtype, deltas.jobs, deltas.infos, not_finite, s_.queue.get()));
  RETURN_IF_ERROR(s_.cold->Decode(out.dtype, keys.jobs, keys.infos, not_finite, s_.queue.get()));
  RETURN_IF_ERROR(s_.full->Decode(out.dtype, full.jobs, full.infos, nullptr, s_.queue.get()));
  const bool asks = (!deltas.jobs.empty() && s_.inner->FindsNotFinite()) ||
                    (!keys.jobs.empty() && s_.cold->FindsNotFinite());
  if (asks) {
    uint32_t flag = 0;
    RETURN_IF_ERROR(s_.queue->ToHost(&flag, not_finite, 4));
    RETURN_IF_ERROR(s_.queue->Wait());
    if (flag != 0) return absl::InvalidArgumentError("not finite, which an encoder sends as such");
  }
  if (keys.jobs.empty()) return absl::OkStatus();
  return s_.cold->EndFrame(std::vector<uint8_t>(keys.jobs.size(), 1), s_.queue.get());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceEncoder>> MakeDeviceDeltaEncoder(const CodecSpec& spec,
                                                                      const CodecOptions& options,
                                                                      void* stream) {
  ASSIGN_OR_RETURN(State state, State::Make(spec, options, stream));
  return std::make_unique<BufferedEncoder>(std::move(state));
}

absl::StatusOr<std::unique_ptr<DeviceDecoder>> MakeDeviceDeltaDecoder(const CodecSpec& spec,
                                                                      const CodecOptions& options,
                                                                      void* stream) {
  std::vector<std::unique_ptr<SampleCodec>> checkers(3);
  ASSIGN_OR_RETURN(checkers[kKey], MakeChecker(spec.cold(), options));
  ASSIGN_OR_RETURN(checkers[kDelta], MakeChecker(spec.inner(), options));
  ASSIGN_OR_RETURN(checkers[kForgotten], MakeChecker(CodecSpec(), options));
  ASSIGN_OR_RETURN(State state, State::Make(spec, options, stream));
  return std::make_unique<BufferedDecoder>(std::move(state), std::move(checkers));
}

}  // namespace isthmus::compress::cuda
