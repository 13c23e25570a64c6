// topk and randomk: some elements of a sample, the rest is zero at the receiver.
//
// TopKCodec: the largest magnitudes of each token (or of the sample), ties to the lower index; NaN
// and inf count as largest. Body: the set of indices (index_set.h), then the values in that order
// by their own codec, as tokens x kept of each token, or 1 x kept (`global`). RandomKCodec: the
// sample is cut into as many nearly equal runs as elements are kept, and one index is drawn in each
// from (seed, draw): as likely as any other, and both ends draw alike. Body: the draw (4 bytes),
// then the values. `scaled` multiplies by the length of the run, so that the mean is right (and the
// variance large). Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_SPARSE_H_
#define ISTHMUS_COMPRESS_CODECS_SPARSE_H_

#include <memory>
#include <utility>
#include <vector>

#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

class TopKCodec : public SampleCodec {
 public:
  // `values` has the shape that ValuesShape gives: of a topk, or of a kept bound to any codec.
  TopKCodec(const CodecSpec& spec, const SampleShape& shape, std::unique_ptr<SampleCodec> values);
  static SampleShape ValuesShape(const CodecSpec& spec, const SampleShape& shape);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;
  absl::Span<const uint32_t> indices() const override { return indices_; }

 private:
  void Select(RowSource& in);

  const CodecSpec spec_;
  const SampleShape shape_;
  const SampleShape values_shape_;
  const std::unique_ptr<SampleCodec> values_;
  std::vector<uint32_t> indices_;
  std::vector<float> kept_;
  std::vector<float> sample_;
  std::vector<uint32_t> scratch_;
};

class RandomKCodec : public SampleCodec {
 public:
  // `values` has the shape 1 x KeptOf(ratio, elements).
  RandomKCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed,
               std::unique_ptr<SampleCodec> values);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;
  absl::Span<const uint32_t> indices() const override {  // of a topk, some of them are not sent
    if (ValuesOf(spec_).kind() == CodecSpec::TOP_K) return {};
    return indices_;
  }

 private:
  void Draw(uint32_t draw);  // fills indices_
  void Scale();              // kept_, where the codec is `scaled`

  const CodecSpec spec_;
  const SampleShape shape_;
  const uint64_t seed_;
  const int64_t kept_count_;
  const std::unique_ptr<SampleCodec> values_;
  std::vector<uint32_t> indices_;
  std::vector<float> kept_;
};

// Indices of the k largest magnitudes of x[0..n), in order; ties to the lower index. `first` is
// added to each; appended.
void SelectLargest(const float* x, size_t n, size_t k, uint32_t first,
                   std::vector<uint32_t>* scratch, std::vector<uint32_t>* indices);

// The values at sorted indices of a sample.
void Gather(RowSource& in, absl::Span<const uint32_t> indices, const SampleShape& shape,
            std::vector<float>* kept);

// Rows of zeros with the kept values at their indices.
void Scatter(absl::Span<const uint32_t> indices, const std::vector<float>& kept,
             const SampleShape& shape, RowSink& out);

// What randomk draws in the runs of a sample: one index in each, appended in order.
void DrawIndices(int64_t elements, int64_t kept, uint64_t seed, uint32_t draw,
                 std::vector<uint32_t>* indices);

// randomk(..., scaled): each of the kept values of a sample times the length of its run.
void ScaleByRuns(int64_t elements, std::vector<float>* kept);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_SPARSE_H_
