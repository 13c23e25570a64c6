#include "worker/engine/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "worker/engine/adamw_factors.h"
#include "worker/engine/cuda/kernels.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr int64_t kGrain = 32768;
constexpr int64_t kSlice = int64_t{1} << 24;

AdamWFactors MakeFactors(const AdamWOptions& o, const AdamWStep& s, bool decay) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(s.step));
  const int64_t seen = s.frozen_after > 0 ? std::min(s.step, s.frozen_after) : s.step;
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(seen));
  AdamWFactors f;
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

void UpdateRange(const AdamWFactors& f, const float* __restrict__ gradient,
                 float* __restrict__ weight, float* __restrict__ avg, float* __restrict__ avg_sq,
                 int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * f.gradient_scale;
    const float m = f.beta1 * avg[i] + f.beta1_rest * g;
    const float v = f.beta2 * avg_sq[i] + f.beta2_rest * g * g;
    avg[i] = m;
    avg_sq[i] = v;
    weight[i] = weight[i] * f.keep - f.step_size * (m / (std::sqrt(v) * f.root_scale + f.epsilon));
  }
}

// With v as it is; most: MostOfRate.
void UpdateFrozenRange(const AdamWFactors& f, float most, const float* __restrict__ moment,
                       float* __restrict__ weight, float* __restrict__ avg,
                       const float* __restrict__ avg_sq, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float m = moment[i] * f.gradient_scale;
    avg[i] = m;
    const float ratio = m / (std::sqrt(avg_sq[i]) * f.root_scale + f.epsilon);
    weight[i] = weight[i] * f.keep - f.step_size * std::min(std::max(ratio, -most), most);
  }
}

// `most`: not 0 where v is frozen.
void UpdateOnHost(const AdamWFactors& f, float most, const at::Tensor& gradient,
                  const at::Tensor& weight, AdamWState* state) {
  const float* g = gradient.data_ptr<float>();
  float* w = weight.data_ptr<float>();
  float* m = state->exp_avg.data_ptr<float>();
  float* v = state->exp_avg_sq.data_ptr<float>();
  at::parallel_for(0, weight.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (most == 0) {
      UpdateRange(f, g + begin, w + begin, m + begin, v + begin, end - begin);
    } else {
      UpdateFrozenRange(f, most, g + begin, w + begin, m + begin, v + begin, end - begin);
    }
  });
}

// The loop above in operators of LibTorch: each rounds once, as a line of the loop does. Slices
// bound the memory of what lies between.
void UpdateInOperators(const AdamWFactors& f, const at::Tensor& gradient, at::Tensor weight,
                       at::Tensor avg, at::Tensor avg_sq) {
  const at::Tensor g = at::mul(gradient, f.gradient_scale);
  avg.mul_(f.beta1).add_(at::mul(g, f.beta1_rest));
  avg_sq.mul_(f.beta2).add_(at::mul(g, f.beta2_rest).mul_(g));
  const at::Tensor root = at::sqrt(avg_sq).mul_(f.root_scale).add_(f.epsilon);
  weight.mul_(f.keep).sub_(at::div(avg, root).mul_(f.step_size));
}

void UpdateFrozenInOperators(const AdamWFactors& f, float most, const at::Tensor& moment,
                             at::Tensor weight, at::Tensor avg, const at::Tensor& avg_sq) {
  avg.copy_(at::mul(moment, f.gradient_scale));
  const at::Tensor root = at::sqrt(avg_sq).mul_(f.root_scale).add_(f.epsilon);
  weight.mul_(f.keep).sub_(at::div(avg, root).clamp_(-most, most).mul_(f.step_size));
}

void UpdateOnDevice(const AdamWFactors& f, float most, const at::Tensor& gradient,
                    const at::Tensor& parameter, AdamWState* state) {
  const at::Tensor g = gradient.view({-1}), w = parameter.view({-1}), m = state->exp_avg.view({-1}),
                   v = state->exp_avg_sq.view({-1});
  if (HaveKernels() && most == 0) {
    ThrowIf(AdamWKernel(QueueOf(w.device()), f, g.data_ptr<float>(), w.data_ptr<float>(),
                        m.data_ptr<float>(), v.data_ptr<float>(), w.numel()),
            "AdamW");
    return;
  }
  for (int64_t at = 0; at < w.numel(); at += kSlice) {
    const int64_t n = std::min(kSlice, w.numel() - at);
    const auto part = [&](const at::Tensor& run) { return run.narrow(0, at, n); };
    if (most == 0) {
      UpdateInOperators(f, part(g), part(w), part(m), part(v));
    } else {
      UpdateFrozenInOperators(f, most, part(g), part(w), part(m), part(v));
    }
  }
}

}  // namespace

double MostOfRate(const AdamWOptions& o) {
  return (1 - o.beta1) / std::sqrt((1 - o.beta2) * (1 - o.beta1 * o.beta1 / o.beta2));
}

AdamWState ZeroState(const at::Tensor& parameter) {
  return {at::zeros_like(parameter), at::zeros_like(parameter)};
}

void AdamWUpdate(const AdamWOptions& options, const AdamWStep& step, bool decay,
                 const at::Tensor& gradient, at::Tensor parameter, AdamWState* state) {
  const c10::AutoGradMode no_gradients(false);
  const AdamWFactors factors = MakeFactors(options, step, decay);
  const at::Tensor g = gradient.defined() ? gradient.contiguous() : at::zeros_like(parameter);
  const float most = step.frozen_after > 0 ? static_cast<float>(MostOfRate(options)) : 0.0f;
  if (parameter.device().is_cpu()) {
    UpdateOnHost(factors, most, g, parameter, state);
  } else {
    UpdateOnDevice(factors, most, g, parameter, state);
  }
}

void AdamWUpdateInOperators(const AdamWOptions& options, const AdamWStep& step, bool decay,
                            const at::Tensor& gradient, at::Tensor parameter, AdamWState* state) {
  const c10::AutoGradMode no_gradients(false);
  const AdamWFactors factors = MakeFactors(options, step, decay);
  if (step.frozen_after == 0) {
    UpdateInOperators(factors, gradient, std::move(parameter), state->exp_avg, state->exp_avg_sq);
  } else {
    UpdateFrozenInOperators(factors, static_cast<float>(MostOfRate(options)), gradient,
                            std::move(parameter), state->exp_avg, state->exp_avg_sq);
  }
}

void Extrapolate(const at::Tensor& after, double share, at::Tensor before) {
  const c10::AutoGradMode no_gradients(false);
  before.mul_(-share).add_(at::mul(after, 1 + share));
}

double SumOfSquares(const at::Tensor& gradient) {
  const c10::AutoGradMode no_gradients(false);
  if (!gradient.device().is_cpu()) {
    const double norm = at::linalg_vector_norm(gradient, 2).item<float>();
    return norm * norm;
  }
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
