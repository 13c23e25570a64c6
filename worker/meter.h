// Counters of one end of one direction. Its inlet or outlet thread adds, the compute thread reads
// differences at each step. Thread: any.
#ifndef ISTHMUS_WORKER_METER_H_
#define ISTHMUS_WORKER_METER_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "compress/codec.h"

namespace isthmus::worker {

struct Meter {
  std::atomic<int64_t> codec_ns{0};    // encode or decode
  std::atomic<int64_t> raw_bytes{0};   // fp32 elements x 4 of the tensors sent
  std::atomic<int64_t> wire_bytes{0};  // Link::wire_bytes_sent, since the outlet started
  std::atomic<int64_t> key_frames{0};
  std::atomic<int64_t> buffer_memory_bytes{0};
  std::atomic<int64_t> buffer_disk_bytes{0};
  std::atomic<int64_t> late_buffer_reads{0};

  void Publish(const compress::CodecStats& stats) {
    key_frames = stats.key_frame_samples;
    buffer_memory_bytes = stats.buffer_memory_bytes;
    buffer_disk_bytes = stats.buffer_disk_bytes;
    late_buffer_reads = stats.late_buffer_reads;
  }
};

// Adds the time it lives to a sum of nanoseconds.
template <typename Sum>
class ScopedTimer {
 public:
  explicit ScopedTimer(Sum* sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~ScopedTimer() {
    *sum_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
  }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Sum* const sum_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_METER_H_
