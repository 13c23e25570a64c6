// predict(codec): the difference of an activation to a prediction that both ends make: running
// means per position and per context, a context being the last one, two, ... `context` token ids.
//
// For data that are seen once, where AQ-SGD has no earlier activation of the sample: both ends
// update the means from what the receiver has, so they stay bit-identical without further traffic;
// only the token ids travel along. With d the decoded difference, P the means of positions, T those
// of token ids, and C2, C3, ... those of longer contexts, each of what the shorter ones left:
//
//   prediction = T[token] + P[position] + C2[previous, token] + ...;    y = gain x prediction + d
//   T[token]           follows the mean of   y - P
//   P[position]        ...                   y - P - T
//   C2[previous, token] ...                  y - P - T,    C3: y - P - T - C2, ...
//
// at the end of each frame (mean_table.h; P moves by `rate` of the mean). A token not seen before,
// or without room in the table, has the mean of all as its T. Contexts are hashed into `slots`;
// those that share a slot share its mean. With `next`, for gradients, which depend on the token to
// be foretold, the last token of a position's context is the one after it (unknown at the end of
// the sample, which counts as a token id). Rows with a NaN, inf or magnitudes over 2^60 are not
// learned from. All in fp32, in the order of samples and positions. Memory: predictor_bytes at most
// (beside the frame's sums), shared out by PredictorRowsOf (proto/codec/codec_size.h).
//
// The gain of each position is the sender's choice, in 1/32 up to 255/32: the one that leaves the
// least. So a prediction never makes a row larger, also while the model changes fast.
//
// Body: width of a token id in bytes (1 byte: 2 or 4), the ids of the sample's positions, their
// gains (1 byte each), then the difference by the inner codec. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_PREDICT_H_
#define ISTHMUS_COMPRESS_CODECS_PREDICT_H_

#include <memory>
#include <string>
#include <vector>

#include "compress/codecs/mean_table.h"
#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

// Rows with magnitudes over 2^60 are not learned from: their bits as fp32.
inline constexpr uint32_t kTooLargeToLearn = (60 + 127) << 23;
inline constexpr float kGainUnit = 1.0f / 32;
float PredictRate(const CodecSpec& spec);

// The token ids and contexts of the positions of a sample. `slots`: a power of two.
struct TokenContexts {
  int64_t positions = 0;
  bool next = false;
  int64_t slots = 0;

  // The token `back` places before the last one of the position's context.
  uint32_t Token(absl::Span<const uint32_t> tokens, int64_t position, size_t back) const;
  // Of the context of level + 2 token ids.
  uint32_t Slot(absl::Span<const uint32_t> tokens, int64_t position, size_t level) const;
};

// Tables of contexts of two token ids, of three, ...
size_t ContextLevels(const CodecSpec& spec, const PredictorRows& rows);

// The ids at the front of a body: their width and they. ReadTokenIds returns the bytes of both, of
// a body that was checked, and appends the ids.
void WriteTokenIds(const std::vector<uint32_t>& ids, std::string* out);
size_t ReadTokenIds(absl::string_view body, int64_t positions, std::vector<uint32_t>* ids);

// The means. `tokens` are those of one sample, one a position.
class Predictor {
 public:
  // `spec`: rate and context.
  Predictor(const CodecSpec& spec, const SampleShape& shape, int64_t bytes);

  void Predict(absl::Span<const uint32_t> tokens, int64_t position, float* row) const;
  // Takes one row into the sums of the frame; the means do not change before EndFrame.
  void Learn(absl::Span<const uint32_t> tokens, int64_t position, const float* y);
  void EndFrame();

  uint64_t Hash() const;
  int64_t bytes() const;
  // Between frames.
  void Save(StateWriter* to) const;
  void Load(StateReader* from);

 private:
  const float* TokenRow(uint32_t token) const;

  const size_t hidden_;
  const float rate_;
  const PredictorRows rows_;
  const TokenContexts keys_;
  MeanTable all_;  // one row: of all tokens
  MeanTable tokens_;
  std::vector<MeanTable> contexts_;  // of two token ids, of three, ...
  std::vector<float> positions_;     // positions x hidden, or empty where there is no room
  const std::vector<float> zero_;    // a row

  // The frame's.
  std::vector<float> left_;  // a row, and one for what is not kept
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
  void SaveState(StateWriter* to) override;
  void LoadState(StateReader* from) override;
  bool NeedsTokens() const override { return true; }
  absl::Span<const uint32_t> tokens() const override { return token_ids_; }

 private:
  // Fills prediction_, scaled by gains_; those that fit `x` best, where it is given.
  void Predict(RowSource* x);

  const SampleShape shape_;
  const std::unique_ptr<SampleCodec> inner_;
  Predictor predictor_;
  // Of the sample.
  std::vector<uint32_t> token_ids_;
  std::vector<uint8_t> gains_;
  std::vector<float> prediction_;
  std::vector<float> rebuilt_;  // the sample as the receiver has it
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_PREDICT_H_
