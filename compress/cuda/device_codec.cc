#include "compress/cuda/device_codec.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/codecs/sent_indices.h"
#include "compress/cuda/device_body.h"
#include "compress/cuda/device_delta.h"
#include "compress/frame.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress::cuda {
namespace {

// As per_sample.cc has them.
absl::Status SaveFrames(uint64_t version, DeviceSampleCodec* codec, Queue* queue, StateWriter* to) {
  to->Put(version);
  RETURN_IF_ERROR(codec->SaveState(to, queue));
  return to->status();
}

absl::Status LoadFrames(StateReader* from, uint64_t* version, DeviceSampleCodec* codec,
                        Queue* queue) {
  *version = from->Get<uint64_t>("number of frames");
  RETURN_IF_ERROR(codec->LoadState(from, queue));
  return from->status();
}

// Of the last frame, topk's and randomk's: read from its payload when they are first asked for.
class FrameIndices {
 public:
  FrameIndices(CodecSpec spec, CodecOptions options)
      : spec_(std::move(spec)), options_(std::move(options)) {}
  // The payload stays where it is until the next call. No samples: there is no such frame.
  void Set(absl::string_view payload, int64_t samples) {
    payload_ = payload;
    samples_ = samples;
    read_ = false;
  }
  absl::Span<const uint32_t> Get() {
    if (!read_) indices_ = SentIndices(spec_, options_, payload_, samples_);
    read_ = true;
    return indices_;
  }

 private:
  const CodecSpec spec_;
  const CodecOptions options_;
  absl::string_view payload_;
  int64_t samples_ = 0;
  bool read_ = false;
  std::vector<uint32_t> indices_;
};

// Samples one after the other: the counterpart of PerSampleEncoder.
class DirectEncoder : public DeviceEncoder {
 public:
  DirectEncoder(const CodecSpec& spec, std::unique_ptr<DeviceSampleCodec> codec,
                CodecOptions options, Queue queue)
      : codec_(std::move(codec)),
        options_(std::move(options)),
        queue_(std::move(queue)),
        indices_(spec, options_) {}

  absl::StatusOr<absl::string_view> EncodePinned(const TensorView& in,
                                                 const FrameContext& context) override {
    RETURN_IF_ERROR(failed_);
    RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, options_));
    if (codec_->NeedsTokens()) RETURN_IF_ERROR(CheckTokens(context.token_ids, in.dims));
    indices_.Set({}, 0);
    const absl::Status status = Work(in, context);
    if (codec_->KeepsState()) failed_ = status;
    RETURN_IF_ERROR(status);
    ++version_;
    CountFrame(in.dims, static_cast<size_t>(payload_bytes_), &stats_);
    const absl::string_view payload(pinned_.data(), static_cast<size_t>(payload_bytes_));
    indices_.Set(payload, in.dims.samples);
    return payload;
  }

  uint64_t version() const override { return version_; }
  absl::StatusOr<uint64_t> StateHash() const override { return codec_->StateHash(&queue_); }
  CodecStats stats() const override { return stats_; }
  absl::Span<const uint32_t> indices() const override { return indices_.Get(); }
  absl::Status SaveState(StateWriter* to) override {
    RETURN_IF_ERROR(failed_);
    return SaveFrames(version_, codec_.get(), &queue_, to);
  }
  absl::Status LoadState(StateReader* from) override {
    return LoadFrames(from, &version_, codec_.get(), &queue_);
  }

 private:
  absl::Status Work(const TensorView& in, const FrameContext& context) {
    const int64_t samples = in.dims.samples, stride = codec_->device_bytes();
    RETURN_IF_ERROR(codec_->BeginFrame(context, samples, &queue_));
    RETURN_IF_ERROR(bodies_.Reserve(samples * stride + 16));
    RETURN_IF_ERROR(pinned_.Reserve(samples * (codec_->MaxPrefixBytes() + codec_->wire_bytes())));
    std::vector<EncodeJob> jobs;
    std::vector<SampleInfo> infos;
    for (int64_t s = 0; s < samples; ++s) {
      infos.push_back(InfoOf(version(), s, in.dims, context));
      EncodeJob job;
      job.a = SampleAt(in, s);
      job.body = bodies_.data() + 16 + s * stride;
      job.not_finite = reinterpret_cast<uint32_t*>(bodies_.data());  // not asked for here
      job.draw = infos.back().draw;
      jobs.push_back(job);
    }
    RETURN_IF_ERROR(codec_->Encode(in.dtype, jobs, infos, &queue_));
    RETURN_IF_ERROR(codec_->MaxPrefixBytes() == 0 ? CollectRows(samples) : Collect(jobs, infos));
    RETURN_IF_ERROR(queue_.Wait());
    return codec_->EndFrame(std::vector<uint8_t>(jobs.size(), 1), &queue_);
  }

  // Queues copies of all bodies to their places in the payload: they all have one length.
  absl::Status CollectRows(int64_t samples) {
    const int64_t wire = codec_->wire_bytes();
    int64_t at = 0;
    for (const Segment& segment : codec_->segments()) {
      RETURN_IF_ERROR(queue_.RowsToHost(pinned_.data() + at, wire, bodies_.data() + 16 + segment.at,
                                        codec_->device_bytes(), segment.bytes, samples));
      at += segment.bytes;
    }
    payload_bytes_ = samples * wire;
    return absl::OkStatus();
  }

  // The same where each has a prefix of its own.
  absl::Status Collect(const std::vector<EncodeJob>& jobs, const std::vector<SampleInfo>& infos) {
    char* to = pinned_.data();
    for (size_t i = 0; i < jobs.size(); ++i)
      RETURN_IF_ERROR(BodyToHost(*codec_, jobs[i].body, infos[i], &queue_, &to));
    payload_bytes_ = to - pinned_.data();
    return absl::OkStatus();
  }

  const std::unique_ptr<DeviceSampleCodec> codec_;
  const CodecOptions options_;
  mutable Queue queue_;
  DeviceMemory bodies_;
  PinnedMemory pinned_;
  int64_t payload_bytes_ = 0;
  uint64_t version_ = 0;
  absl::Status failed_;  // an error half-way: shared state is not to be trusted any more
  CodecStats stats_;
  mutable FrameIndices indices_;
};

class DirectDecoder : public DeviceDecoder {
 public:
  DirectDecoder(const CodecSpec& spec, std::unique_ptr<DeviceSampleCodec> codec,
                std::unique_ptr<SampleCodec> checker, CodecOptions options, Queue queue)
      : codec_(std::move(codec)),
        checker_(std::move(checker)),
        options_(std::move(options)),
        queue_(std::move(queue)),
        indices_(spec, options_) {}

  absl::StatusOr<char*> PinnedPayload(int64_t bytes) override {
    indices_.Set({}, 0);
    RETURN_IF_ERROR(queue_.WaitForMark());
    RETURN_IF_ERROR(pinned_.Reserve(bytes));
    return pinned_.data();
  }

  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override {
    RETURN_IF_ERROR(failed_);
    RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, options_));
    if (codec_->KeepsState()) RETURN_IF_ERROR(CheckVersion(version, version_));
    indices_.Set({}, 0);
    if (!pinned_.Holds(payload) && !payload.empty()) {
      ASSIGN_OR_RETURN(char* pinned, PinnedPayload(static_cast<int64_t>(payload.size())));
      std::memcpy(pinned, payload.data(), payload.size());
      payload = absl::string_view(pinned, payload.size());
    }
    RETURN_IF_ERROR(Parse(payload, out.dims.samples));
    const absl::Status status = Work(payload, context, out);
    if (codec_->KeepsState()) failed_ = status;
    RETURN_IF_ERROR(status);
    version_ = version;
    CountFrame(out.dims, payload.size(), &stats_);
    indices_.Set(payload, out.dims.samples);
    return absl::OkStatus();
  }

  uint64_t version() const override { return version_; }
  absl::StatusOr<uint64_t> StateHash() const override { return codec_->StateHash(&queue_); }
  CodecStats stats() const override { return stats_; }
  absl::Span<const uint32_t> token_ids() const override { return tokens_; }
  absl::Span<const uint32_t> indices() const override { return indices_.Get(); }
  absl::Status SaveState(StateWriter* to) override {
    RETURN_IF_ERROR(failed_);
    return SaveFrames(version_, codec_.get(), &queue_, to);
  }
  absl::Status LoadState(StateReader* from) override {
    return LoadFrames(from, &version_, codec_.get(), &queue_);
  }

 private:
  // Checks the payload and cuts it into parts_; changes no state.
  absl::Status Parse(absl::string_view payload, int64_t samples) {
    parts_.clear();
    for (int64_t s = 0; s < samples; ++s) {
      absl::StatusOr<size_t> bytes = checker_->Check(payload);
      if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("sample ", s, " of the frame"));
      parts_.push_back(payload.substr(0, *bytes));
      payload.remove_prefix(*bytes);
    }
    if (payload.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(payload.size(), " bytes after the last sample"));
  }

  absl::Status Work(absl::string_view payload, const FrameContext& context,
                    const MutableTensorView& out) {
    const int64_t samples = out.dims.samples, stride = codec_->device_bytes();
    RETURN_IF_ERROR(codec_->BeginFrame(context, samples, &queue_));
    RETURN_IF_ERROR(bodies_.Reserve(samples * stride));
    tokens_.clear();
    if (codec_->MaxPrefixBytes() == 0) {
      RETURN_IF_ERROR(SendRows(payload, samples));
    } else {
      for (size_t s = 0; s < parts_.size(); ++s)
        RETURN_IF_ERROR(BodyToDevice(*codec_, parts_[s],
                                     bodies_.data() + static_cast<int64_t>(s) * stride, &tokens_,
                                     &queue_));
    }
    RETURN_IF_ERROR(queue_.Mark());
    std::vector<DecodeJob> jobs;
    std::vector<SampleInfo> infos;
    FrameContext with_tokens = context;
    with_tokens.token_ids = tokens_;
    for (int64_t s = 0; s < samples; ++s) {
      jobs.push_back({bodies_.data() + s * stride, nullptr, SampleAt(out, s)});
      infos.push_back(InfoOf(version_, s, out.dims, with_tokens));
    }
    RETURN_IF_ERROR(codec_->Decode(out.dtype, jobs, infos, nullptr, &queue_));
    return codec_->EndFrame(std::vector<uint8_t>(jobs.size(), 1), &queue_);
  }

  // Queues copies of all bodies, which have one length.
  absl::Status SendRows(absl::string_view payload, int64_t samples) {
    const char* from = payload.data();
    for (const Segment& segment : codec_->segments()) {
      RETURN_IF_ERROR(queue_.RowsToDevice(bodies_.data() + segment.at, codec_->device_bytes(), from,
                                          codec_->wire_bytes(), segment.bytes, samples));
      from += segment.bytes;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<DeviceSampleCodec> codec_;
  const std::unique_ptr<SampleCodec> checker_;  // of bytes from outside
  const CodecOptions options_;
  mutable Queue queue_;
  DeviceMemory bodies_;
  PinnedMemory pinned_;
  std::vector<absl::string_view> parts_;
  std::vector<uint32_t> tokens_;
  uint64_t version_ = 0;
  absl::Status failed_;  // as the encoder's
  CodecStats stats_;
  mutable FrameIndices indices_;
};

absl::Status CheckSpec(const CodecSpec& spec) {
  RETURN_IF_ERROR(ValidateCodec(spec));
  if (!spec.zstd()) return absl::OkStatus();
  return absl::UnimplementedError("zstd works on the host: MakeEncoder and MakeDecoder add it");
}

}  // namespace

bool BuiltWithCuda() { return true; }

absl::StatusOr<int64_t> FreeDeviceBytes() {
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "device memory"));
  return static_cast<int64_t>(free);
}

absl::Status DeviceEncoder::Encode(const TensorView& in, const FrameContext& context,
                                   std::string* payload) {
  ASSIGN_OR_RETURN(const absl::string_view pinned, EncodePinned(in, context));
  payload->assign(pinned.data(), pinned.size());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceEncoder>> MakeDeviceEncoder(const CodecSpec& spec,
                                                                 const CodecOptions& options,
                                                                 void* stream) {
  RETURN_IF_ERROR(CheckSpec(spec));
  if (spec.kind() == CodecSpec::DELTA) return MakeDeviceDeltaEncoder(spec, options, stream);
  const SampleShape shape{options.positions, options.hidden};
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> codec,
                   MakeDeviceSampleCodec(spec, shape, options, Role::kDirect));
  ASSIGN_OR_RETURN(Queue queue, Queue::Make(stream));
  return std::make_unique<DirectEncoder>(spec, std::move(codec), options, std::move(queue));
}

absl::StatusOr<std::unique_ptr<DeviceDecoder>> MakeDeviceDecoder(const CodecSpec& spec,
                                                                 const CodecOptions& options,
                                                                 void* stream) {
  RETURN_IF_ERROR(CheckSpec(spec));
  if (spec.kind() == CodecSpec::DELTA) return MakeDeviceDeltaDecoder(spec, options, stream);
  const SampleShape shape{options.positions, options.hidden};
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> codec,
                   MakeDeviceSampleCodec(spec, shape, options, Role::kDirect));
  ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> checker, MakeChecker(spec, options));
  ASSIGN_OR_RETURN(Queue queue, Queue::Make(stream));
  return std::make_unique<DirectDecoder>(spec, std::move(codec), std::move(checker), options,
                                         std::move(queue));
}

}  // namespace isthmus::compress::cuda
