#include "worker/corpus.h"

#include <numeric>
#include <utility>

#include "base/rng.h"

namespace isthmus::worker {

SampleOrder::SampleOrder(uint64_t seed, int64_t samples, int64_t global_batch)
    : seed_(seed), samples_(samples), global_batch_(global_batch) {}

int64_t SampleOrder::steps_per_epoch() const { return samples_ / global_batch_; }

std::vector<uint32_t> SampleOrder::Step(int64_t step) {
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    permutation_.resize(samples_);
    std::iota(permutation_.begin(), permutation_.end(), 0u);
    for (int64_t i = samples_ - 1; i > 0; --i) {  // Fisher-Yates
      std::swap(permutation_[i], permutation_[RandomBelow(seed_, epoch, i, i + 1)]);
    }
    epoch_ = epoch;
  }
  const auto begin = permutation_.begin() + (step - epoch * steps_per_epoch()) * global_batch_;
  return std::vector<uint32_t>(begin, begin + global_batch_);
}

}  // namespace isthmus::worker
