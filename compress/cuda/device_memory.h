// Memory of a device, pinned memory of the host, a stream: owned, and errors as Status.
//
// Both kinds of memory only grow; growing loses the content. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_MEMORY_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// `what` says what was tried. Out of memory is ResourceExhausted, no device FailedPrecondition.
absl::Status CudaStatus(int cuda_error, absl::string_view what);
absl::Status KernelStatus(Error error, absl::string_view what);

class DeviceMemory {
 public:
  absl::Status Reserve(int64_t bytes);
  uint8_t* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  std::unique_ptr<uint8_t, Free> data_;
  int64_t bytes_ = 0;
};

class PinnedMemory {
 public:
  absl::Status Reserve(int64_t bytes);
  char* data() const { return data_.get(); }
  bool Holds(absl::string_view text) const;

 private:
  struct Free {
    void operator()(char* p) const;
  };
  std::unique_ptr<char, Free> data_;
  int64_t bytes_ = 0;
};

// A stream of one's own, or a borrowed one. Its own is ordered with the legacy default stream, on
// which frameworks compute unless told otherwise.
class Queue {
 public:
  static absl::StatusOr<Queue> Make(Stream borrowed);
  Queue(Queue&& other) noexcept : stream_(other.stream_), mark_(other.mark_), owned_(other.owned_) {
    other.owned_ = false;
    other.mark_ = nullptr;
  }
  Queue& operator=(Queue&&) = delete;
  ~Queue();

  Stream stream() const { return stream_; }
  absl::Status ToHost(void* to, const void* from, int64_t bytes);
  absl::Status ToDevice(void* to, const void* from, int64_t bytes);
  // `rows` runs of `bytes`, each a pitch after the one before.
  absl::Status RowsToHost(void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                          int64_t bytes, int64_t rows);
  absl::Status RowsToDevice(void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                            int64_t bytes, int64_t rows);
  absl::Status Zero(void* at, int64_t bytes);
  absl::Status Wait();  // until everything queued is done; its first error

  absl::Status Mark();         // what is queued so far
  absl::Status WaitForMark();  // until that is done

 private:
  Queue(Stream stream, void* mark, bool owned) : stream_(stream), mark_(mark), owned_(owned) {}
  Stream stream_;
  void* mark_;  // a cudaEvent_t
  bool owned_;  // the stream
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_MEMORY_H_
