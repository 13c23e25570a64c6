// ef(codec) and lep(codec): what was lost of a sample is added to a later one, so that over time
// nothing is.
//
//   t := x + e;  send codec(t);  e := t - what the receiver has of t
//
// `ef` keeps one residual for each (micro-batch, sample place) and so adds it at the same place in
// the next step; `lep` (lazy error propagation, Optimus-CC) one for each sample place, and adds it
// in the next micro-batch. The sender alone keeps residuals, in fp32; they live as long as the
// link. A residual that is not finite becomes zero. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_FEEDBACK_H_
#define ISTHMUS_COMPRESS_CODECS_FEEDBACK_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

// Whose residual it is: micro-batch (lazy: 0), index in the frame.
using ResidualPlace = std::pair<int32_t, int64_t>;
// One of a saved state, after `last` ({-1, -1}: none). The reader fails if that can't be.
ResidualPlace LoadResidualPlace(StateReader* from, bool lazy, const ResidualPlace& last);

class FeedbackCodec : public SampleCodec {
 public:
  FeedbackCodec(bool lazy, const SampleShape& shape, std::unique_ptr<SampleCodec> inner)
      : lazy_(lazy), shape_(shape), inner_(std::move(inner)) {}

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override {
    return inner_->Check(bytes);
  }
  void Decode(absl::string_view body, RowSink& out) override { inner_->Decode(body, out); }
  absl::Span<const float> residual(int64_t index) const override;
  void SaveState(StateWriter* to) override;
  void LoadState(StateReader* from) override;

 private:
  const bool lazy_;
  const SampleShape shape_;
  const std::unique_ptr<SampleCodec> inner_;
  std::map<ResidualPlace, std::vector<float>> residuals_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_FEEDBACK_H_
