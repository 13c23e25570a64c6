#include "compress/cuda/device_store.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/status.h"
#include "compress/cuda/device_codec.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{64} << 20;
constexpr int64_t kPitch = 256;  // of buffers in a slab

int64_t PitchOf(int64_t bytes) {
  return std::max<int64_t>((bytes + kPitch - 1) / kPitch, 1) * kPitch;
}

void FreePinned(uint16_t* words) { cudaFreeHost(words); }

// Copies on a stream of their own, behind what the owner's queue holds when they are queued.
class CudaFarMemory : public FarMemory {
 public:
  // Buffers of `bytes`, of which `entries` are wanted soon.
  static absl::StatusOr<std::unique_ptr<CudaFarMemory>> Make(int64_t bytes, int64_t entries,
                                                             Queue* owner) {
    std::unique_ptr<CudaFarMemory> far(new CudaFarMemory(bytes, entries, owner));
    RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&far->copies_, cudaStreamNonBlocking),
                               "CUDA stream of delta buffers"));
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&far->fence_, cudaEventDisableTiming),
                               "CUDA event of delta buffers"));
    return far;
  }
  ~CudaFarMemory() override {
    for (cudaEvent_t event : under_way_) cudaEventDestroy(event);
    for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
    if (fence_ != nullptr) cudaEventDestroy(fence_);
    if (copies_ != nullptr) cudaStreamDestroy(copies_);
  }

  absl::StatusOr<uint16_t*> Allocate() override {
    if (left_in_slab_ == 0) {
      const int64_t entries =
          std::clamp<int64_t>(kSlabBytes / pitch_, 1, std::max<int64_t>(wanted_, 1));
      DeviceMemory slab;
      RETURN_IF_ERROR(Annotate(slab.Reserve(entries * pitch_), "delta buffers"));
      slabs_.push_back(std::move(slab));
      left_in_slab_ = slab_entries_ = entries;
      wanted_ -= entries;
    }
    const int64_t entry = slab_entries_ - left_in_slab_--;
    return reinterpret_cast<uint16_t*>(slabs_.back().data() + entry * pitch_);
  }

  // Where the host has no pinned memory left, plain memory: copies wait then, and are as right.
  HostBuffer AllocateHost() override {
    void* pinned = nullptr;
    if (cudaMallocHost(&pinned, static_cast<size_t>(std::max<int64_t>(bytes_, 2))) == cudaSuccess)
      return HostBuffer(static_cast<uint16_t*>(pinned), FreeBuffer{FreePinned});
    cudaGetLastError();  // the next call must not see it again
    return NewHostBuffer((bytes_ + 1) / 2);
  }

  absl::StatusOr<uint64_t> ToHost(uint16_t* host, const uint16_t* device) override {
    return Copy(host, device, cudaMemcpyDeviceToHost);
  }
  absl::StatusOr<uint64_t> ToDevice(uint16_t* device, const uint16_t* host) override {
    return Copy(device, host, cudaMemcpyHostToDevice);
  }

  bool Done(uint64_t ticket) override {
    while (!under_way_.empty() && cudaEventQuery(under_way_.front()) == cudaSuccess) {
      free_events_.push_back(under_way_.front());
      under_way_.pop_front();
      ++done_;
    }
    cudaGetLastError();  // "not ready" is none
    return ticket <= done_;
  }
  absl::Status Await(uint64_t ticket) override {
    if (Done(ticket)) return absl::OkStatus();
    RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(EventOf(ticket)), "copy of a delta buffer"));
    Done(ticket);
    return absl::OkStatus();
  }
  absl::Status Follow(uint64_t ticket) override {
    if (Done(ticket)) return absl::OkStatus();
    return CudaStatus(
        cudaStreamWaitEvent(static_cast<cudaStream_t>(owner_->stream()), EventOf(ticket), 0),
        "copy of a delta buffer");
  }

 private:
  CudaFarMemory(int64_t bytes, int64_t entries, Queue* owner)
      : bytes_(bytes), pitch_(PitchOf(bytes)), owner_(owner), wanted_(entries) {}

  cudaEvent_t EventOf(uint64_t ticket) const { return under_way_[ticket - done_ - 1]; }

  absl::StatusOr<uint64_t> Copy(void* to, const void* from, cudaMemcpyKind kind) {
    const char* what = "copy of a delta buffer";
    cudaEvent_t event = nullptr;
    if (free_events_.empty()) {
      RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), what));
      free_events_.push_back(event);
    }
    event = free_events_.back();
    RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(fence_, static_cast<cudaStream_t>(owner_->stream())), what));
    RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(copies_, fence_, 0), what));
    if (bytes_ > 0)
      RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes_), kind, copies_), what));
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, copies_), what));
    free_events_.pop_back();
    under_way_.push_back(event);
    return done_ + under_way_.size();
  }

  const int64_t bytes_, pitch_;
  Queue* const owner_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t fence_ = nullptr;
  std::deque<cudaEvent_t> under_way_;  // of tickets done_ + 1 and on
  std::vector<cudaEvent_t> free_events_;
  uint64_t done_ = 0;
  std::vector<DeviceMemory> slabs_;
  int64_t wanted_, slab_entries_ = 0, left_in_slab_ = 0;
};

absl::StatusOr<int64_t> DeviceBytes(const CodecOptions& options) {
  if (options.device_buffer_bytes > 0) return options.device_buffer_bytes;
  ASSIGN_OR_RETURN(const int64_t free, FreeDeviceBytes());
  return free / 8;
}

}  // namespace

absl::StatusOr<DeviceBuffers> DeviceBuffers::Make(int bits, const SampleShape& shape,
                                                  const CodecOptions& options) {
  CodecSpec delta;
  delta.set_kind(CodecSpec::DELTA);
  delta.set_buffer_bits(bits);
  const int64_t words = BufferBytes(delta, 1, shape.positions, shape.hidden) / 2;
  if (bits == 0) return DeviceBuffers(shape, words, nullptr);
  CodecSpec quant;
  quant.set_kind(CodecSpec::QUANT);
  quant.set_bits(bits);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> codec,
                   MakeDeviceSampleCodec(quant, shape, options, Role::kDirect));
  return DeviceBuffers(shape, words, std::move(codec));
}

int64_t DeviceBuffers::device_bytes() const {
  return quant_ != nullptr ? quant_->device_bytes() : 2 * words_;
}

std::vector<DeviceTiers::Piece> DeviceBuffers::pieces() const {
  if (quant_ == nullptr) return {{0, 2 * words_}};
  std::vector<DeviceTiers::Piece> pieces;
  for (const Segment& segment : quant_->segments()) pieces.push_back({segment.at, segment.bytes});
  return pieces;
}

absl::Status DeviceBuffers::Reserve(size_t samples) {
  if (quant_ == nullptr) return absl::OkStatus();
  return opened_.Reserve(16 + static_cast<int64_t>(samples) * 2 * elements_);
}

uint16_t* DeviceBuffers::Opened(const Stored& stored) const {
  if (quant_ == nullptr || stored.at == nullptr) return stored.at;
  return reinterpret_cast<uint16_t*>(opened_.data() + 16) +
         static_cast<int64_t>(stored.sample) * elements_;
}

absl::Status DeviceBuffers::Open(absl::Span<const Stored> buffers, Queue* queue) {
  if (quant_ == nullptr || buffers.empty()) return absl::OkStatus();
  std::vector<DecodeJob> jobs;
  for (const Stored& stored : buffers)
    jobs.push_back({reinterpret_cast<const uint8_t*>(stored.at), nullptr, Opened(stored)});
  const std::vector<SampleInfo> infos(jobs.size());
  return quant_->Decode(DType::kBf16, jobs, infos, nullptr, queue);
}

absl::Status DeviceBuffers::Close(absl::Span<const Stored> buffers, Queue* queue) {
  if (quant_ == nullptr || buffers.empty()) return absl::OkStatus();
  std::vector<EncodeJob> jobs;
  for (const Stored& stored : buffers) {
    EncodeJob job;
    job.a = Opened(stored);
    job.body = reinterpret_cast<uint8_t*>(stored.at);
    job.not_finite = reinterpret_cast<uint32_t*>(opened_.data());
    jobs.push_back(job);
  }
  const std::vector<SampleInfo> infos(jobs.size());
  return quant_->Encode(DType::kBf16, jobs, infos, queue);
}

absl::StatusOr<std::unique_ptr<MessageStore>> MakeDeviceStore(const DeviceBuffers& buffers,
                                                              const CodecOptions& options,
                                                              Queue* queue) {
  DeviceTiers::Options tiers;
  tiers.words = buffers.words();
  tiers.device_words = (buffers.device_bytes() + 1) / 2;
  tiers.pieces = buffers.pieces();
  tiers.spill_directory = options.spill_directory;
  ASSIGN_OR_RETURN(const int64_t device_bytes, DeviceBytes(options));
  tiers.device_entries = device_bytes / PitchOf(2 * tiers.device_words);
  MessageStore::Options store;
  store.entry_elements = buffers.words();
  store.memory_bytes = options.buffer_memory_bytes;
  store.disk_bytes = options.buffer_disk_bytes;
  store.distinct_samples = options.distinct_samples;
  store.spill_directory = options.spill_directory;
  store.make_home =
      [tiers, queue](const BufferLayout& layout) -> absl::StatusOr<std::unique_ptr<BufferHome>> {
    DeviceTiers::Options with_layout = tiers;
    with_layout.layout = layout;
    const int64_t entries = std::min(tiers.device_entries, layout.memory_entries);
    ASSIGN_OR_RETURN(std::unique_ptr<CudaFarMemory> far,
                     CudaFarMemory::Make(2 * tiers.device_words, entries, queue));
    return DeviceTiers::Make(std::move(with_layout), std::move(far));
  };
  return MessageStore::Make(store);
}

}  // namespace isthmus::compress::cuda
