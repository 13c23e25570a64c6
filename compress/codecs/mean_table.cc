#include "compress/codecs/mean_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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

void MeanTable::Save(StateWriter* to) const {
  std::vector<uint32_t> keys(updates_.size());
  for (const auto& [key, row] : rows_) keys[row] = key;
  to->Array(keys);
  to->Array(updates_);
  to->Array(means_);
}

bool LoadMeanKeys(StateReader* from, size_t most_rows, std::unordered_map<uint32_t, size_t>* rows) {
  const uint64_t count = from->Get<uint64_t>("means");
  if (from->ok() && count > most_rows)
    from->Fail(absl::InvalidArgumentError(
        absl::StrCat("the state has ", count, " means where at most ", most_rows, " have room")));
  for (uint64_t row = 0; row < count && from->ok(); ++row) {
    const uint32_t key = from->Get<uint32_t>("means");
    if (from->ok() && !rows->emplace(key, row).second)
      from->Fail(absl::InvalidArgumentError(absl::StrCat("the state has key ", key, " twice")));
  }
  return from->ok();
}

void MeanTable::Load(StateReader* from) {
  if (!LoadMeanKeys(from, most_rows_, &rows_)) return;
  from->Array(rows_.size(), "means", &updates_);
  from->Array(rows_.size() * hidden_, "means", &means_);
}

}  // namespace isthmus::compress
