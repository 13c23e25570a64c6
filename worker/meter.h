// Counters of one end of one direction. Its inlet or outlet thread adds; readings and their
// differences are for step records. Thread: any.
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
  std::atomic<int64_t> trains{0};  // received, see Frame
  std::atomic<int64_t> train_bytes{0};
  std::atomic<int64_t> train_ns{0};

  void AddTrain(int64_t bytes, std::chrono::nanoseconds time) {
    trains += bytes > 0;
    train_bytes += bytes;
    train_ns += time.count();
  }
  void Publish(const compress::CodecStats& stats) {
    key_frames = stats.key_frame_samples;
    buffer_memory_bytes = stats.buffer_memory_bytes;
    buffer_disk_bytes = stats.buffer_disk_bytes;
    late_buffer_reads = stats.late_buffer_reads;
  }
};

// What a meter says at a moment, or came to between two.
struct Reading {
  int64_t codec_ns = 0;
  int64_t raw_bytes = 0;
  int64_t wire_bytes = 0;
  int64_t key_frames = 0;
  int64_t late_buffer_reads = 0;
  int64_t trains = 0;
  int64_t train_bytes = 0;
  int64_t train_ns = 0;

  Reading() = default;
  explicit Reading(const Meter& m)
      : codec_ns(m.codec_ns),
        raw_bytes(m.raw_bytes),
        wire_bytes(m.wire_bytes),
        key_frames(m.key_frames),
        late_buffer_reads(m.late_buffer_reads),
        trains(m.trains),
        train_bytes(m.train_bytes),
        train_ns(m.train_ns) {}
  // Adds what came between two readings.
  void Add(const Reading& now, const Reading& before) {
    codec_ns += now.codec_ns - before.codec_ns;
    raw_bytes += now.raw_bytes - before.raw_bytes;
    wire_bytes += now.wire_bytes - before.wire_bytes;
    key_frames += now.key_frames - before.key_frames;
    late_buffer_reads += now.late_buffer_reads - before.late_buffer_reads;
    trains += now.trains - before.trains;
    train_bytes += now.train_bytes - before.train_bytes;
    train_ns += now.train_ns - before.train_ns;
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
