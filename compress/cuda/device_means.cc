#include "compress/cuda/device_means.h"

#include <algorithm>

#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/codecs/mean_table.h"

namespace isthmus::compress::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{4} << 20;

}  // namespace

void FrameKeys::Add(uint32_t key, uint32_t position) {
  const auto [found, is_new] = index_.emplace(key, keys_.size());
  if (is_new) {
    keys_.push_back(key);
    positions_.emplace_back();
  }
  positions_[found->second].push_back(position);
}

void FrameKeys::Clear() {
  index_.clear();
  keys_.clear();
  positions_.clear();
}

const float* DeviceMeans::Find(uint32_t key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : rows_[found->second];
}

absl::StatusOr<float*> DeviceMeans::NewRow(Queue* queue) {
  const int64_t row_bytes = std::max<int64_t>(4 * hidden_, 4);
  const int64_t slab_rows = std::max<int64_t>(kSlabBytes / row_bytes, 1);
  if (left_in_slab_ == 0) {
    DeviceMemory slab;
    RETURN_IF_ERROR(Annotate(slab.Reserve(slab_rows * row_bytes), "means of predict"));
    RETURN_IF_ERROR(queue->Zero(slab.data(), slab_rows * row_bytes));
    slabs_.push_back(std::move(slab));
    left_in_slab_ = slab_rows;
  }
  const int64_t row = slab_rows - left_in_slab_--;
  return reinterpret_cast<float*>(slabs_.back().data() + row * row_bytes);
}

absl::Status DeviceMeans::Move(uint32_t key, const float* sum, uint32_t count,
                               std::vector<MeanMove>* moves, Queue* queue) {
  auto found = index_.find(key);
  if (found == index_.end()) {
    if (static_cast<int64_t>(rows_.size()) == most_rows_) return absl::OkStatus();
    ASSIGN_OR_RETURN(float* row, NewRow(queue));
    found = index_.emplace(key, rows_.size()).first;
    rows_.push_back(row);
    updates_.push_back(0);
  }
  const uint32_t updates = ++updates_[found->second];
  MeanMove move;
  move.mean = rows_[found->second];
  move.sum = sum;
  move.rate = std::max(rate_, 1.0f / static_cast<float>(updates + patience_));
  move.count = static_cast<float>(count);
  moves->push_back(move);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> DeviceMeans::Download(Queue* queue) const {
  const size_t hidden = static_cast<size_t>(hidden_);
  std::vector<float> means(rows_.size() * hidden);
  for (size_t r = 0; r < rows_.size(); ++r)
    RETURN_IF_ERROR(queue->ToHost(means.data() + r * hidden, rows_[r], 4 * hidden_));
  RETURN_IF_ERROR(queue->Wait());
  return means;
}

absl::StatusOr<uint64_t> DeviceMeans::Hash(Queue* queue) const {
  ASSIGN_OR_RETURN(const std::vector<float> means, Download(queue));
  uint64_t hash = Hash64(means.data(), 4 * means.size());
  hash = Hash64(updates_.data(), 4 * updates_.size(), hash);
  for (const auto& [key, row] : index_) hash += Mix64((uint64_t{key} << 32) | row);
  return hash;
}

absl::Status DeviceMeans::Save(StateWriter* to, Queue* queue) const {
  std::vector<uint32_t> keys(rows_.size());
  for (const auto& [key, row] : index_) keys[row] = key;
  ASSIGN_OR_RETURN(const std::vector<float> means, Download(queue));
  to->Array(keys);
  to->Array(updates_);
  to->Array(means);
  return to->status();
}

absl::Status DeviceMeans::Load(StateReader* from, Queue* queue) {
  std::vector<float> means;
  const size_t hidden = static_cast<size_t>(hidden_);
  if (LoadMeanKeys(from, static_cast<size_t>(most_rows_), &index_)) {
    from->Array(index_.size(), "means", &updates_);
    from->Array(index_.size() * hidden, "means", &means);
  }
  RETURN_IF_ERROR(from->status());
  for (size_t r = 0; r < index_.size(); ++r) {
    ASSIGN_OR_RETURN(float* row, NewRow(queue));
    rows_.push_back(row);
    RETURN_IF_ERROR(queue->ToDevice(row, means.data() + r * hidden, 4 * hidden_));
  }
  return queue->Wait();
}

}  // namespace isthmus::compress::cuda
