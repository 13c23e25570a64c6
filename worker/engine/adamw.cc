#include "worker/engine/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace isthmus::engine {
namespace {

constexpr int64_t kGrain = 32768;

// What does not change from element to element, in the arithmetic of the loop.
struct Factors {
  float gradient_scale, beta1, beta1_rest, beta2, beta2_rest, keep, step_size, root_scale, epsilon;
};

Factors MakeFactors(const AdamWOptions& o, const AdamWStep& s, bool decay) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(s.step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(s.step));
  Factors f;
  f.gradient_scale = static_cast<float>(s.gradient_scale);
  f.beta1 = static_cast<float>(o.beta1);
  f.beta1_rest = static_cast<float>(1 - o.beta1);
  f.beta2 = static_cast<float>(o.beta2);
  f.beta2_rest = static_cast<float>(1 - o.beta2);
  f.keep = decay ? static_cast<float>(1 - s.learning_rate * o.weight_decay) : 1.0f;
  f.step_size = static_cast<float>(s.learning_rate / correction1);
  f.root_scale = static_cast<float>(1 / std::sqrt(correction2));
  f.epsilon = static_cast<float>(o.epsilon);
  return f;
}

void UpdateRange(const Factors& f, const float* __restrict__ gradient, float* __restrict__ weight,
                 float* __restrict__ avg, float* __restrict__ avg_sq, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * f.gradient_scale;
    const float m = f.beta1 * avg[i] + f.beta1_rest * g;
    const float v = f.beta2 * avg_sq[i] + f.beta2_rest * g * g;
    avg[i] = m;
    avg_sq[i] = v;
    weight[i] = weight[i] * f.keep - f.step_size * (m / (std::sqrt(v) * f.root_scale + f.epsilon));
  }
}

void UpdateOnHost(const Factors& f, const at::Tensor& gradient, const at::Tensor& weight,
                  AdamWState* state) {
  const float* g = gradient.data_ptr<float>();
  float* w = weight.data_ptr<float>();
  float* m = state->exp_avg.data_ptr<float>();
  float* v = state->exp_avg_sq.data_ptr<float>();
  at::parallel_for(0, weight.numel(), kGrain, [&](int64_t begin, int64_t end) {
    UpdateRange(f, g + begin, w + begin, m + begin, v + begin, end - begin);
  });
}

void UpdateOnDevice(const Factors& f, at::Tensor gradient, at::Tensor weight, AdamWState* state) {
  gradient.mul_(f.gradient_scale);
  state->exp_avg.mul_(f.beta1).add_(gradient, f.beta1_rest);
  state->exp_avg_sq.mul_(f.beta2).addcmul_(gradient, gradient, f.beta2_rest);
  const at::Tensor root = state->exp_avg_sq.sqrt().mul_(f.root_scale).add_(f.epsilon);
  weight.mul_(f.keep).addcdiv_(state->exp_avg, root, -f.step_size);
}

}  // namespace

AdamWState ZeroState(const at::Tensor& parameter, bool on_host) {
  const at::TensorOptions options =
      on_host ? at::TensorOptions().dtype(at::kFloat) : parameter.options();
  return {at::zeros(parameter.sizes(), options), at::zeros(parameter.sizes(), options)};
}

void AdamWUpdate(const AdamWOptions& options, const AdamWStep& step, bool decay,
                 const at::Tensor& gradient, at::Tensor parameter, AdamWState* state) {
  const c10::AutoGradMode no_gradients(false);
  const Factors factors = MakeFactors(options, step, decay);
  const at::Tensor g = gradient.defined() ? gradient.contiguous() : at::zeros_like(parameter);
  if (!state->exp_avg.device().is_cpu()) {
    UpdateOnDevice(factors, g, parameter, state);
  } else if (parameter.device().is_cpu()) {
    UpdateOnHost(factors, g, parameter, state);
  } else {
    const at::Tensor copy = parameter.cpu();
    UpdateOnHost(factors, g.cpu(), copy, state);
    parameter.copy_(copy);
  }
}

double SumOfSquares(const at::Tensor& gradient) {
  const c10::AutoGradMode no_gradients(false);
  if (!gradient.device().is_cpu()) return at::sum(at::square(gradient), at::kDouble).item<double>();
  const at::Tensor g = gradient.contiguous();
  const float* data = g.data_ptr<float>();
  const int64_t n = g.numel(), blocks = (n + kGrain - 1) / kGrain;
  std::vector<double> sums(blocks);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      double lanes[8] = {};
      const int64_t stop = std::min(n, (b + 1) * kGrain);
      int64_t i = b * kGrain;
      for (; i + 8 <= stop; i += 8) {
        for (int k = 0; k < 8; ++k) lanes[k] += static_cast<double>(data[i + k]) * data[i + k];
      }
      for (; i < stop; ++i) lanes[0] += static_cast<double>(data[i]) * data[i];
      for (double lane : lanes) sums[b] += lane;
    }
  });
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

}  // namespace isthmus::engine
