#include "worker/engine/reference_block.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"
#include "worker/engine/blocks.h"
#include "worker/engine/device_graph.h"
#include "worker/engine/device_memory.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr double kSlowFlopsPerS = 8e9;
constexpr int kMinRounds = 3;
constexpr int kMaxRounds = 1000;
constexpr int kReplays = 8;  // of recorded passes between two looks at the clock

// Waits for a GPU: its results are there when this returns.
void Settle(const at::Tensor& t) {
  if (!t.device().is_cpu()) t.detach().flatten().narrow(0, 0, 1).cpu();
}

double Median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double MeasureProduct(c10::Device device) {
  constexpr int64_t kSide = 512;
  const at::Tensor a =
      at::full({kSide, kSide}, 0.5, at::TensorOptions().dtype(at::kFloat).device(device));
  Settle(at::mm(a, a));
  std::vector<double> seconds;
  for (int i = 0; i < kMinRounds; ++i) {
    const Clock::time_point start = Clock::now();
    Settle(at::mm(a, a));
    seconds.push_back(Seconds(start, Clock::now()));
  }
  return 2.0 * kSide * kSide * kSide / std::max(1e-9, Median(seconds));
}

// What a round queues, and how it is waited for.
struct Passes {
  std::function<void()> forward, backward, settle_forward, settle_backward;
};

struct PassSeconds {
  double forward = 0, backward = 0;
};

// As a GPU's stage runs its passes (recorded_passes.h), so that launches don't count.
struct Recorded {
  std::unique_ptr<DeviceGraph> forward, backward;  // null: there are none for this device
};

Recorded Record(c10::Device device, const Passes& passes) {
  Recorded recorded{DeviceGraph::Make(device), DeviceGraph::Make(device)};
  if (recorded.forward == nullptr) return recorded;
  recorded.forward->Record(passes.forward, nullptr);
  recorded.backward->Record(passes.backward, recorded.forward.get());
  return recorded;
}

PassSeconds TimeOnce(const Passes& passes) {
  const Clock::time_point start = Clock::now();
  passes.forward();
  passes.settle_forward();
  const Clock::time_point middle = Clock::now();
  passes.backward();
  passes.settle_backward();
  return {Seconds(start, middle), Seconds(middle, Clock::now())};
}

// Several in a row, so that waiting counts little. A backward pass is replayed behind a forward
// one, whose memory it uses.
PassSeconds TimeReplays(const Passes& passes, const Recorded& recorded) {
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kReplays; ++i) recorded.forward->Replay();
  passes.settle_forward();
  const Clock::time_point middle = Clock::now();
  for (int i = 0; i < kReplays; ++i) {
    recorded.forward->Replay();
    recorded.backward->Replay();
  }
  passes.settle_backward();
  const double forward = Seconds(start, middle) / kReplays,
               both = Seconds(middle, Clock::now()) / kReplays;
  return {forward, std::max(both - forward, forward / 10)};  // the clock may have been disturbed
}

absl::StatusOr<ReferenceBlock> Measure(c10::Device device, bool on_gpu, absl::Duration box,
                                       const std::function<bool()>& cancelled) {
  const ModelSpec model = ReferenceModel(on_gpu);
  const PartCost cost = BlockCost(model, kReferenceSamples);
  ReferenceBlock result;
  result.forward_flops = cost.forward_flops;
  result.backward_flops = cost.backward_flops;
  result.product_flops_per_s = MeasureProduct(device);
  result.warning = device.is_cpu() ? SlowBlasWarning(result.product_flops_per_s) : "";

  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(device);
  std::vector<at::Tensor> p;
  // The block alone: the layer in the middle of a model of three.
  ModelSpec three = model;
  three.set_layers(3);
  for (const ParameterSpec& spec : StageParameters(three, 1, 2)) {
    const at::Tensor host = at::full(spec.shape, 0.0, at::TensorOptions().dtype(at::kFloat));
    FillInitial(spec, 1, host.data_ptr<float>());
    const bool norm = absl::StrContains(spec.name, ".ln_");
    p.push_back(host.to(device, on_gpu && !norm ? at::kBFloat16 : at::kFloat).requires_grad_(true));
  }
  const BlockWeights weights{p[0], p[1], p[2], p[3], p[4],  p[5],
                             p[6], p[7], p[8], p[9], p[10], p[11]};
  const at::Tensor mask =
      CausalMask(model.context(), options.dtype(on_gpu ? at::kBFloat16 : at::kFloat));
  const at::Tensor x = at::full({kReferenceSamples, model.context(), model.hidden()}, 0.25, options)
                           .requires_grad_(true);
  at::Tensor y;
  Passes passes;
  passes.forward = [&] { y = Block(x, weights, {model.heads()}, mask, NormEpsilon(model)); };
  passes.backward = [&] { y.backward(at::ones_like(y)); };
  passes.settle_forward = [&] { Settle(y); };
  passes.settle_backward = [&] { Settle(x.grad()); };
  Recorded recorded;
  std::vector<double> forward, backward;
  const Clock::time_point begin = Clock::now();
  for (int round = 0;
       round < kMaxRounds && (round <= kMinRounds || absl::FromChrono(Clock::now() - begin) < box);
       ++round) {
    if (cancelled != nullptr && cancelled())
      return absl::CancelledError("the reference block was not measured to its end");
    const PassSeconds seconds =
        recorded.forward != nullptr ? TimeReplays(passes, recorded) : TimeOnce(passes);
    if (round == 0) {  // cold
      recorded = Record(device, passes);
      continue;
    }
    forward.push_back(seconds.forward);
    backward.push_back(seconds.backward);
  }
  result.forward_s = Median(forward);
  result.backward_s = Median(backward);
  return result;
}

}  // namespace

ModelSpec ReferenceModel(bool on_gpu) {
  ModelSpec m;
  m.set_family("gpt2");
  m.set_layers(1);
  m.set_hidden(on_gpu ? 768 : 256);
  m.set_heads(on_gpu ? 12 : 4);
  m.set_context(on_gpu ? 1024 : 128);
  m.set_vocabulary(256);
  return m;
}

absl::StatusOr<ReferenceBlock> MeasureReferenceBlock(const EngineOptions& options,
                                                     absl::Duration box,
                                                     const std::function<bool()>& cancelled) {
  return Guarded("reference block", [&]() -> absl::StatusOr<ReferenceBlock> {
    ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(options.device));
    SetThreads(options.threads);
    if (!device.is_cpu()) {
      UseArithmetic(Precision::kBf16, /*deterministic=*/false);
      UseOwnStream(device);
    }
    absl::StatusOr<ReferenceBlock> block =
        Measure(device, !device.is_cpu() || options.as_on_gpu, box, cancelled);
    if (!device.is_cpu()) ReleaseDeviceMemory();
    return block;
  });
}

std::string SlowBlasWarning(double product_flops_per_s) {
  if (product_flops_per_s >= kSlowFlopsPerS) return "";
  return absl::StrFormat(
      "matrix products run at %.1f GFLOP/s here: this host uses a slow BLAS or is busy. On Debian "
      "or Ubuntu: apt-get install libopenblas0-pthread "
      "(and check `update-alternatives --display libblas.so.3-x86_64-linux-gnu`)",
      product_flops_per_s / 1e9);
}

}  // namespace isthmus::engine
