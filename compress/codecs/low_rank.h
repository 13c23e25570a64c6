// lowrank(r): PowerSGD's one step of power iteration (Optimus-CC's compressed backpropagation): a
// sample, seen as a matrix T of positions x hidden, becomes two factors, P orthonormal (positions x
// r) and Q = T^T P; the receiver computes P Q^T.
//
// The sender keeps Q as the start of the next iteration (warm start); the receiver keeps nothing.
// Columns of P that vanish (T of lower rank, or zero) are zero, and so are theirs of Q; the warm
// start takes new random columns for them, so that they do not stay dead. A sample with a NaN or an
// inf becomes NaN as a whole, and the warm start begins anew. Body: P in row order, then Q^T in row
// order, each by the `values` codec (fp32 unless the job says otherwise). r is at most positions
// and hidden. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_LOW_RANK_H_
#define ISTHMUS_COMPRESS_CODECS_LOW_RANK_H_

#include <memory>
#include <vector>

#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

class LowRankCodec : public SampleCodec {
 public:
  // `left` codes positions x r, `right` r x hidden.
  LowRankCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed,
               std::unique_ptr<SampleCodec> left, std::unique_ptr<SampleCodec> right);
  static int64_t Rank(const CodecSpec& spec, const SampleShape& shape);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;
  void SaveState(StateWriter* to) override;
  void LoadState(StateReader* from) override;

 private:
  void Multiply(RowSink& out) const;  // left_factor_ x right_factor_
  void RefreshWarmStart();

  const SampleShape shape_;
  const int64_t rank_;
  const uint64_t seed_;
  const std::unique_ptr<SampleCodec> left_, right_;
  std::vector<float> warm_;          // hidden x r: the sender's
  std::vector<float> left_factor_;   // P: positions x r
  std::vector<float> right_factor_;  // Q^T: r x hidden
  uint64_t draws_ = 0;               // of random columns
};

// Makes the columns of a (rows x columns, row-major) orthonormal, by modified Gram-Schmidt done
// twice. A column that depends on those before it, to rounding, becomes zero. Nothing here divides
// by zero.
void Orthonormalize(std::vector<float>* a, int64_t rows, int64_t columns);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_LOW_RANK_H_
