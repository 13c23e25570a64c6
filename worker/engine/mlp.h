// An MLP classifier: its parameters and its parts as functions of tensors. Hidden layers with ReLU,
// an output layer, no norms: a slice's products are scaled instead (proto/plan/deal.h), so nothing
// but the output's bias is shared between subnetworks, and a batch of one row has a sense.
// Functions throw what LibTorch throws. For worker/engine alone. Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_MLP_H_
#define ISTHMUS_WORKER_ENGINE_MLP_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "proto/job.pb.h"
#include "proto/plan/deal.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {

inline constexpr int kDenseTensors = 2;  // of a layer: weight, [in, out], and bias

// Of hidden layers [first_layer, end_layer), and of the output layer behind the last one. Initial
// weights are He's: normal with a variance of 2 / in, and 1 / in of the output layer. `held`: of a
// slice; empty: everything.
std::vector<ParameterSpec> MlpParameters(const ModelSpec& model, int first_layer, int end_layer,
                                         const Slice& held);

// ids: samples x inputs, int64, below kRowValues. Result: samples x 1 x inputs, fp32, from 0 to 1.
at::Tensor RowValues(const at::Tensor& ids);

// bias + scale x (x times weight): samples x 1 x out, fp32; products have the type of the weight.
// x: samples x 1 x in.
at::Tensor Dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 double scale);
// The same with ReLU.
at::Tensor HiddenLayer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       double scale);

// Rows whose target has the largest logit, int64. logits: samples x 1 x classes; targets: samples x
// 1.
at::Tensor CountCorrect(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_MLP_H_
