// The operators of the multi-level framework (Zou, Zhang, Deng; ICLR 2024, arXiv 2404.07999) on the
// tensors of a GPT-2: coalesce makes a small model of a large one, de-coalesce a large one of a
// small one, interpolate mixes two of one shape. Each tensor of a result is a sum over groups of
// elements of the source, times a constant. Thread: pure functions. Memory: rows, never a tensor.
#ifndef ISTHMUS_WORKER_MULTILEVEL_OPERATORS_H_
#define ISTHMUS_WORKER_MULTILEVEL_OPERATORS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace isthmus::multilevel {

struct Shape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;
  bool operator==(const Shape& o) const;
  bool operator!=(const Shape& o) const { return !(*this == o); }
};
int64_t Parameters(const Shape& shape);

// Which units of the large model one unit of the small one stands for, of n units in the small one
// and a factor k: strided {t, t + n, t + 2n, ...}, adjacent {t k, ..., t k + k - 1}.
enum class Groups { kStrided, kAdjacent };

// What keeps the logits of a tied head at their size when the width changes. kFinalNorm: embeddings
// are copied, gain and bias of the last norm divided by the factor: exact with norms before the
// blocks, as a GPT-2 has them. kEmbedding: the embeddings are divided, as the paper's code does:
// exact only with norms behind the blocks (BERT).
enum class Tied { kFinalNorm, kEmbedding };

// Units of width are whole heads (and blocks of the MLP and of the residual as many): the size of a
// head never changes. Defaults are the paper's for a GPT-2, but for `tied`.
struct Mapping {
  int64_t width_factor = 2;
  int64_t depth_factor = 2;
  Groups width = Groups::kStrided;
  Groups depth = Groups::kAdjacent;
  Tied tied = Tied::kFinalNorm;
};

// InvalidArgument: a factor below 1, or one that does not divide (the message says which).
absl::StatusOr<Shape> Coalesced(const Shape& large, const Mapping& mapping);
// InvalidArgument: a factor below 1, or a result beyond the limits below.
absl::StatusOr<Shape> Decoalesced(const Shape& small, const Mapping& mapping);

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHidden = 1 << 16;
constexpr int64_t kMaxHeads = 1 << 10;

// One direction of a tensor, or the layers: which elements of the source make one of the result.
struct Axis {
  int64_t result = 1;  // elements
  int64_t source = 1;
  int64_t block = 1;  // elements of a unit
  int64_t parts = 1;  // of equal size side by side (Q, K, V), each mapped by itself
  Groups groups = Groups::kStrided;
  // Appends the elements of the source that belong to element `i` of the result.
  void SourcesOf(int64_t i, std::vector<int64_t>* out) const;
};

// A tensor of the result: scale * the sum over `sources`, a group of rows and a group of columns.
// Tensors have the layout of Hugging Face's GPT-2: rows are inputs. A vector is one row.
struct Mix {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::string> sources;
  Axis rows, columns;
  double scale = 1;
};

// The tensors of the result in order of their names. `mapping` fits `large` (or `small`).
std::vector<Mix> CoalesceMixes(const Shape& large, const Mapping& mapping);
std::vector<Mix> DecoalesceMixes(const Shape& small, const Mapping& mapping);
// Each tensor from itself: the names and shapes of a model.
std::vector<Mix> SameMixes(const Shape& shape);

// Fills `row` with a row of a tensor.
using ReadRow =
    std::function<absl::Status(const std::string& tensor, int64_t row, absl::Span<float> values)>;
using TakeRow = std::function<absl::Status(absl::Span<const float> values)>;

// InvalidArgument names the tensor and the first element of the row that is not finite.
absl::Status CheckFinite(const std::string& tensor, int64_t row, absl::Span<const float> values);

// The rows of one tensor in order; sums are taken in double. InvalidArgument: an element of the
// result is not finite.
absl::Status ApplyMix(const Mix& mix, const ReadRow& read, const TakeRow& take);

// (1 - alpha) before + alpha other, for one tensor of both; alpha 0 and 1 give one of them bit for
// bit. Alpha is in [0, 1].
absl::Status Interpolate(const Mix& same, double alpha, const ReadRow& before, const ReadRow& other,
                         const TakeRow& take);

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_WORKER_MULTILEVEL_OPERATORS_H_
