// A tensor at the edge of a stage: fp32, row-major samples x positions x hidden, host memory, owned
// and moved, never shared. Thread: a value; one owner at a time.
#ifndef ISTHMUS_WORKER_TENSOR_H_
#define ISTHMUS_WORKER_TENSOR_H_

#include <vector>

#include "proto/codec/codec_size.h"

namespace isthmus::worker {

struct Tensor {
  TensorDims dims;
  std::vector<float> data;  // dims.elements() long

  static Tensor Zeros(TensorDims dims) { return Tensor{dims, std::vector<float>(dims.elements())}; }
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_TENSOR_H_
