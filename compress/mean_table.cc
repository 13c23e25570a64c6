#include "compress/mean_table.h"

#include <algorithm>

#include "base/hash.h"
#include "base/rng.h"

namespace isthmus::compress {

const float* MeanTable::Find(uint32_t key) const {
  const auto found = rows_.find(key);
  return found == rows_.end() ? nullptr : means_.data() + found->second * hidden_;
}

float* MeanTable::Add(uint32_t key) {
  const auto [found, is_new] = sum_of_.emplace(key, keys_.size());
  if (is_new) {
    keys_.push_back(key);
    counts_.push_back(0);
    sums_.resize(sums_.size() + hidden_, 0.0f);
  }
  ++counts_[found->second];
  return sums_.data() + found->second * hidden_;
}

void MeanTable::AddFrame(const MeanTable& other) {
  for (size_t k = 0; k < other.keys_.size(); ++k) {
    float* sum = Add(0);
    for (size_t i = 0; i < hidden_; ++i) sum[i] += other.sums_[k * hidden_ + i];
    counts_[sum_of_[0]] += other.counts_[k] - 1;
  }
}

void MeanTable::EndFrame() {
  for (size_t k = 0; k < keys_.size(); ++k) {
    auto found = rows_.find(keys_[k]);
    if (found == rows_.end()) {
      if (updates_.size() == most_rows_) continue;
      found = rows_.emplace(keys_[k], updates_.size()).first;
      updates_.push_back(0);
      means_.resize(means_.size() + hidden_, 0.0f);
    }
    float* mean = means_.data() + found->second * hidden_;
    const float* sum = sums_.data() + k * hidden_;
    const uint32_t updates = ++updates_[found->second];
    const float rate = std::max(rate_, 1.0f / static_cast<float>(updates + patience_));
    const float count = static_cast<float>(counts_[k]);
    for (size_t i = 0; i < hidden_; ++i) mean[i] += rate * (sum[i] / count - mean[i]);
  }
  sum_of_.clear();
  keys_.clear();
  counts_.clear();
  sums_.clear();
}

uint64_t MeanTable::Hash() const {
  uint64_t hash = Hash64(means_.data(), 4 * means_.size());
  hash = Hash64(updates_.data(), 4 * updates_.size(), hash);
  for (const auto& [key, row] : rows_) hash += Mix64((uint64_t{key} << 32) | row);
  return hash;
}

}  // namespace isthmus::compress
