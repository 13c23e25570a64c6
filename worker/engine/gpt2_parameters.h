// The parameters of a stage of a GPT-2: names as `transformers` writes them, shapes (linear layers
// are [in, out]), initial values. A value of the initial weights is a function of (seed, name,
// index) alone, in integer arithmetic up to the last rounding: any cut of the layers and any host
// gives the same bits, and both copies of the tied embedding start equal. Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_GPT2_PARAMETERS_H_
#define ISTHMUS_WORKER_ENGINE_GPT2_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"
#include "proto/plan/deal.h"

namespace isthmus::engine {

// What of a parameter goes with a head, or with a hidden unit of an MLP, where those are dealt to
// subnetworks (proto/plan/deal.h): of a matrix columns or rows, of a vector elements.
enum class DealtBy { kNothing, kHeadColumns, kHeadRows, kUnitColumns, kUnitRows };

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = false;   // weight decay: on matrices, embeddings of tokens and positions among them;
                        // not on norms and biases
  double init_std = 0;  // 0: constant
  float init_constant = 0;  // 1 for the weights of norms

  // Of one that is dealt: `shape` is of what is held, `whole` of all, and `indices` which of the
  // whole one's columns or rows are held, ascending.
  DealtBy dealt_by = DealtBy::kNothing;
  int layer = 0;
  std::vector<int64_t> whole, indices;
  // Of a hidden layer of an MLP behind another one: which rows are trained, those of the units held
  // of that layer. What is held has all rows (Parameter::resting); `shape` is of the block in play.
  std::vector<int64_t> rows;

  bool dealt() const { return dealt_by != DealtBy::kNothing; }
  // The dimension that it is dealt along.
  int axis() const;
  // Of one column or row of the whole one.
  int64_t elements_an_index() const;
  int64_t elements() const;
};

// The columns or rows of a whole parameter that go with what is held of its layer. Columns of heads
// are those of the queries, then of the keys, then of the values.
std::vector<int64_t> DealtIndices(const ModelSpec& model, DealtBy by, const LayerSlice& held);

inline constexpr char kTokenEmbedding[] = "transformer.wte.weight";
inline constexpr char kPositionEmbedding[] = "transformer.wpe.weight";

// In the order the stage holds them; of an MLP those of mlp.h. Of a GPT-2: wte and wpe (first
// stage), blocks [first_layer, end_layer), ln_f (last stage), and the head: wte (last of several),
// or lm_head where it is not tied. `held`: of a stage for a slice, what it holds of its layers;
// empty: everything.
std::vector<ParameterSpec> StageParameters(const ModelSpec& model, int first_layer, int end_layer,
                                           const Slice& held = {});

// The autoencoder at the boundary above layer `layer` - 1, in `channels` channels: A on the stage
// below, [hidden, channels], and B on the stage above, [channels, hidden]. Their names say where
// they are and that they are not GPT-2's (proto/model/tensor_names.h). Xavier's initial values.
ParameterSpec BoundaryEncoder(const ModelSpec& model, int layer, int channels);
ParameterSpec BoundaryDecoder(const ModelSpec& model, int layer, int channels);

// The channels of the autoencoder at the boundary below, or above, a rank; 0: none.
int AutoencoderChannels(const Plan& plan, int rank, bool below);

// InvalidArgument: there is no such rank, or the plan's model or the rank's layers make no sense.
absl::Status CheckStagePlan(const Plan& plan, int rank);

// Normal values (the sum of twelve uniform ones: standard deviation 1, |x| < 6) times init_std, or
// the constant. Of a dealt one those that the whole parameter has at these indices.
void FillInitial(const ParameterSpec& spec, uint64_t seed, float* out);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_GPT2_PARAMETERS_H_
