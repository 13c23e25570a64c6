// What a codec costs one direction of a boundary, and the codecs that `compression: auto` compares
// there. `auto` takes those for which
//
//   predicted step time x (1 + price)
//
// is the least (codec_search.h). The step time counts the link, fill and drain, and the codecs'
// seconds of the daemons' cores. The price is for what a codec loses, as a share of the step time:
// a run that ends at a higher loss needs more steps to come to the same one. It adds up over
// boundaries and directions, so that a job of many stages gets milder codecs. bf16 has no measured
// price, and comes before none wherever it is not slower.
//
// Compared: bf16, none, and quantisation of 8 down to compression.min_bits bits: directly; as a
// delta against the sample's earlier visit where the job visits its samples again; as the
// difference to a prediction from the token ids where those come along (compress/PREDICTION.md).
// What a delta takes is its mean over the run, key frames of first visits included.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_CODEC_CHOICE_H_
#define ISTHMUS_COORDINATOR_PLANNER_CODEC_CHOICE_H_

#include <optional>
#include <string>
#include <vector>

#include "proto/codec.pb.h"
#include "proto/codec/codec_size.h"

namespace isthmus::coordinator {

// Seconds of one core for an element of fp32, at one end: codec_bench's rates (compress/README.md),
// halved, since hosts are slower than the one measured and have other work.
constexpr double kConvertSecondsPerElement = 0.4e-9;  // bf16, fp16: 22 GB of fp32 a second
constexpr double kQuantSecondsPerElement = 0.5e-9;    // 15 to 23
constexpr double kDeltaSecondsPerElement = 1e-9;      // 7.4 to 12, with the buffer's update
constexpr double kPredictSecondsPerElement = 8e-9;    // 0.7
constexpr double kOtherSecondsPerElement = 6e-9;      // top-k, low rank and others are not tuned
constexpr double kZstdSecondsPerByte = 3e-9;          // level 1, of what goes in
// Of one core for a byte on the wire, at one end: a stream over loopback carries 0.75 GiB a second.
constexpr double kTransportSecondsPerByte = 1.2e-9;

// What the loss of a whole run rises by for each boundary, as a share of it, at 4 bits. Of the
// trial with 7 boundaries and 134 million parameters (algorithms, section 10.4) where it was
// measured there, else the mean with the small ones (compress/PREDICTION.md,
// worker/study/README.md). Each bit more quarters it: it goes with the square of the error.
constexpr double kForwardLoss = 0.0042;           // quant(4) / quant(8): 3.2 % over 7
constexpr double kForwardPredictedLoss = 0.0006;  // predict 4 / predict 4: 0.65 % over 7
constexpr double kForwardDeltaShare = 0.5;        // of quant's: the difference halves it
constexpr double kBackwardLoss = 0.0025;  // quant(4, token, symmetric): 0.5 % over 7, 1 % over 2
constexpr double kBackwardPredictedLoss = 0.0004;  // the same, predicted from the next token
constexpr double kBackwardAsymmetric = 5;          // times: levels that cut the largest gradients
constexpr double kBackwardBelowFour = 30;          // times, each bit less than 4
constexpr double kLossOfABit = 4;                  // times, each bit less

// A loss that is higher by a share of x takes so many x more steps to make up for: 0.65 % of the
// loss cost about 4 % more steps.
constexpr double kStepsForLoss = 6;
// Of the step time, for any quantised direction: what three seeds can't tell from nothing.
constexpr double kQuantisedPrice = 0.003;

// Share of first visits from which on delta coding has too few second ones to gain (1.5 passes).
constexpr double kFirstVisitsForDelta = 2.0 / 3;

// What this codec adds to the loss of a run at one boundary, as a share of it. Nothing: it was not
// measured for such codecs (top-k, low rank, ...).
std::optional<double> ExpectedLoss(const CodecSpec& codec, bool forward);

// Seconds of one core for one micro-batch, at either end.
double CodecSeconds(const CodecSpec& codec, const TensorDims& dims);

struct CodecOption {
  CodecSpec codec;
  double link_s = 0;    // from one compute thread to the other without latency, mean of the run
  double price = 0;     // of the step time
  bool tokens = false;  // a predict: needs the token ids, and passes them on
};

struct CodecQuestion {
  bool forward = true;
  double rate_bits_per_s = 0;  // measured
  TensorDims dims;
  int min_bits = 4;
  bool samples_known = false;
  double first_visits = 1;   // their share (cost_model.h)
  bool buffers_fit = false;  // delta buffers at both ends
  int64_t vocabulary = 0;    // for the words
  bool token_ids = true;     // false: samples have none (proto/model/family.h)
  int64_t table_bytes = 0;   // at most, of the predicts of a daemon
  int64_t free_bytes = 0;    // of memory, at the end that has less
  bool states_fit = true;    // false: codecs without state alone are compared
};

CodecOption OptionOf(const CodecQuestion& question, const CodecSpec& codec);

// Mildest first, and of two that cost the same the first is taken.
std::vector<CodecOption> CodecOptions(const CodecQuestion& question);

// Why some were not compared: "no delta: its buffers do not fit; no predict: ..."; may be empty.
std::string LeftOut(const CodecQuestion& question);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_CODEC_CHOICE_H_
