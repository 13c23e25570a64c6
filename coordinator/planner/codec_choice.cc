#include "coordinator/planner/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/cost_model.h"
#include "proto/codec/codec_text.h"

namespace isthmus::coordinator {
namespace {

constexpr int kBits[] = {8, 6, 5, 4, 3, 2};

CodecSpec Plain(CodecSpec::Kind kind) {
  CodecSpec spec;
  spec.set_kind(kind);
  return spec;
}

CodecSpec Predict(const CodecSpec& inner, bool forward) {
  CodecSpec spec = Plain(CodecSpec::PREDICT);
  *spec.mutable_inner() = inner;
  if (inner.kind() != CodecSpec::QUANT) return spec;
  spec.set_context(forward ? 3 : 2);
  spec.set_next(!forward);
  return spec;
}

CodecSpec Delta(const CodecSpec& inner) {
  CodecSpec spec = Plain(CodecSpec::DELTA);
  *spec.mutable_inner() = inner;
  // The buffers are bf16: a finer first visit would keep nothing more.
  *spec.mutable_cold() = Plain(CodecSpec::BF16);
  return spec;
}

CodecSpec Quant(int bits, bool forward, bool by_token) {
  CodecSpec quant = Plain(CodecSpec::QUANT);
  quant.set_bits(bits);
  if (by_token || !forward) quant.set_scale(CodecSpec::PER_TOKEN);
  // The largest gradients must not be cut: they are what is to be learned.
  if (!forward) quant.set_symmetric(true);
  return quant;
}

// Why there is no delta; empty: there may be one.
std::string NoDelta(const CodecQuestion& q) {
  if (!q.forward) return "";
  if (!q.samples_known) return "no delta: the number of samples is not known";
  if (q.first_visits >= kFirstVisitsForDelta)
    return absl::StrCat("no delta: ", FormatShare(q.first_visits),
                        " of visits are first ones, it needs less than ",
                        FormatShare(kFirstVisitsForDelta));
  return q.buffers_fit && q.states_fit ? "" : "no delta: its buffers do not fit";
}

std::string NoPredict(const CodecQuestion& q) {
  if (!q.token_ids) return "no predict: rows have no token ids";
  if (q.states_fit && q.table_bytes <= q.free_bytes) return "";
  return absl::StrCat("no predict: its tables take up to ", FormatBytes(q.table_bytes), ", ",
                      FormatBytes(q.free_bytes), " are free");
}

// Of a quantiser of `bits`, from what 4 bits cost.
double AtBits(double at_four, int bits, bool forward) {
  if (!forward && bits < 4) return at_four * std::pow(kBackwardBelowFour, 4 - bits);
  return at_four * std::pow(kLossOfABit, 4 - bits);
}

}  // namespace

std::optional<double> ExpectedLoss(const CodecSpec& codec, bool forward) {
  switch (codec.kind()) {
    case CodecSpec::NONE:
    case CodecSpec::BF16:
    case CodecSpec::FP16:
      return 0;
    case CodecSpec::QUANT:
      if (forward) return AtBits(kForwardLoss, codec.bits(), true);
      return AtBits(kBackwardLoss, codec.bits(), false) *
             (codec.symmetric() ? 1 : kBackwardAsymmetric);
    case CodecSpec::DELTA: {
      const std::optional<double> direct = ExpectedLoss(codec.inner(), forward);
      return direct.has_value() ? std::optional<double>(kForwardDeltaShare * *direct) : direct;
    }
    case CodecSpec::PREDICT: {
      if (codec.inner().kind() != CodecSpec::QUANT) return ExpectedLoss(codec.inner(), forward);
      if (forward) return AtBits(kForwardPredictedLoss, codec.inner().bits(), true);
      // The token itself foretells nothing of a gradient.
      if (!codec.next()) return ExpectedLoss(codec.inner(), forward);
      return AtBits(kBackwardPredictedLoss, codec.inner().bits(), false);
    }
    default:
      return std::nullopt;
  }
}

double CodecSeconds(const CodecSpec& codec, const TensorDims& dims) {
  const double elements = static_cast<double>(dims.elements());
  double seconds = kOtherSecondsPerElement * elements;
  switch (codec.kind()) {
    case CodecSpec::NONE:
      seconds = 0;
      break;
    case CodecSpec::BF16:
    case CodecSpec::FP16:
      seconds = kConvertSecondsPerElement * elements;
      break;
    case CodecSpec::QUANT:
    case CodecSpec::SIGN:
      seconds = kQuantSecondsPerElement * elements;
      break;
    case CodecSpec::DELTA:
      seconds = kDeltaSecondsPerElement * elements;
      break;
    case CodecSpec::PREDICT:
      seconds = kPredictSecondsPerElement * elements;
      break;
    default:
      break;
  }
  if (codec.zstd()) seconds += kZstdSecondsPerByte * EncodedBytes(codec, dims, true);
  return seconds;
}

CodecOption OptionOf(const CodecQuestion& q, const CodecSpec& codec) {
  CodecOption option;
  option.codec = codec;
  option.link_s = MeanWireBytes(codec, q.dims, q.first_visits) * 8 / q.rate_bits_per_s +
                  2 * CodecSeconds(codec, q.dims);
  const double loss = ExpectedLoss(codec, q.forward).value_or(0);
  option.price = loss > 0 ? kQuantisedPrice + kStepsForLoss * loss : 0;
  option.tokens = NeedsTokenIds(codec);
  return option;
}

std::vector<CodecOption> CodecOptions(const CodecQuestion& q) {
  std::vector<CodecOption> options;
  const auto add = [&](const CodecSpec& codec) { options.push_back(OptionOf(q, codec)); };
  const bool delta = q.forward && NoDelta(q).empty(), predict = NoPredict(q).empty();
  for (CodecSpec::Kind kind : {CodecSpec::BF16, CodecSpec::NONE}) {
    add(Plain(kind));
    if (q.forward && predict) add(Predict(Plain(kind), true));  // passes the token ids on
  }
  for (const int more : kBits) {
    // The job's least is one of them.
    const int bits = more == 8 ? 8 : std::max(more, q.min_bits);
    if (!options.empty() && options.back().codec.bits() == bits) break;
    if (predict) add(Predict(Quant(bits, q.forward, true), q.forward));
    if (delta) add(Delta(Quant(bits, true, false)));
    add(Quant(bits, q.forward, false));
  }
  return options;
}

std::string LeftOut(const CodecQuestion& q) {
  std::vector<std::string> why;
  for (std::string& reason : std::vector<std::string>{NoDelta(q), NoPredict(q)})
    if (!reason.empty()) why.push_back(std::move(reason));
  return absl::StrJoin(why, "; ");
}

}  // namespace isthmus::coordinator
