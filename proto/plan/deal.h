// Independent subnetwork training (Yuan et al., VLDB 2022; for transformers in attention heads and
// hidden units of the MLPs, for the family mlp in units): who holds what in a round. A round is
// strategy.local_steps steps. In each round and layer a permutation, a function of the deal's seed
// alone, gives every head and every unit to exactly one slice; a slice has as many of them in every
// round. No indices travel: every rank computes them. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_DEAL_H_
#define ISTHMUS_PROTO_PLAN_DEAL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/codec.pb.h"
#include "proto/codec/codec_size.h"
#include "proto/job.pb.h"
#include "proto/model/family.h"
#include "proto/plan.pb.h"

namespace isthmus {

inline bool Deals(const Plan& plan) { return plan.has_deal(); }

// What is held of one layer: numbers of heads and of the MLP's hidden units, ascending.
struct LayerSlice {
  bool dealt = false;  // false: the layer is whole in every slice
  std::vector<int> heads, units;

  bool operator==(const LayerSlice& other) const {
    return dealt == other.dealt && heads == other.heads && units == other.units;
  }
};
using Slice = std::vector<LayerSlice>;  // layer by layer

// Hidden units of a block's MLP: four times the width. Of a layer of the family mlp: its width.
inline int UnitsOf(const ModelSpec& model) {
  return IsMlp(model) ? model.hidden() : 4 * model.hidden();
}
// Attention heads of a layer.
inline int HeadsOf(const ModelSpec& model) { return IsMlp(model) ? 0 : model.heads(); }

// `all` in parts in proportion to `shares`, by largest remainder, but at least one each.
std::vector<int> DealCounts(int all, const std::vector<double>& shares);
std::vector<double> SharesOf(const DealPlan& deal);

// Is the layer whole in every slice?
bool IsWhole(const DealPlan& deal, const ModelSpec& model, int layer);

// What `slice` holds of `layer` in `round`.
LayerSlice SliceOfLayer(const DealPlan& deal, const ModelSpec& model, int layer, int64_t round,
                        int slice);
// What a rank holds of its stage's layers; everything of them.
Slice SliceOf(const Plan& plan, int rank, int64_t round);
Slice WholeOf(const Plan& plan, int rank);
// Of the dealt layers, what is in both; layers that are whole have nothing.
Slice Common(const Slice& a, const Slice& b);
// Weights of what a slice holds of its dealt layers: of a head its columns of queries, keys and
// values with their biases, and its rows of the projection; of a unit its column, its bias, its
// row. Of the family mlp, where a slice is of all layers: of a unit its column from all units
// before it, its bias, and its row of the output layer; rows of hidden layers go with columns.
int64_t SliceElements(const ModelSpec& model, const Slice& slice);

// The round that `step` is in.
int64_t RoundOf(const Plan& plan, int64_t step);

// The rank has its stage's whole weights when a round ends so that the model is validated or
// stored: it is of the first replica.
bool Gathers(const Plan& plan, int rank);

// What goes from rank `from` to rank `to`, of the same stage, when the round of `step` ends: what
// `from` has and `to` holds in the next round; where the model comes together (`merged`) and `to`
// gathers it, everything that `from` has. After the last step of the job nothing else goes.
Slice Moves(const Plan& plan, int from, int to, int64_t step, bool merged);
// That as rows of kSliceRow weights; the last one is padded with zeros.
constexpr int64_t kSliceRow = 512;
int64_t SliceRows(const Plan& plan, const Slice& slice);
// The frame of what `Moves`: a sample for each row.
TensorDims SliceDims(const Plan& plan, int from, int to, int64_t step, bool merged);

// The codec can carry weights: it rounds each by itself and by little, so that whoever gets a unit,
// in whatever frame, holds the same bits.
bool CarriesWeights(const CodecSpec& codec);

// Adds for each stage a group (GroupPlan.SLICE) of its ranks, whose rows are the most that a frame
// can have.
void AddSliceGroups(const CodecSpec& codec, Plan* plan);

// InvalidArgument: slices that can't cover the model, shares that are none, a replica without a
// slice, or a job that can't be trained so.
absl::Status CheckDeal(const Plan& plan);
// InvalidArgument: ranks of a GroupPlan.SLICE that hold other layers, or a size that their slices
// have not. Its ranks are some of the plan.
absl::Status CheckSliceGroup(const Plan& plan, const GroupPlan& group);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_DEAL_H_
