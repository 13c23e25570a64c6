// Lazy watch: at the upper end of a boundary whose gradients go by lep(...), how far the error that
// one micro-batch leaves is orthogonal to what is multiplied with it (Optimus-CC, figure 11).
//
// With g'_i = g_i + e_(i-1) - e_i the gradient of the weights below is off by the sum of
// (x_i - x_(i+1))^T e_i: nothing, where activations of neighbouring micro-batches are alike, or
// their difference is orthogonal to the error. The last error of a step meets the first gradient
// of the next one.
//
// The inlet tells of each activation before the compute thread has it, the outlet of each gradient.
// At most kMostPositions positions of a sample are looked at, evenly spread, so that it costs a few
// percent of the codec's time; that many of the activations under way are kept. Thread: Activation
// on the inlet's, Before and After on the outlet's, Take on any.
#ifndef ISTHMUS_WORKER_LINK_LAZY_WATCH_H_
#define ISTHMUS_WORKER_LINK_LAZY_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/mutex.h"
#include "compress/codec.h"
#include "proto/control.pb.h"
#include "worker/tensor.h"

namespace isthmus::worker {

class LazyWatch {
 public:
  static constexpr int64_t kMostPositions = 8;

  // `limit`: most activations that are kept at once; of more, nothing is learned.
  explicit LazyWatch(size_t limit) : limit_(limit) {}

  void Activation(int64_t step, int32_t micro, const Tensor& x);

  // Around the encoding of a gradient by lep; `coded` false: it goes past the codec, and its
  // activation is forgotten.
  void Before(int64_t step, int32_t micro, bool coded, const compress::TensorView& gradient,
              const compress::Encoder& encoder);
  void After(int64_t step, const compress::Encoder& encoder);

  // Means over the coded gradients of `step`, without the link's name; asked for once. Nothing:
  // there were none, or no error met a difference yet.
  std::optional<LazyError> Take(int64_t step);

 private:
  struct Sums {  // of a frame
    double dot = 0, error_squares = 0, difference_squares = 0;
    double errors = 0, differences = 0, elements = 0;
    double wanted_squares = 0, left_squares = 0;
  };
  struct Means {  // of a step
    double cosine = 0, error = 0, difference = 0, relative = 0;
    int64_t cosines = 0, relatives = 0;
  };

  // Calls `row(first element of the sample's row, first element of the kept row)` for each position
  // that is looked at.
  void ForRows(const TensorDims& dims, const std::function<void(int64_t, int64_t)>& row) const;
  void Compare(int64_t sample, const TensorDims& dims, absl::Span<const float> x,
               absl::Span<const float> e);

  const size_t limit_;
  Mutex mutex_;
  std::map<std::pair<int64_t, int32_t>, std::vector<float>> activations_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Means> means_ ABSL_GUARDED_BY(mutex_);
  // The outlet's.
  std::vector<std::vector<float>> last_;  // by place in a frame: the activation coded before
  TensorDims dims_;                       // of the gradient under way
  Sums sums_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_LAZY_WATCH_H_
