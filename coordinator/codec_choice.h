// Chooses the codec of one link and direction for `compression: auto`: the mildest one that keeps
// the link's time per micro-batch under the slowest stage's compute time, by measured figures:
//
//   bits an element = compute seconds x measured rate x margin / elements
//
// fp32 if 32 fit, bf16 if 16 fit, else quantisation of 8 down to 2 bits (gradients: 4): as a delta
// against the sample's earlier visit where the job visits its samples again, else as the difference
// to a prediction from the token ids (compress/PREDICTION.md has the measurements), where those
// come along. What a delta takes is its mean over the run, key frames of first visits included. On
// a fast link that is none. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CODEC_CHOICE_H_
#define ISTHMUS_COORDINATOR_CODEC_CHOICE_H_

#include <string>

#include "proto/codec.pb.h"
#include "proto/codec_size.h"

namespace isthmus::coordinator {

constexpr double kRateMargin = 0.8;  // for errors of measurement
constexpr int kMinForwardBits = 2;   // 1 bit does not train with this quantiser
constexpr int kMinBackwardBits = 4;  // coarser gradients cost convergence
// Of one core, to encode or decode; codec_bench. An accelerator may be faster than that.
constexpr double kPredictSecondsPerElement = 8e-9;
// Share of first visits from which on delta coding has too few second ones to gain (1.5 passes).
constexpr double kFirstVisitsForDelta = 2.0 / 3;
// A difference bears so many bits less: it halves the loss that the same bits cost directly
// (worker/study/README.md).
constexpr int kBitsOfDelta = 1;

struct CodecQuestion {
  bool forward = true;
  double compute_s = 0;        // slowest stage, one micro-batch, both passes
  double rate_bits_per_s = 0;  // measured
  TensorDims dims;
  bool samples_known = false;
  double first_visits = 1;   // their share (cost_model.h)
  bool buffers_fit = false;  // delta buffers at both ends
  // Token ids come along: for the forward direction from the stages below, for the backward
  // direction with the forward frames of the same boundary.
  bool tokens_known = false;
  bool tokens_wanted = false;  // by a slower link above: a forward codec should pass them on
  int64_t vocabulary = 0;
  int64_t free_bytes = 0;  // of memory, at the end that has less
};

struct CodecAnswer {
  CodecSpec codec;
  bool fits = true;  // false: even the coarsest allowed codec takes longer than the compute
  std::string why;   // "18.2 Mbit/s measured, micro-batch 131072 elements, compute 0.41 s -> 45.5
                     // bits would fit -> none"
};

CodecAnswer ChooseCodec(const CodecQuestion& question);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CODEC_CHOICE_H_
