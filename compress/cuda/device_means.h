// Rows of means in device memory, by key: the counterpart of compress/codecs/mean_table.h. Which
// key has a row, and how often it was moved, the host knows; the sums of a frame and the moves are
// kernels (predict.h). Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_MEANS_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_MEANS_H_

#include <unordered_map>
#include <vector>

#include "compress/cuda/device_memory.h"
#include "compress/cuda/kernels/predict.h"
#include "compress/state/state_io.h"

namespace isthmus::compress::cuda {

// The positions of a frame, by key, in order of appearance.
class FrameKeys {
 public:
  void Add(uint32_t key, uint32_t position);
  void Clear();
  const std::vector<uint32_t>& keys() const { return keys_; }
  const std::vector<uint32_t>& positions(size_t k) const { return positions_[k]; }

 private:
  std::unordered_map<uint32_t, size_t> index_;
  std::vector<uint32_t> keys_;
  std::vector<std::vector<uint32_t>> positions_;
};

class DeviceMeans {
 public:
  DeviceMeans(int64_t hidden, float rate, uint32_t patience, int64_t most_rows)
      : hidden_(hidden), rate_(rate), patience_(patience), most_rows_(most_rows) {}

  const float* Find(uint32_t key) const;  // device memory; null: no mean of it
  // Appends the move of a key's row, which is made if there is room, towards `sum` / `count`.
  absl::Status Move(uint32_t key, const float* sum, uint32_t count, std::vector<MeanMove>* moves,
                    Queue* queue);
  // Equal to MeanTable's over the same means. Copies all of them to the host.
  absl::StatusOr<uint64_t> Hash(Queue* queue) const;
  // In MeanTable's bytes; Load into an empty one.
  absl::Status Save(StateWriter* to, Queue* queue) const;
  absl::Status Load(StateReader* from, Queue* queue);

 private:
  absl::StatusOr<std::vector<float>> Download(Queue* queue) const;
  absl::StatusOr<float*> NewRow(Queue* queue);  // zeros

  const int64_t hidden_;
  const float rate_;
  const uint32_t patience_;
  const int64_t most_rows_;
  std::unordered_map<uint32_t, size_t> index_;  // key -> row
  std::vector<float*> rows_;
  std::vector<uint32_t> updates_;  // per row
  std::vector<DeviceMemory> slabs_;
  int64_t left_in_slab_ = 0;
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_MEANS_H_
