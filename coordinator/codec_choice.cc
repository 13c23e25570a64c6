#include "coordinator/codec_choice.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cost_model.h"
#include "coordinator/figures.h"
#include "proto/codec_text.h"

namespace isthmus::coordinator {
namespace {

CodecSpec Plain(CodecSpec::Kind kind) {
  CodecSpec spec;
  spec.set_kind(kind);
  return spec;
}

enum class Scheme { kDirect, kDelta, kPredict };

CodecSpec Quant(int bits, bool forward, Scheme scheme) {
  CodecSpec quant = Plain(CodecSpec::QUANT);
  quant.set_bits(bits);
  if (scheme == Scheme::kDelta) {
    CodecSpec spec = Plain(CodecSpec::DELTA);
    *spec.mutable_inner() = quant;
    // The buffers are bf16: a finer first visit would keep nothing more.
    *spec.mutable_cold() = Plain(CodecSpec::BF16);
    return spec;
  }
  if (scheme == Scheme::kPredict || !forward) quant.set_scale(CodecSpec::PER_TOKEN);
  // The largest gradients must not be cut: they are what is to be learned.
  if (!forward) quant.set_symmetric(true);
  if (scheme == Scheme::kPredict) {
    CodecSpec spec = Plain(CodecSpec::PREDICT);
    *spec.mutable_inner() = quant;
    spec.set_context(forward ? 3 : 2);
    spec.set_next(!forward);
    return spec;
  }
  return quant;
}

// Why there is no delta; empty: there may be one.
std::string NoDelta(const CodecQuestion& q) {
  if (!q.samples_known) return "no delta: the number of samples is not known";
  if (q.first_visits >= kFirstVisitsForDelta)
    return absl::StrCat("no delta: ", FormatShare(q.first_visits),
                        " of visits are first ones, it needs less than ",
                        FormatShare(kFirstVisitsForDelta));
  return q.buffers_fit ? "" : "no delta: its buffers do not fit";
}

std::string NoPredict(const CodecQuestion& q) {
  if (!q.tokens_known) return "no predict: token ids do not come along";
  const double predict_s = kPredictSecondsPerElement * static_cast<double>(q.dims.elements());
  if (predict_s > q.compute_s)
    return absl::StrCat("no predict: it would take ", FormatSeconds(predict_s), " of a core");
  const int64_t bytes = PredictorBytes(Quant(8, q.forward, Scheme::kPredict), q.dims, q.vocabulary);
  if (bytes <= q.free_bytes) return "";
  return absl::StrCat("no predict: its tables take ", FormatBytes(bytes), ", ",
                      FormatBytes(q.free_bytes), " are free");
}

double MeanBytes(const CodecQuestion& q, const CodecSpec& spec) {
  return MeanWireBytes(spec, q.dims, q.first_visits);
}

struct Candidate {
  CodecSpec codec;
  int bits = 0;
  bool fits = false;
  std::string note;  // for the end of a sentence
};

// The mildest of a scheme that fits, else its coarsest.
Candidate Mildest(const CodecQuestion& q, double budget_bytes, Scheme scheme) {
  Candidate c;
  for (c.bits = 8;; --c.bits) {
    c.codec = Quant(c.bits, q.forward, scheme);
    c.fits = MeanBytes(q, c.codec) <= budget_bytes;
    if (c.fits || c.bits == (q.forward ? kMinForwardBits : kMinBackwardBits)) return c;
  }
}

// A prediction where there may be one, else neither; a delta where samples come again and its mean
// leaves it enough bits.
Candidate ChooseQuantised(const CodecQuestion& q, double budget_bytes) {
  const std::string no_predict = NoPredict(q);
  Candidate other =
      Mildest(q, budget_bytes, no_predict.empty() ? Scheme::kPredict : Scheme::kDirect);
  std::string no_delta = q.forward ? NoDelta(q) : "";
  if (q.forward && no_delta.empty()) {
    Candidate delta = Mildest(q, budget_bytes, Scheme::kDelta);
    const std::string words = VisitWords(delta.codec, q.dims, q.first_visits);
    // Where nothing fits: a prediction bears the coarsest bits in fewer bytes, nothing else does.
    if (delta.fits ? delta.bits + kBitsOfDelta >= other.bits : !other.fits && !no_predict.empty()) {
      delta.note = absl::StrCat(" (delta: ", words, ")");
      return delta;
    }
    no_delta = absl::StrCat("no delta: its mean leaves it too few bits, ", FormatCodec(delta.codec),
                            " takes ", words);
  }
  const std::string why = !no_predict.empty() ? no_predict
                          : q.forward ? "predict: what the last tokens and the position foretell"
                                      : "predict: what the next token foretells of its gradient";
  other.note = absl::StrCat(" (", no_delta, no_delta.empty() ? "" : "; ", why, ")");
  return other;
}

}  // namespace

CodecAnswer ChooseCodec(const CodecQuestion& q) {
  CodecAnswer answer;
  const double budget_bytes = q.compute_s * q.rate_bits_per_s * kRateMargin / 8;
  const double bits = budget_bytes * 8 / q.dims.elements();
  auto fits = [&](const CodecSpec& spec) { return MeanBytes(q, spec) <= budget_bytes; };
  std::string note;
  const CodecSpec none = Plain(CodecSpec::NONE), bf16 = Plain(CodecSpec::BF16);
  if (fits(none) || fits(bf16)) {
    answer.codec = fits(none) ? none : bf16;
    if (q.forward && q.tokens_wanted && NoPredict(q).empty()) {
      CodecSpec passes = Plain(CodecSpec::PREDICT);
      *passes.mutable_inner() = answer.codec;
      answer.codec = passes;
      note = " (predict: passes the token ids on to a slower link)";
    }
  } else {
    Candidate chosen = ChooseQuantised(q, budget_bytes);
    answer.codec = std::move(chosen.codec);
    answer.fits = chosen.fits;
    note = std::move(chosen.note);
    if (!answer.fits) {
      absl::StrAppend(&note, ", the coarsest allowed: ",
                      FormatSeconds(MeanBytes(q, answer.codec) * 8 / q.rate_bits_per_s),
                      " a micro-batch, the link is slower than the compute");
    }
  }
  answer.why =
      absl::StrCat(FormatRate(q.rate_bits_per_s), " measured, micro-batch ", q.dims.elements(),
                   " elements, compute ", FormatSeconds(q.compute_s),
                   absl::StrFormat(" -> %.*f bits would fit -> ", bits < 9.95 ? 1 : 0, bits),
                   FormatCodec(answer.codec), note);
  return answer;
}

}  // namespace isthmus::coordinator
