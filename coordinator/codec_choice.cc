#include "coordinator/codec_choice.h"

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

CodecSpec Quant(int bits, bool delta) {
  CodecSpec quant = Plain(CodecSpec::QUANT);
  quant.set_bits(bits);
  if (!delta) return quant;
  CodecSpec spec = Plain(CodecSpec::DELTA);
  *spec.mutable_inner() = quant;
  *spec.mutable_cold() =
      Plain(CodecSpec::BF16);  // the buffers are bf16: a colder first visit would keep nothing more
  return spec;
}

}  // namespace

CodecAnswer ChooseCodec(const CodecQuestion& q) {
  CodecAnswer answer;
  const double budget_bytes = q.compute_s * q.rate_bits_per_s * kRateMargin / 8;
  const double bits = budget_bytes * 8 / q.dims.elements();
  auto fits = [&](const CodecSpec& spec) { return WireBytes(spec, q.dims, true) <= budget_bytes; };
  std::string note;
  if (fits(Plain(CodecSpec::NONE))) {
    answer.codec = Plain(CodecSpec::NONE);
  } else if (fits(Plain(CodecSpec::BF16))) {
    answer.codec = Plain(CodecSpec::BF16);
  } else {
    bool delta = false;
    if (q.forward) {
      if (!q.passes_known) {
        note = " (no delta: the number of samples is not known)";
      } else if (q.passes <= kPassesForDelta) {
        note = absl::StrFormat(" (no delta: %.2f passes over the data, it needs more than %.1f)",
                               q.passes, kPassesForDelta);
      } else if (!q.buffers_fit) {
        note = " (no delta: its buffers do not fit)";
      } else {
        delta = true;
        note = absl::StrFormat(" (delta: %.1f passes over the data; a first visit goes as bf16)",
                               q.passes);
      }
    }
    const int least = q.forward ? kMinForwardBits : kMinBackwardBits;
    int b = 8;
    while (b > least && !fits(Quant(b, delta))) --b;
    answer.codec = Quant(b, delta);
    answer.fits = fits(answer.codec);
    if (!answer.fits) {
      absl::StrAppend(&note, ", the coarsest allowed: ",
                      FormatSeconds(WireBytes(answer.codec, q.dims, true) * 8 / q.rate_bits_per_s),
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
