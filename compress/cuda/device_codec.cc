#include "compress/cuda/device_codec.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/cuda/device_body.h"
#include "compress/cuda/device_delta.h"
#include "compress/frame.h"
#include "proto/codec_text.h"

namespace isthmus::compress::cuda {
namespace {

// Samples one after the other, without state: the counterpart of PerSampleEncoder.
class DirectEncoder : public DeviceEncoder {
 public:
  DirectEncoder(std::unique_ptr<DeviceSampleCodec> codec, CodecOptions options, Queue queue)
      : codec_(std::move(codec)), options_(std::move(options)), queue_(std::move(queue)) {}

  absl::StatusOr<absl::string_view> EncodePinned(const TensorView& in,
                                                 const FrameContext& context) override {
    RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, options_));
    const int64_t samples = in.dims.samples, stride = codec_->device_bytes();
    const int64_t wire = codec_->wire_bytes();
    RETURN_IF_ERROR(bodies_.Reserve(samples * stride + 16));
    RETURN_IF_ERROR(pinned_.Reserve(samples * wire));
    std::vector<EncodeJob> jobs;
    for (int64_t s = 0; s < samples; ++s) {
      EncodeJob job;
      job.a = SampleAt(in, s);
      job.body = bodies_.data() + 16 + s * stride;
      job.not_finite = reinterpret_cast<uint32_t*>(bodies_.data());  // not asked for here
      job.draw = InfoOf(version(), s, in.dims, context).draw;
      jobs.push_back(job);
    }
    RETURN_IF_ERROR(codec_->Encode(in.dtype, jobs, &queue_));
    int64_t at = 0;
    for (const Segment& segment : codec_->segments()) {
      RETURN_IF_ERROR(queue_.RowsToHost(pinned_.data() + at, wire, bodies_.data() + 16 + segment.at,
                                        stride, segment.bytes, samples));
      at += segment.bytes;
    }
    RETURN_IF_ERROR(queue_.Wait());
    CountFrame(in.dims, static_cast<size_t>(samples * wire), &stats_);
    return absl::string_view(pinned_.data(), static_cast<size_t>(samples * wire));
  }

  uint64_t version() const override { return static_cast<uint64_t>(stats_.frames); }
  CodecStats stats() const override { return stats_; }

 private:
  const std::unique_ptr<DeviceSampleCodec> codec_;
  const CodecOptions options_;
  Queue queue_;
  DeviceMemory bodies_;
  PinnedMemory pinned_;
  CodecStats stats_;
};

class DirectDecoder : public DeviceDecoder {
 public:
  DirectDecoder(std::unique_ptr<DeviceSampleCodec> codec, std::unique_ptr<SampleCodec> checker,
                CodecOptions options, Queue queue)
      : codec_(std::move(codec)),
        checker_(std::move(checker)),
        options_(std::move(options)),
        queue_(std::move(queue)) {}

  absl::StatusOr<char*> PinnedPayload(int64_t bytes) override {
    RETURN_IF_ERROR(queue_.WaitForMark());
    RETURN_IF_ERROR(pinned_.Reserve(bytes));
    return pinned_.data();
  }

  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override {
    RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, options_));
    RETURN_IF_ERROR(Check(payload, out.dims.samples));
    const int64_t samples = out.dims.samples, stride = codec_->device_bytes();
    if (!pinned_.Holds(payload) && !payload.empty()) {
      ASSIGN_OR_RETURN(char* pinned, PinnedPayload(static_cast<int64_t>(payload.size())));
      std::memcpy(pinned, payload.data(), payload.size());
      payload = absl::string_view(pinned, payload.size());
    }
    RETURN_IF_ERROR(bodies_.Reserve(samples * stride));
    const char* from = payload.data();
    for (const Segment& segment : codec_->segments()) {
      RETURN_IF_ERROR(queue_.RowsToDevice(bodies_.data() + segment.at, stride, from,
                                          codec_->wire_bytes(), segment.bytes, samples));
      from += segment.bytes;
    }
    RETURN_IF_ERROR(queue_.Mark());
    std::vector<DecodeJob> jobs;
    for (int64_t s = 0; s < samples; ++s)
      jobs.push_back({bodies_.data() + s * stride, nullptr, SampleAt(out, s)});
    RETURN_IF_ERROR(codec_->Decode(out.dtype, jobs, nullptr, &queue_));
    version_ = version;
    CountFrame(out.dims, payload.size(), &stats_);
    return absl::OkStatus();
  }

  uint64_t version() const override { return version_; }
  CodecStats stats() const override { return stats_; }

 private:
  absl::Status Check(absl::string_view payload, int64_t samples) const {
    for (int64_t s = 0; s < samples; ++s) {
      absl::StatusOr<size_t> bytes = checker_->Check(payload);
      if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("sample ", s, " of the frame"));
      payload.remove_prefix(*bytes);
    }
    if (payload.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(payload.size(), " bytes after the last sample"));
  }

  const std::unique_ptr<DeviceSampleCodec> codec_;
  const std::unique_ptr<SampleCodec> checker_;  // of bytes from outside
  const CodecOptions options_;
  Queue queue_;
  DeviceMemory bodies_;
  PinnedMemory pinned_;
  uint64_t version_ = 0;
  CodecStats stats_;
};

absl::Status CheckSpec(const CodecSpec& spec) {
  RETURN_IF_ERROR(ValidateCodec(spec));
  if (!spec.zstd()) return absl::OkStatus();
  return absl::UnimplementedError("zstd works on the host: MakeEncoder and MakeDecoder add it");
}

}  // namespace

bool BuiltWithCuda() { return true; }

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
  return std::make_unique<DirectEncoder>(std::move(codec), options, std::move(queue));
}

absl::StatusOr<std::unique_ptr<DeviceDecoder>> MakeDeviceDecoder(const CodecSpec& spec,
                                                                 const CodecOptions& options,
                                                                 void* stream) {
  RETURN_IF_ERROR(CheckSpec(spec));
  if (spec.kind() == CodecSpec::DELTA) return MakeDeviceDeltaDecoder(spec, options, stream);
  const SampleShape shape{options.positions, options.hidden};
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> codec,
                   MakeDeviceSampleCodec(spec, shape, options, Role::kDirect));
  ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> checker, MakeSampleCodec(spec, shape, options));
  ASSIGN_OR_RETURN(Queue queue, Queue::Make(stream));
  return std::make_unique<DirectDecoder>(std::move(codec), std::move(checker), options,
                                         std::move(queue));
}

}  // namespace isthmus::compress::cuda
