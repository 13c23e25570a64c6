// predict(codec): the difference of an activation to a prediction that both ends make: a running
// mean per token id plus one per position.
//
// For data that are seen once, where AQ-SGD has no earlier activation of the sample: both ends
// update the means from what the receiver has, so they stay bit-identical without further traffic;
// only the token ids travel along. With d the decoded difference, at the end of each frame:
//
//   prediction(token, position) = T[token] + P[position];   y = prediction + d
//   T[token]    += max(rate, 1 / updates) * (mean over its occurrences in the frame of (y -
//   P[position]) - T[token]) P[position] += rate * mean over the samples of the frame of (y -
//   prediction)
//
// A token not seen before, or without room in the table, is predicted by the mean of all. Rows with
// a NaN, inf or magnitudes over 2^60 are not learned from. All in fp32, in the order of samples and
// positions. Memory: predictor_bytes at most (beside the frame's sums).
//
// Body: width of a token id in bytes (1 byte: 2 or 4), the ids of the sample's positions, then the
// difference by the inner codec. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_PREDICT_H_
#define ISTHMUS_COMPRESS_PREDICT_H_

#include <memory>
#include <unordered_map>
#include <vector>

#include "compress/sample_codec.h"

namespace isthmus::compress {

// The means.
class Predictor {
 public:
  Predictor(const SampleShape& shape, double rate, int64_t bytes);

  void Predict(uint32_t token, int64_t position, float* row) const;
  // Takes one row into the sums of the frame; the means do not change before EndFrame.
  void Learn(uint32_t token, int64_t position, const float* y);
  void EndFrame();

  uint64_t Hash() const;
  int64_t bytes() const { return static_cast<int64_t>(4 * (tokens_.size() + positions_.size())); }

 private:
  struct Sum {
    uint32_t token;
    int64_t count = 0;
    std::vector<float> sum;
  };
  const float* TokenRow(uint32_t token) const;
  void Move(const Sum& sum, size_t slot);

  const SampleShape shape_;
  const size_t hidden_;
  const float rate_;
  size_t most_slots_;
  std::unordered_map<uint32_t, size_t> slots_;  // token -> slot of tokens_
  std::vector<float> tokens_;                   // slots x hidden; slot 0 is the mean of all
  std::vector<uint32_t> updates_;               // per slot
  std::vector<float> positions_;  // positions x hidden, or empty where there is no room

  // The frame's.
  std::unordered_map<uint32_t, size_t> sum_of_;
  std::vector<Sum> sums_;  // [0] of all tokens, then in order of appearance
  std::vector<float> position_sums_;
  std::vector<int64_t> position_counts_;
};

class PredictCodec : public SampleCodec {
 public:
  PredictCodec(const CodecSpec& spec, const SampleShape& shape, int64_t bytes,
               std::unique_ptr<SampleCodec> inner);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;
  void Settle(bool used) override;
  void EndFrame() override { predictor_.EndFrame(); }
  uint64_t StateHash() const override { return predictor_.Hash(); }
  bool NeedsTokens() const override { return true; }
  absl::Span<const uint32_t> tokens() const override { return token_ids_; }

 private:
  const SampleShape shape_;
  const std::unique_ptr<SampleCodec> inner_;
  Predictor predictor_;
  std::vector<uint32_t> token_ids_;  // of the sample
  std::vector<float> rebuilt_;       // the sample as the receiver has it
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_PREDICT_H_
