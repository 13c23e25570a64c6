#include "proto/model/model_cost.h"

#include <algorithm>
#include <cmath>

#include "proto/job/job_defaults.h"
#include "proto/model/family.h"

namespace isthmus {
namespace {

// Of the parameters' bytes, in fp32.
constexpr int64_t kTrainedCopies = 4;  // weights, gradients, two moments

// Of a block's parameters, in vectors of the width: two norms, two biases of projections onto the
// residual stream. No slice is without them.
constexpr int64_t kSharedVectors = 6;

// Elementwise operations a value, roughly: the point is their order of magnitude beside the matrix
// products of small models.
constexpr double kNormOps = 8;
constexpr double kSoftmaxOps = 5;
constexpr double kGeluOps = 20;
constexpr double kReluOps = 2;

double Tokens(const ModelSpec& m, int64_t samples) {
  return static_cast<double>(samples) * m.context();
}

// A layer of an MLP with `in` values and `out` units; kept are its inputs and outputs.
PartCost Dense(int64_t samples, double in, double out, double ops) {
  const double n = static_cast<double>(samples);
  PartCost cost;
  cost.forward_flops = n * out * (2 * in + ops);
  cost.backward_flops = n * out * (4 * in + ops);
  cost.parameters = static_cast<int64_t>(std::llround((in + 1) * out));
  cost.activation_bytes = static_cast<int64_t>(4 * n * (in + out));
  cost.transient_bytes = static_cast<int64_t>(4 * n * 2 * (in + out));
  return cost;
}

// A hidden layer. No gradient goes to the first one's inputs.
PartCost HiddenCost(const ModelSpec& m, int layer, int64_t samples, double share) {
  const double in = static_cast<double>(WidthInto(m, layer)) * (layer == 0 ? 1 : share);
  PartCost cost = Dense(samples, in, share * m.hidden(), kReluOps);
  if (layer == 0) cost.backward_flops -= static_cast<double>(samples) * share * m.hidden() * 2 * in;
  return cost;
}

// Of what a slice of an MLP holds, weights that rest: of its units those from units that it has
// not.
int64_t RestingParameters(const ModelSpec& m, int first_layer, int end_layer,
                          const SliceShare& slice) {
  double parameters = 0;
  for (int layer = std::max(1, first_layer); IsMlp(m) && layer < end_layer; ++layer)
    if (slice.Deals(m, layer)) parameters += slice.share * m.hidden() * m.hidden();
  return static_cast<int64_t>(parameters);
}

}  // namespace

PartCost& PartCost::operator+=(const PartCost& other) {
  forward_flops += other.forward_flops;
  backward_flops += other.backward_flops;
  recomputed_flops += other.recomputed_flops;
  parameters += other.parameters;
  activation_bytes += other.activation_bytes;
  transient_bytes = std::max(transient_bytes, other.transient_bytes);
  return *this;
}

PartCost EmbeddingCost(const ModelSpec& m, int64_t samples) {
  if (IsMlp(m)) {
    PartCost rows;
    rows.forward_flops = static_cast<double>(samples * m.inputs());
    rows.activation_bytes = samples * m.inputs() * 8;  // values as int64
    return rows;
  }
  const double tokens = Tokens(m, samples), hidden = m.hidden();
  PartCost cost;
  cost.forward_flops = 2 * tokens * hidden;
  cost.backward_flops = 2 * tokens * hidden + static_cast<double>(m.vocabulary()) *
                                                  hidden;  // a dense gradient of the whole table
  cost.parameters = (int64_t{m.vocabulary()} + m.context()) * m.hidden();
  cost.activation_bytes = static_cast<int64_t>(tokens) * 8;  // token ids as int64
  cost.transient_bytes = 4 * int64_t{m.vocabulary()} * m.hidden();
  return cost;
}

PartCost BlockCost(const ModelSpec& m, int64_t samples, double share, bool recompute) {
  if (IsMlp(m)) return HiddenCost(m, 1, samples, share);
  const double tokens = Tokens(m, samples), h = m.hidden(), context = m.context();
  const double scores = share * tokens * context * m.heads();
  const double matrix =
      share * tokens *
      (24 * h * h +
       4 * context * h);  // c_attn 6hh, c_proj 2hh, MLP 16hh; QK^T and PV 2*context*h each
  const double elementwise =
      tokens * h * (2 * kNormOps + share * 4 * kGeluOps + 9) + scores * (kSoftmaxOps + 1);
  PartCost cost;
  cost.forward_flops = matrix + elementwise;
  cost.backward_flops = 2 * matrix + elementwise;
  const int64_t hidden = m.hidden();
  const int64_t shared = kSharedVectors * hidden;
  cost.parameters = shared + static_cast<int64_t>(std::llround(
                                 share * static_cast<double>(12 * hidden * hidden + 7 * hidden)));
  // Kept: inputs and outputs of both norms (4h), Q, K, V (3h), attention's output (h), the MLP's
  // two wide tensors (8h), attention weights.
  cost.activation_bytes = static_cast<int64_t>(4 * (tokens * (4 + share * 12) * h + scores));
  cost.transient_bytes = static_cast<int64_t>(4 * (share * tokens * 8 * h + 2 * scores));
  if (recompute) {  // its input is kept; the rest is there for a layer at a time
    cost.recomputed_flops = cost.forward_flops;
    cost.transient_bytes += cost.activation_bytes;
    cost.activation_bytes = static_cast<int64_t>(4 * tokens * h);
  }
  return cost;
}

PartCost HeadCost(const ModelSpec& m, int64_t samples, double share) {
  if (IsMlp(m)) return Dense(samples, share * m.hidden(), m.classes(), kSoftmaxOps);
  const double tokens = Tokens(m, samples), h = m.hidden(), vocabulary = m.vocabulary();
  const double matrix = 2 * tokens * h * vocabulary;
  const double elementwise = tokens * (h * kNormOps + vocabulary * kSoftmaxOps);
  PartCost cost;
  cost.forward_flops = matrix + elementwise;
  cost.backward_flops = 2 * matrix + elementwise;
  cost.parameters = (2 + (IsTied(m) ? 0 : int64_t{m.vocabulary()})) * m.hidden();
  cost.activation_bytes = static_cast<int64_t>(
      4 * tokens * (2 * h + vocabulary + 2));  // norm in and out, log-probabilities, targets
  cost.transient_bytes = static_cast<int64_t>(4 * (2 * tokens * vocabulary + h * vocabulary));
  return cost;
}

PartCost StageCost(const ModelSpec& m, int first_layer, int end_layer, int64_t samples,
                   const SliceShare& slice, bool recompute) {
  PartCost cost;
  const PartCost block = BlockCost(m, samples, 1, recompute),
                 dealt = BlockCost(m, samples, slice.share, recompute);
  for (int layer = first_layer; layer < end_layer; ++layer) {
    if (IsMlp(m) && layer == 0) {
      cost += HiddenCost(m, 0, samples, slice.Deals(m, 0) ? slice.share : 1);
      continue;
    }
    cost += slice.Deals(m, layer) ? dealt : block;
  }
  if (first_layer == 0) cost += EmbeddingCost(m, samples);
  if (end_layer == m.layers()) {
    cost += HeadCost(m, samples, slice.Deals(m, end_layer - 1) ? slice.share : 1);
    if (first_layer != 0 && IsTied(m)) cost.parameters += int64_t{m.vocabulary()} * m.hidden();
  }
  return cost;
}

int64_t DealtParameters(const ModelSpec& m, int first_layer, int end_layer,
                        const SliceShare& slice) {
  int64_t parameters = 0;
  if (IsMlp(m)) {
    for (int layer = first_layer; layer < end_layer; ++layer) {
      if (!slice.Deals(m, layer)) continue;
      parameters += HiddenCost(m, layer, 1, 1).parameters;
      if (layer + 1 == m.layers()) parameters += int64_t{m.hidden()} * m.classes();
    }
    return parameters;
  }
  const int64_t block = BlockCost(m, 1).parameters - kSharedVectors * m.hidden();
  for (int layer = first_layer; layer < end_layer; ++layer)
    parameters += slice.Deals(m, layer) ? block : 0;
  return parameters;
}

int64_t ParameterCount(const ModelSpec& m) { return StageCost(m, 0, m.layers(), 1).parameters; }

int64_t StageMemoryBytes(const ModelSpec& m, int first_layer, int end_layer, int64_t samples,
                         int micros_in_flight, const SliceShare& slice, bool recompute) {
  const PartCost cost = StageCost(m, first_layer, end_layer, samples, slice, recompute);
  const int64_t edges = 2 * 4 * BoundaryElements(m, samples);  // the copy at either edge
  const int64_t whole = slice.gathers ? 4 * DealtParameters(m, first_layer, end_layer, slice) : 0;
  const int64_t resting = 4 * RestingParameters(m, first_layer, end_layer, slice);
  return kTrainedCopies * cost.parameter_bytes() + whole + resting +
         std::max(1, micros_in_flight) * (cost.activation_bytes + edges) + cost.transient_bytes;
}

int64_t CardMemoryBytes(const ModelSpec& m, bool bf16, int first_layer, int end_layer,
                        int64_t samples, int micros_in_flight, const SliceShare& slice,
                        bool recompute) {
  if (IsMlp(m)) {
    const int64_t copies =
        bf16 ? StageCost(m, first_layer, end_layer, samples, slice).parameter_bytes() : 0;
    return copies + StageMemoryBytes(m, first_layer, end_layer, samples, micros_in_flight, slice);
  }
  // Of a position and channel: inputs of both norms, fp32; their outputs, Q, K, V, attention's
  // output and the MLP's two wide tensors, in the precision of products.
  const auto kept = [bf16](double share) { return 8 + (bf16 ? 2 : 4) * (2 + share * (3 + 1 + 8)); };
  // Weights, gradients and two moments; copies in bf16 and their gradients.
  const int64_t a_parameter = kTrainedCopies * 4 + (bf16 ? 4 : 0);
  const int64_t edge = BoundaryElements(m, samples);
  double blocks = 0, again = 0;
  for (int layer = first_layer; layer < end_layer; ++layer) {
    const double block = kept(slice.Deals(m, layer) ? slice.share : 1);
    blocks += recompute ? 4 : block;
    if (recompute) again = std::max(again, block);
  }
  // A recorded pass (worker/engine/recorded_passes.h) has memory of its own for the layer that it
  // computes again.
  blocks += again;
  const auto a_micro = static_cast<int64_t>(static_cast<double>(edge) * (blocks + 2 * 4));
  int64_t transient = 4 * 8 * edge;
  if (end_layer == m.layers()) {  // logits of some rows (worker/engine/head.h), a table's gradient
    constexpr int64_t kLogitBytes = int64_t{1} << 30;
    transient += 4 * int64_t{m.vocabulary()} * m.hidden() +
                 std::min(kLogitBytes, (bf16 ? 2 : 4) * samples * m.context() * m.vocabulary());
  }
  const int64_t whole = slice.gathers ? 4 * DealtParameters(m, first_layer, end_layer, slice) : 0;
  const int64_t micros = std::max(1, micros_in_flight);
  // So has each further one for what the backward pass of a layer takes, and in bf16 for the
  // gradients of all layers, which come where their inputs were.
  int64_t further = 0;
  if (recompute) {
    const int64_t layers = end_layer - first_layer;
    further = 4 * 8 * edge;
    if (bf16) further += std::max<int64_t>(0, layers * (2 * BlockCost(m, 1).parameters - 4 * edge));
  }
  return a_parameter * StageCost(m, first_layer, end_layer, samples, slice).parameters + whole +
         micros * a_micro + (micros - 1) * further + transient;
}

int64_t BoundaryElements(const ModelSpec& m, int64_t samples) {
  return samples * m.context() * m.hidden();
}

}  // namespace isthmus
