// The groups of a plan, and which part of a group's tensors belongs to which rank.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_GROUPS_H_
#define ISTHMUS_PROTO_PLAN_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/codec/codec_size.h"
#include "proto/model/stage_shapes.h"
#include "proto/plan.pb.h"

namespace isthmus {

constexpr char kTiedGroup[] = "tied";

// A rank with the first layers embeds tokens, one with the last ones has the head and the loss.
// Both read the data.
bool Embeds(const Plan& plan, int rank);
bool HasHead(const Plan& plan, int rank);
inline bool ReadsData(const Plan& plan, int rank) {
  return Embeds(plan, rank) || HasHead(plan, rank);
}
// It has one of two copies of a tied embedding.
bool HoldsTied(const Plan& plan, int rank);

// Stages of each replica.
int StagesOf(const Plan& plan);
// Of the ranks that hold a stage, the one that stores it: the others have the same weights.
bool StandsForStage(const Plan& plan, int rank);
// Whether it puts parts of checkpoints: with local steps each replica does, since its moments, and
// which steps it skipped, are its own. How many replicas do.
bool PutsParts(const Plan& plan, int rank);
int PuttingReplicas(const Plan& plan);

// "3 stages", "2 replicas x 1 stage".
std::string ShapeWords(int replicas, int stages);
std::string ShapeWords(const Plan& plan);

// "stage 1", or where there are several replicas "stage 1 of replica 0".
std::string StageWords(const Plan& plan, int rank);

// Parameters of a rank's stage but the tied ones and those dealt to subnetworks (deal.h): layers,
// embedding, head, autoencoders of boundaries. The token embedding is one where no other rank of
// its replica has a copy, and so is a head that is not tied.
int64_t OwnElements(const Plan& plan, int rank);
// Their shapes, layer by layer in the engine's order: {1, rows, columns} each, a vector with one
// row. The decoder of an autoencoder goes with the first layer, an encoder with the last one.
LayerTensors OwnShapes(const Plan& plan, int rank);

// The group of the ranks that hold a copy of the tied embedding, if there are two or more:
// vocabulary x hidden, contributions by `codec`. With local steps one group a replica.
void AddTiedGroup(const CodecSpec& codec, Plan* plan);

// For each stage of several replicas a group of its ranks, which adds up the gradients of all
// parameters but the tied ones, or the first moments (quantized_adam): layers_of_stage[s]
// (OwnShapes). Sharded: in rows of kGradientRow, or tensor by tensor (GroupPlan.shapes; rows of one
// element) where the codec works by matrix. buckets[s]: those of stage s are reduced in about so
// many parts (proto/plan/parts.h). With local steps they are of differences of the weights, one for
// each fragment that the stage has layers of (proto/plan/agreements.h), and the tied embedding has
// two more groups: of the first stages and of the last ones, which reduce the same bits in the same
// way.
// compression.gradient_stages: groups of later stages reduce as fp32; those of the tied embedding
// too, unless all stages are coded.
constexpr int64_t kGradientRow = 512;  // the width of such a group: what one scale may cover
void AddGradientGroups(const CodecSpec& contribution, const CodecSpec& sum,
                       const std::vector<LayerTensors>& layers_of_stage,
                       const std::vector<int>& buckets, Plan* plan);

// The links of groups take all that their groups may send in a step before any of it is received,
// and a vote; never less than they took.
void LimitQueues(Plan* plan);

// Do the gradients of this stage go by compression.gradients?
bool CodesGradientsOf(const JobSpec& job, int stage);

// The part [begin, end) of each batch that a replica takes.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
Share ShareOf(const Plan& plan, int replica);
// In proportion, the part of `samples` training samples that belongs to a replica with this share
// of a batch of `batch`.
Share SamplesOf(const Share& share, int64_t samples, int64_t batch);
// InvalidArgument: shares that are not the whole batch, or a rank of no replica.
absl::Status CheckReplicas(const Plan& plan);

// recipe.optimizer quantized_adam, after its warm-up: the second moment is frozen.
bool FrozenAt(const JobSpec& job, int64_t step);
// What the group's ranks exchange in this step goes as fp32: MOMENTUM, in the warm-up.
bool GoesExact(const Plan& plan, const GroupPlan& group, int64_t step);
// Of its frames in this step; kind CONTRIBUTION or SUM.
const CodecSpec& GroupCodec(const Plan& plan, const GroupPlan& group, FrameHeader::Kind kind,
                            int64_t step);

// Of each replica one, in the order of their numbers.
std::vector<int> RanksOfStage(const Plan& plan, int stage);

// Place of `rank` in group.ranks; -1: it is not in it.
int PositionIn(const GroupPlan& group, int rank);

// Rows [begin, end) of the part that the rank at `position` owns: equal parts, to a row, or of a
// group with shapes to a tensor.
struct Rows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
Rows OwnedRows(const GroupPlan& group, int position);

// Of a frame from the rank `from` to the rank `to`; kind CONTRIBUTION or SUM.
Rows FrameRows(const GroupPlan& group, FrameHeader::Kind kind, int from, int to);

// The tensors of these rows, of a group with shapes; none of another group.
std::vector<TensorDims> ShapesIn(const GroupPlan& group, const Rows& rows);
// What these rows take by `codec`; `most`: what an encoder never exceeds.
int64_t RowsBytes(const GroupPlan& group, const CodecSpec& codec, const Rows& rows, bool most);

// What a direction of `link` carries is encoded by: of a boundary its own codec ("lowrank(4)
// (epilogue)" if it codes those gradients alone), else those of the
// groups that both ends are in; "none" where only votes pass.
std::string DirectionCodecs(const Plan& plan, const LinkPlan& link, bool forward);

// InvalidArgument: ranks that are none, or twice in it, no size, or codecs that a group can't have.
// A codec whose decoder follows its encoder (delta, predict) is one of them: a contribution goes
// to several ranks, and a resume must not depend on all of them.
absl::Status CheckGroup(const Plan& plan, const GroupPlan& group);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_GROUPS_H_
