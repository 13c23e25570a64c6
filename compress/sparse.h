// topk and randomk: some elements of a sample, the rest is zero at the receiver.
//
// TopKCodec: the largest magnitudes of each token (or of the sample), ties to the lower index; NaN
// and inf count as largest. Body: the set of places (index_set.h), then the values in that order by
// their own codec, as tokens x kept of each token, or 1 x kept (`global`). RandomKCodec: the sample
// is cut into as many nearly equal runs as elements are kept, and one place is drawn in each from
// (seed, draw): as likely as any other, and both ends draw alike. Body: the draw (4 bytes), then
// the values. `scaled` multiplies by the length of the run, so that the mean is right (and the
// variance large). Thread: one owner.
#ifndef ISTHMUS_COMPRESS_SPARSE_H_
#define ISTHMUS_COMPRESS_SPARSE_H_

#include <memory>
#include <utility>
#include <vector>

#include "compress/sample_codec.h"

namespace isthmus::compress {

class TopKCodec : public SampleCodec {
 public:
  // `values` has the shape that ValuesShape gives.
  TopKCodec(const CodecSpec& spec, const SampleShape& shape, std::unique_ptr<SampleCodec> values);
  static SampleShape ValuesShape(const CodecSpec& spec, const SampleShape& shape);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;

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

 private:
  void Draw(uint32_t draw);  // fills indices_
  void Scale();              // kept_, where the codec is `scaled`
  int64_t RunStart(int64_t i) const {
    return static_cast<int64_t>(static_cast<unsigned __int128>(i) *
                                static_cast<uint64_t>(shape_.elements()) /
                                static_cast<uint64_t>(kept_count_));
  }

  const CodecSpec spec_;
  const SampleShape shape_;
  const uint64_t seed_;
  const int64_t kept_count_;
  const std::unique_ptr<SampleCodec> values_;
  std::vector<uint32_t> indices_;
  std::vector<float> kept_;
};

// Places of the k largest magnitudes of x[0..n), in order; ties to the lower place. `first` is
// added to each; appended.
void SelectLargest(const float* x, size_t n, size_t k, uint32_t first,
                   std::vector<uint32_t>* scratch, std::vector<uint32_t>* places);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SPARSE_H_
